#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <tessera/kernels/local_attention.hpp>
#include <vector>

#include "cpu/attention_tiles.hpp"

// What forward and gradients of local attention share.
//
// "Own" tokens are the queries, or the keys where their gradients are wanted; "others" are what
// they read. A register holds neighbouring own tokens along one dimension, the lanes. Seen from
// lane i, the other token at distance t lies at i + t: with the others of a tile packed channel by
// channel, [row][channel][place], the products of all lanes with their neighbours at one distance
// are a multiply-add with an unaligned load. Nothing is summed across lanes, and lanes whose window
// ends earlier than that of others (at the ends of the domain and of blocks) are masked.

namespace tessera::kernels::cpu {

/// Coordinates, strides or sizes along three axes: the lanes come last, missing ones first.
using Place = std::array<std::int64_t, 3>;
/// The domain dimension of each axis; -1: none.
using AxisOrder = std::array<int, 3>;

/// A piece [N, domain..., heads(, channels)] addressed by local sample, virtual domain coordinates
/// and global head.
class LocalRows {
 public:
  LocalRows(const Piece& piece, const AxisOrder& order, bool channels);

  /// Elements from the start of the view.
  std::int64_t at(std::int64_t n, const Place& x, std::int64_t head) const {
    return origin_ + n * sample_ + head * head_ + x[0] * along_[0] + x[1] * along_[1] +
           x[2] * along_[2];
  }
  std::int64_t along(std::size_t axis) const { return along_[axis]; }
  std::int64_t head_step() const { return head_; }
  std::int64_t width() const { return width_; }

  /// dst[c * stride + i] = scale * channel c of the token at `offset + (i - valid.lo) * step`, or 0
  /// for i outside `valid`; i < places.
  template <class T>
  void read_columns(std::int64_t offset,
                    std::int64_t step,
                    Interval valid,
                    std::int64_t places,
                    T scale,
                    T* dst,
                    std::int64_t stride) const;
  /// Asks for `count` tokens' rows of `heads` neighbouring heads. Those of one head lie too far
  /// apart for the processor to foresee.
  void touch(std::int64_t offset, std::int64_t step, std::int64_t count, std::int64_t heads) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const char* const row = view_.as<char>() + (offset + i * step) * size_;
      for (std::int64_t b = 0; b < heads * head_ * size_; b += 64)
        __builtin_prefetch(row + b, 0, 2);
    }
  }
  /// The reverse, for count <= lanes and a stride of that many.
  template <class T>
  void write_columns(std::int64_t offset,
                     std::int64_t step,
                     std::int64_t count,
                     const T* src) const;
  template <class T>
  void read_row(std::int64_t offset, T* row) const {
    load(view_.as<char>() + offset * size_, view_.dtype, step_, width_, row);
  }
  template <class T>
  void write_row(std::int64_t offset, const T* row) const {
    store(row, width_, view_.as<char>() + offset * size_, view_.dtype, step_);
  }
  template <class T>
  T& number(std::int64_t offset) const {
    return view_.as<T>()[offset];
  }

 private:
  template <class T>
  bool in_place() const {
    return step_ == 1 && view_.dtype == (sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32);
  }

  View view_;
  std::int64_t origin_ = 0;
  std::int64_t sample_ = 0;
  std::int64_t head_ = 0;
  std::int64_t step_ = 1;
  std::int64_t width_ = 1;
  std::int64_t size_ = 1;
  Place along_{};
};

/// One axis: the own coordinates of a part in segments, and what each of them reads.
struct LocalAxis {
  /// Own coordinates first, first + step, ... read others inside hull, hull + step, ...
  struct Segment {
    std::int64_t first, count, hull, hull_count;
    std::size_t run;  ///< of its first coordinate
    /// Lanes: distances to others are nearest, ..., nearest + distances - 1, in steps.
    std::int64_t nearest, distances;
    bool masked;  ///< some lane does not read all of them
  };
  /// Others `start`, start + 1, ... of the hull, and the place of the first in the table of biases.
  struct Run {
    std::int64_t start = 0, count = 1, bias = 0;
  };
  std::int64_t step = 1;
  std::int64_t most = 1;       ///< others of one own coordinate (lanes: distances)
  std::int64_t most_hull = 1;  ///< of one segment
  std::int64_t most_own = 1;
  std::vector<Segment> segments;
  std::vector<Run> runs;
};

/// What a call works on.
struct LocalWork {
  /// Own tokens are those in the box of x.k if `by_key`, else of x.q. Throws ShapeError,
  /// DTypeError, DeviceError.
  LocalWork(const LocalOperands& x, const LocalOptions& options, bool by_key);

  int dims;
  DType compute;
  bool empty;
  LocalOptions options;
  AxisOrder order;
  std::int64_t samples, depth, width;  ///< N, D, D_v
  Interval heads, key_heads;           ///< global, of this part
  std::int64_t group;                  ///< query heads per key head
  std::array<LocalAxis, 3> axes;
  Place table{1, 1, 1};  ///< of the bias: 2 extent - 1
  const Piece* bias;

  std::int64_t tiles() const {
    std::int64_t count = 1;
    for (const LocalAxis& a : axes) count *= static_cast<std::int64_t>(a.segments.size());
    return count;
  }
  /// Places per channel and row of packed others.
  std::int64_t most_places() const { return lanes() + axes[2].most - 1; }
  std::int64_t lanes() const {
    return compute == DType::kFloat64 ? kVectorLanes<double> : kVectorLanes<float>;
  }
  std::int64_t hull_rows() const { return axes[0].most_hull * axes[1].most_hull; }
  /// Query heads that are packed together.
  std::int64_t block_heads() const;
  /// f(block) for the blocks of the query heads in `range`. A block holds whole groups of a key
  /// head, or a part of one.
  template <class F>
  void for_each_block(Interval range, const F& f) const {
    const std::int64_t most = block_heads();
    for (std::int64_t head = range.lo; head < range.hi;) {
      const std::int64_t group_end = (head / group + 1) * group;
      const std::int64_t end =
          std::min(range.hi, most >= group ? std::max(group_end, (head + most) / group * group)
                                           : std::min(group_end, head + most));
      f(Interval{head, end});
      head = end;
    }
  }
  std::int64_t own_rows() const { return axes[0].most_own * axes[1].most_own; }
  std::int64_t window() const { return axes[0].most * axes[1].most * axes[2].most; }
  std::int64_t table_size() const { return table[0] * table[1] * table[2]; }
  bool has_bias() const { return bias->view.data != nullptr; }
  /// Multiply-adds of one product with each pair.
  double pairs(std::int64_t own_heads) const;

  /// What one task works on: tiles one after the other, of each all heads, whose rows are
  /// neighbours in memory.
  struct Task {
    std::int64_t number, sample;
    Interval tiles, heads;  ///< global heads
  };
  /// f(task) for the own heads in `range`, on threads; `products` multiply-adds in all. Tasks
  /// follow from the shape alone, and so do the sums that each makes on its own.
  template <class F>
  void for_each_task(Interval range, double products, const F& f) const {
    const std::int64_t length = tiles_per_task(), parts = parts_per_sample();
    const std::int64_t groups = head_groups(range.size());
    const std::int64_t count = tasks(range.size());
    for_each_tile(count, tile_threads(count, products), [&](std::int64_t task) {
      const std::int64_t first = task / groups % parts * length;
      const std::int64_t head = range.lo + task % groups;
      f(Task{task,
             task / groups / parts,
             {first, std::min(tiles(), first + length)},
             groups == 1 ? range : Interval{head, head + 1}});
    });
  }
  std::int64_t tasks(std::int64_t own_heads) const {
    return samples * parts_per_sample() * head_groups(own_heads);
  }
  std::int64_t tiles_per_task() const { return (tiles() + 63) / 64; }
  std::int64_t parts_per_sample() const {
    return (tiles() + tiles_per_task() - 1) / tiles_per_task();
  }
  /// Few tiles: a task for each head.
  std::int64_t head_groups(std::int64_t own_heads) const {
    return samples * parts_per_sample() < 16 ? own_heads : 1;
  }

  /// The biases of one query head in the order of the axes; `flipped`: back to front.
  template <class T>
  void read_bias(std::int64_t head, bool flipped, T* table_of_head) const;
  /// Adds such a table (not flipped) to one head of `dbias`, which lies like the bias.
  template <class T>
  void add_bias_gradient(std::int64_t head, const T* table_of_head, const View& dbias) const;
};

/// Own rows that are worked on together: a load of others, which mostly crosses cache lines, then
/// serves as many multiply-adds.
inline constexpr int kOwnRows = 4;

/// Neighbouring rows of lanes of a tile, and the rows of others that they read.
struct OwnRows {
  /// Read by the own rows first, ..., first + count - 1: windows of neighbours overlap.
  struct Row {
    std::int64_t row;  ///< of the hull
    int first, count;
    std::int64_t place[kOwnRows];  ///< among the rows that each own row reads
    std::int64_t bias[kOwnRows];   ///< start of its row of the table
  };
  int count = 0;
  Place at[kOwnRows];            ///< of the first lane
  std::int64_t reads[kOwnRows];  ///< rows read
  std::vector<Row> rows;
};

/// The segments of one tile.
class LocalTile {
 public:
  LocalTile(const LocalWork& work, std::int64_t number);

  std::int64_t lanes() const { return segments_[2]->count; }
  std::int64_t distances() const { return segments_[2]->distances; }
  bool masked() const { return segments_[2]->masked; }
  std::int64_t places() const { return work_->lanes() + distances() - 1; }
  /// Places of all rows of one packed head.
  std::int64_t head_places() const { return work_->hull_rows() * places(); }
  /// Place of the first distance in a row of the table of biases.
  std::int64_t bias_offset() const { return segments_[2]->nearest + (work_->table[2] - 1) / 2; }
  /// Elements from one own lane to the next.
  std::int64_t lane_step(const LocalRows& rows) const {
    return rows.along(2) * work_->axes[2].step;
  }

  /// [distance][lane]: 0 where the lane reads there, else minus infinity. Lanes without a token
  /// read everywhere.
  template <class T>
  void make_mask(T* mask) const;
  /// Others of some heads as [head][hull row][channel][place], zeros where there are none.
  template <class T>
  void pack(const LocalRows& rows, std::int64_t n, Interval heads, T scale, T* dst) const;
  /// Own rows, up to kOwnRows at a time.
  void find_rows(std::vector<OwnRows>& rows) const;

 private:
  void find(std::int64_t a, std::int64_t b, OwnRows& own) const;

  const LocalWork* work_;
  std::array<const LocalAxis::Segment*, 3> segments_;
};

/// Scores s [row][distance][lane] of each own row with its rows: the sum over channels of x
/// [channel][lane] and `others`.
template <class T>
void band_dots(const OwnRows& own,
               const T* const* x,
               const T* others,
               std::int64_t channels,
               std::int64_t distances,
               T* const* s);

/// y [channel][lane] = (accumulate: y +) the sum over rows and distances of p and `others`.
template <class T>
void band_sum(const OwnRows& own,
              const T* const* p,
              const T* others,
              std::int64_t channels,
              std::int64_t distances,
              bool accumulate,
              T* const* y);

/// s += biases (from the table of one head, null: none) and mask (null: none) for own row `o`.
template <class T>
void add_bias_and_mask(const OwnRows& own,
                       int o,
                       const T* table,
                       std::int64_t bias_offset,
                       const T* mask,
                       std::int64_t distances,
                       T* s);

/// `view` as the piece in the box of `like` with `width` channels (0: none). Throws ShapeError,
/// DTypeError.
Piece rows_like(
    const char* what, const View& view, const Piece& like, std::int64_t width, DType dtype);

}  // namespace tessera::kernels::cpu
