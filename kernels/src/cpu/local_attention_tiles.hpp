#pragma once

#include <array>
#include <cstdint>
#include <tessera/kernels/local_attention.hpp>
#include <utility>
#include <vector>

#include "cpu/attention_tiles.hpp"

// What forward and gradients of local attention share. A task takes tiles of "own" tokens (queries,
// or keys where their gradients are wanted) and packs the "other" tokens that a tile reads, once
// and densely. Then each own token is worked on alone: products with the rows of its window,
// vectorised over channels, and sums of those rows.

namespace tessera::kernels::cpu {

using Place = std::array<std::int64_t, 3>;

/// A piece [N, domain..., heads(, channels)] addressed by local sample, virtual domain coordinates
/// and global head.
class LocalRows {
 public:
  LocalRows() = default;
  LocalRows(const Piece& piece, bool channels);

  /// Elements from the start of the view.
  std::int64_t at(std::int64_t n, const Place& x, std::int64_t head) const {
    std::int64_t offset = origin_ + n * sample_ + head * head_;
    for (std::size_t d = 0; d < 3; ++d) offset += x[d] * steps_[d];
    return offset;
  }
  std::int64_t along(std::size_t d) const { return steps_[d]; }
  std::int64_t width() const { return width_; }

  /// The row at `offset` times `scale`, zeros behind it up to `stride`.
  template <class T>
  void read(std::int64_t offset, std::int64_t stride, T scale, T* row) const {
    using S = Simd<T>;
    constexpr std::int64_t kLane = kVectorLanes<T>;
    if (view_.dtype == kType<T> && step_ == 1) {
      const T* const from = view_.as<T>() + offset;
      std::int64_t c = 0;
      for (; c + kLane <= width_; c += kLane) S::store(row + c, S::load(from + c) * scale);
      if (c < width_)
        S::store(row + c, S::load_first(from + c, static_cast<int>(width_ - c)) * scale);
      return;
    }
    load(view_.as<char>() + offset * size_, view_.dtype, step_, width_, row);
    for (std::int64_t c = 0; c < width_; ++c) row[c] *= scale;
    std::fill(row + width_, row + stride, T(0));
  }
  template <class T>
  void write(std::int64_t offset, const T* row) const {
    store(row, width_, view_.as<char>() + offset * size_, view_.dtype, step_);
  }
  template <class T>
  T& number(std::int64_t offset) const {
    return view_.as<T>()[offset];
  }

 private:
  template <class T>
  static constexpr DType kType = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;

  View view_;
  std::int64_t origin_ = 0;
  std::int64_t sample_ = 0;
  std::int64_t head_ = 0;
  std::int64_t step_ = 1;
  std::int64_t width_ = 1;
  std::int64_t size_ = 1;
  Place steps_{};
};

/// One dimension: the own coordinates of a part in segments, and what each of them reads.
struct LocalAxis {
  /// Own coordinates first, first + step, ... read others inside hull, hull + step, ...
  struct Segment {
    std::int64_t first, count, hull, hull_count;
    std::size_t run;  ///< of its first coordinate
  };
  /// Others `start`, start + 1, ... of the hull, and the place of the first in the table of biases.
  struct Run {
    std::int64_t start = 0, count = 1, bias = 0;
  };
  std::int64_t step = 1;
  std::int64_t most = 1;       ///< others of one own coordinate
  std::int64_t most_hull = 1;  ///< of one segment
  std::int64_t most_own = 1;
  std::vector<Segment> segments;
  std::vector<Run> runs;
};

/// What a call works on.
struct LocalWork {
  /// Own tokens are those in the box of `own`; `by_key`: own are keys. Throws ShapeError,
  /// DTypeError, DeviceError.
  LocalWork(const LocalOperands& x, const LocalOptions& options, bool by_key);

  int dims;
  DType compute;
  bool empty;
  LocalOptions options;
  std::int64_t samples, depth, width;          ///< N, D, D_v
  Interval heads, key_heads;                   ///< global, of this part
  std::int64_t group;                          ///< query heads per key head
  std::array<LocalAxis, 3> axes;               ///< missing leading dimensions have size 1
  std::array<std::int64_t, 3> table{1, 1, 1};  ///< of the bias: 2 extent - 1
  const Piece* bias;

  std::int64_t tiles() const {
    std::int64_t count = 1;
    for (const LocalAxis& a : axes) count *= static_cast<std::int64_t>(a.segments.size());
    return count;
  }
  std::int64_t hull_rows() const {
    return axes[0].most_hull * axes[1].most_hull * axes[2].most_hull;
  }
  std::int64_t own_rows() const { return axes[0].most_own * axes[1].most_own * axes[2].most_own; }
  std::int64_t window() const { return axes[0].most * axes[1].most * axes[2].most; }
  std::int64_t table_size() const { return table[0] * table[1] * table[2]; }
  bool has_bias() const { return bias->view.data != nullptr; }
  /// Multiply-adds of one product with each pair.
  double pairs(std::int64_t own_heads) const;

  /// Tiles per task: what a task sums up on its own follows from the shape alone.
  std::int64_t tiles_per_task() const { return std::max<std::int64_t>(1, (tiles() + 63) / 64); }
  std::int64_t tasks_per_head() const {
    return (tiles() + tiles_per_task() - 1) / tiles_per_task();
  }

  /// The biases of one query head, row by row; `flipped`: back to front.
  template <class T>
  void read_bias(std::int64_t head, bool flipped, T* table_of_head) const;
};

/// The segments of one tile.
struct LocalTile {
  LocalTile(const LocalWork& work, std::int64_t number);

  std::array<const LocalAxis::Segment*, 3> segments;
  Place hull;  ///< sizes

  std::int64_t hull_rows() const { return hull[0] * hull[1] * hull[2]; }
  /// f(hull row, coordinates) for the first row of each innermost run of the hull.
  template <class F>
  void for_each_hull_run(const LocalWork& work, const F& f) const {
    std::int64_t row = 0;
    for (std::int64_t a = 0; a < hull[0]; ++a) {
      for (std::int64_t b = 0; b < hull[1]; ++b, row += hull[2]) {
        f(row, Place{segments[0]->hull + a * work.axes[0].step,
                     segments[1]->hull + b * work.axes[1].step, segments[2]->hull});
      }
    }
  }
  /// The hull's rows of one head, `stride` apart, times `scale`.
  template <class T>
  void pack(const LocalWork& work,
            const LocalRows& rows,
            std::int64_t n,
            std::int64_t head,
            std::int64_t stride,
            T scale,
            T* dst) const {
    const std::int64_t step = rows.along(2) * work.axes[2].step;
    for_each_hull_run(work, [&](std::int64_t row, const Place& x) {
      std::int64_t offset = rows.at(n, x, head);
      for (std::int64_t c = 0; c < hull[2]; ++c, offset += step)
        rows.read(offset, stride, scale, dst + (row + c) * stride);
    });
  }
  /// The hull's numbers of one head.
  template <class T>
  void pack_numbers(const LocalWork& work,
                    const LocalRows& rows,
                    std::int64_t n,
                    std::int64_t head,
                    T* dst) const {
    const std::int64_t step = rows.along(2) * work.axes[2].step;
    for_each_hull_run(work, [&](std::int64_t row, const Place& x) {
      std::int64_t offset = rows.at(n, x, head);
      for (std::int64_t c = 0; c < hull[2]; ++c, offset += step)
        dst[row + c] = rows.number<T>(offset);
    });
  }
  /// f(coordinates, number, runs) for each own token.
  template <class F>
  void for_each_own(const LocalWork& work, const F& f) const {
    std::int64_t number = 0;
    std::array<const LocalAxis::Run*, 3> run;
    Place x;
    const auto take = [&](std::size_t d, std::int64_t i) {
      x[d] = segments[d]->first + i * work.axes[d].step;
      run[d] = &work.axes[d].runs[segments[d]->run + static_cast<std::size_t>(i)];
    };
    for (std::int64_t a = 0; a < segments[0]->count; ++a) {
      take(0, a);
      for (std::int64_t b = 0; b < segments[1]->count; ++b) {
        take(1, b);
        for (std::int64_t c = 0; c < segments[2]->count; ++c) {
          take(2, c);
          f(x, number++, run);
        }
      }
    }
  }
};

/// The window of one own token inside the packed hull. Tables are made again only where the shape
/// of the window differs from the one before.
template <class T>
class LocalWindow {
 public:
  LocalWindow(const LocalWork& work,
              std::int64_t depth_stride,
              std::int64_t width_stride,
              TileScratch<T>& scratch)
      : work_(work),
        depth_stride_(depth_stride),
        width_stride_(width_stride),
        bias_(scratch.take(work.window() + 2 * kLane)) {
    depth_offsets_.resize(static_cast<std::size_t>(work.window()));
    width_offsets_.resize(static_cast<std::size_t>(work.window()));
  }
  static std::int64_t scratch_size(const LocalWork& work) { return work.window() + 4 * kLane; }

  void set(const LocalTile& tile, const std::array<const LocalAxis::Run*, 3>& run) {
    Place counts, bias;
    for (std::size_t d = 0; d < 3; ++d) {
      counts[d] = run[d]->count;
      bias[d] = run[d]->bias;
    }
    base = (run[0]->start * tile.hull[1] + run[1]->start) * tile.hull[2] + run[2]->start;
    moved_ |= counts != counts_ || bias != bias_place_;
    bias_place_ = bias;
    if (counts == counts_ && tile.hull == hull_) return;
    counts_ = counts;
    hull_ = tile.hull;
    count = 0;
    for (std::int64_t a = 0; a < counts[0]; ++a) {
      for (std::int64_t b = 0; b < counts[1]; ++b) {
        for (std::int64_t c = 0; c < counts[2]; ++c, ++count) {
          const std::int64_t row = (a * hull_[1] + b) * hull_[2] + c;
          depth_offsets_[static_cast<std::size_t>(count)] = row * depth_stride_;
          width_offsets_[static_cast<std::size_t>(count)] = row * width_stride_;
        }
      }
    }
  }
  std::int64_t padded() const { return (count + kLane - 1) / kLane * kLane; }
  const std::int64_t* depth_offsets() const { return depth_offsets_.data(); }
  const std::int64_t* width_offsets() const { return width_offsets_.data(); }

  /// s += biases of the window, from the table of one head.
  void add_bias(const T* table, T* s) {
    if (moved_) {
      T* to = bias_;
      for_each_bias_run([&](std::int64_t at, std::int64_t length) {
        copy_run(table + at, length, to);
        to += length;
      });
      moved_ = false;
    }
#pragma omp simd
    for (std::int64_t j = 0; j < count; ++j) s[j] += bias_[j];
  }
  void forget_bias() { bias_place_[0] = -1; }
  /// table[...] += ds
  void add_to_table(const T* ds, T* table) const {
    for_each_bias_run([&](std::int64_t at, std::int64_t length) {
      T* const to = table + at;
      for (std::int64_t j = 0; j < length; ++j) to[j] += ds[j];
      ds += length;
    });
  }
  /// The numbers of the window from those of the hull.
  void collect(const T* numbers, T* to) const {
    for (std::int64_t a = 0; a < counts_[0]; ++a) {
      for (std::int64_t b = 0; b < counts_[1]; ++b, to += counts_[2])
        copy_run(numbers + base + (a * hull_[1] + b) * hull_[2], counts_[2], to);
    }
  }

  std::int64_t base = 0;   ///< hull row of the first other token
  std::int64_t count = 0;  ///< other tokens

 private:
  static constexpr std::int64_t kLane = kVectorLanes<T>;

  /// Writes whole registers: what is behind is written later, or is padding.
  static void copy_run(const T* from, std::int64_t length, T* to) {
    for (std::int64_t j = 0; j < length; j += kLane) {
      Simd<T>::store(to + j,
                     Simd<T>::load_first(from + j, static_cast<int>(std::min(kLane, length - j))));
    }
  }
  template <class F>
  void for_each_bias_run(const F& f) const {
    for (std::int64_t a = 0; a < counts_[0]; ++a) {
      for (std::int64_t b = 0; b < counts_[1]; ++b) {
        f(((bias_place_[0] + a) * work_.table[1] + bias_place_[1] + b) * work_.table[2] +
              bias_place_[2],
          counts_[2]);
      }
    }
  }

  const LocalWork& work_;
  const std::int64_t depth_stride_, width_stride_;
  T* const bias_;
  std::vector<std::int64_t> depth_offsets_, width_offsets_;
  Place counts_{}, hull_{}, bias_place_{-1, 0, 0};
  bool moved_ = true;
};

/// `view` as the piece in the box of `like` with `width` channels (0: none). Throws ShapeError,
/// DTypeError.
Piece rows_like(
    const char* what, const View& view, const Piece& like, std::int64_t width, DType dtype);

/// s[j] = x . row j for the rows at `rows + offsets[j]` of `stride` elements (whole registers).
template <class T>
void window_dots(const T* x,
                 std::int64_t stride,
                 const T* rows,
                 const std::int64_t* offsets,
                 std::int64_t count,
                 T* s);

/// y = (accumulate: y +) sum_j p[j] row j
template <class T>
void window_sum(const T* p,
                std::int64_t stride,
                const T* rows,
                const std::int64_t* offsets,
                std::int64_t count,
                bool accumulate,
                T* y);

}  // namespace tessera::kernels::cpu
