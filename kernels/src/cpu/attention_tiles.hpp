#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <tessera/kernels/attention.hpp>
#include <vector>

#include "cpu/attention_blocks.hpp"
#include "cpu/tiles.hpp"
#include "math.hpp"

// What forward and gradient of attention share: where tokens lie, and one tile of scores.

namespace tessera::kernels::cpu {

/// Keys per tile: what belongs to it and to a panel of queries stays in the first-level cache.
inline constexpr std::int64_t kTileKeys = 128;
/// Rows of tokens to ask for ahead: they lie far apart, where the processor does not foresee them.
inline constexpr std::int64_t kRowsAhead = 8;
/// Queries of a full panel.
template <class T>
inline constexpr std::int64_t kPanel = kBlockVectors* kVectorLanes<T>;

/// Offsets of the elements of a box in row-major order; a table only where they are not evenly
/// spaced.
class Spots {
 public:
  Spots() = default;
  Spots(const Dims& sizes, const Dims& strides, std::int64_t origin = 0);

  std::int64_t operator[](std::int64_t i) const {
    return table_.empty() ? origin_ + i * step_ : table_[static_cast<std::size_t>(i)];
  }
  bool even() const { return table_.empty(); }
  std::int64_t step() const { return step_; }

 private:
  std::int64_t origin_ = 0;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> table_;
};

/// A view [samples..., domain..., heads(, channels)] as rows addressed by sample, token and head.
class TokenRows {
 public:
  TokenRows() = default;
  TokenRows(const View& view, int sample_dims, bool channels);

  bool defined() const { return view_.data != nullptr; }
  std::int64_t at(std::int64_t n, std::int64_t token, std::int64_t head) const {
    return samples_[n] + tokens_[token] + head * head_;
  }
  template <class T>
  void load(std::int64_t n, std::int64_t token, std::int64_t head, T* row) const {
    const std::int64_t offset = at(n, token, head);
    if (view_.dtype == kComputeType<T> && step_ == 1) {
      std::memcpy(row, view_.as<T>() + offset, static_cast<std::size_t>(width_) * sizeof(T));
    } else {
      kernels::load(element(offset), view_.dtype, step_, width_, row);
    }
  }
  template <class T>
  void store(std::int64_t n, std::int64_t token, std::int64_t head, const T* row) const {
    const std::int64_t offset = at(n, token, head);
    if (view_.dtype == kComputeType<T> && step_ == 1) {
      std::memcpy(view_.as<T>() + offset, row, static_cast<std::size_t>(width_) * sizeof(T));
    } else {
      kernels::store(row, width_, element(offset), view_.dtype, step_);
    }
  }
  /// Asks for a row. Inlined: GCC drops calls of functions that do nothing else.
  [[gnu::always_inline]] void prefetch(std::int64_t n,
                                       std::int64_t token,
                                       std::int64_t head) const {
    const auto* const row = static_cast<const char*>(element(at(n, token, head)));
    const std::int64_t bytes = width_ * static_cast<std::int64_t>(size_of(view_.dtype));
    for (std::int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(row + byte);
  }
  /// row is scratch of the row's width.
  template <class T>
  void add(std::int64_t n, std::int64_t token, std::int64_t head, const T* values, T* row) const {
    if (step_ == 1) {
      T* y = view_.as<T>() + at(n, token, head);
#pragma omp simd
      for (std::int64_t c = 0; c < width_; ++c) y[c] += values[c];
      return;
    }
    load(n, token, head, row);
    for (std::int64_t c = 0; c < width_; ++c) row[c] += values[c];
    store(n, token, head, row);
  }
  template <class T>
  T number(std::int64_t n, std::int64_t token, std::int64_t head) const {
    return view_.as<T>()[at(n, token, head)];
  }
  template <class T>
  void set_number(std::int64_t n, std::int64_t token, std::int64_t head, T value) const {
    view_.as<T>()[at(n, token, head)] = value;
  }

 private:
  template <class T>
  static constexpr DType kComputeType = sizeof(T) == 8 ? DType::kFloat64 : DType::kFloat32;
  void* element(std::int64_t offset) const {
    return view_.as<char>() + offset * static_cast<std::int64_t>(size_of(view_.dtype));
  }

  View view_;
  Spots samples_, tokens_;
  std::int64_t head_ = 0;
  std::int64_t step_ = 1;
  std::int64_t width_ = 1;
};

/// A mask or bias by sample, head, query and key, all counted from the parts at hand.
class PairView {
 public:
  PairView() = default;
  PairView(const char* what, const Piece& pair, const Piece& q, const Piece& k, int sample_dims);

  bool defined() const { return view.data != nullptr; }
  std::int64_t sample_head(std::int64_t n, std::int64_t h) const { return samples[n] + h * head; }

  View view;
  Spots samples;
  std::int64_t head = 0;
  Spots rows;
  Spots columns;
  bool shared_samples = false;  ///< some sample dimension has size 1
  bool shared_rows = false;     ///< some query dimension has size 1
  bool same_row = false;        ///< all have
};

/// The problem of one call.
struct AttentionWork {
  /// Throws ShapeError, DTypeError, UsageError, DeviceError.
  AttentionWork(const AttentionOperands& x, const AttentionOptions& options);

  AttentionOptions options;
  DType compute;
  std::int64_t samples, queries, keys, heads, key_heads;
  std::int64_t depth, width;                      ///< D, D_v
  std::int64_t group;                             ///< query heads per key head
  Interval head_range, key_head_range;            ///< global
  std::int64_t all_heads, all_queries, all_keys;  ///< global
  TokenRows q, k, v;
  Spots sample_at, query_at, key_at;  ///< global positions
  PairView mask, bias;

  /// Local key head of a local query head.
  std::int64_t key_head(std::int64_t h) const {
    return (h + head_range.lo) / group - key_head_range.lo;
  }
  /// Keys before this one are all that some query of [.., last] sees.
  std::int64_t key_end(std::int64_t last) const;
  double flops() const {
    return static_cast<double>(samples * heads) * static_cast<double>(queries) *
           static_cast<double>(keys) * static_cast<double>(depth + width);
  }
};

/// Queries of one task, cut into panels that differ by at most one register.
template <class T>
class Chunk {
 public:
  Chunk(std::int64_t first_query, std::int64_t query_count)
      : first(first_query),
        count(query_count),
        registers_((query_count + kVectorLanes<T> - 1) / kVectorLanes<T>),
        panels((registers_ + kBlockVectors - 1) / kBlockVectors) {}

  const std::int64_t first, count;

 private:
  std::int64_t registers_;

 public:
  const std::int64_t panels;

  /// Where a panel begins, counted from the first query; begin(panels) is the padded size.
  std::int64_t begin(std::int64_t panel) const {
    const std::int64_t more = std::min(panel, registers_ % panels);
    return (panel * (registers_ / panels) + more) * kVectorLanes<T>;
  }
  std::int64_t padded() const { return registers_ * kVectorLanes<T>; }
  int vectors(std::int64_t panel) const {
    return static_cast<int>((begin(panel + 1) - begin(panel)) / kVectorLanes<T>);
  }
  /// Queries of a panel that are there.
  std::int64_t queries(std::int64_t panel) const {
    return std::min(begin(panel + 1), count) - begin(panel);
  }
};

/// exp(x) for x <= 88, 0 below -87.3 (no denormal results).
inline float tile_exp(float x) {
  constexpr float kLowest = -87.3f, kShift = 12582912.0f;  // 1.5 2^23: rounds to an integer
  const float inside = m::select(x < kLowest, kLowest, x);
  const float shifted = inside * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
  return m::select(x < kLowest, 0.0f, y * std::bit_cast<float>(power));
}
inline double tile_exp(double x) { return m::exp(x); }

/// Scratch that stays with its thread, one for each `kUse`. Contents are not kept.
template <class T, int kUse = 0>
class TileScratch {
 public:
  explicit TileScratch(std::size_t elements) {
    if (memory().size() < elements + kPad) memory().resize(elements + kPad);
    const auto address = reinterpret_cast<std::uintptr_t>(memory().data());
    next_ = memory().data() + (kBytes - address % kBytes) % kBytes / sizeof(T);
  }
  /// For takes of these sizes.
  explicit TileScratch(std::initializer_list<std::int64_t> sizes) : TileScratch(total(sizes)) {}
  T* take(std::int64_t elements) {
    T* const p = next_;
    next_ += rounded(elements);
    return p;
  }
  static std::size_t rounded(std::int64_t elements) {
    return (static_cast<std::size_t>(elements) + kPad - 1) / kPad * kPad;
  }

 private:
  static constexpr std::size_t kBytes = 64;
  static constexpr std::size_t kPad = kBytes / sizeof(T);
  static std::size_t total(std::initializer_list<std::int64_t> sizes) {
    std::size_t sum = 0;
    for (const std::int64_t size : sizes) sum += rounded(size);
    return sum;
  }
  static std::vector<T>& memory() {
    static thread_local std::vector<T> m;
    return m;
  }
  T* next_;
};

template <class T>
std::int64_t whole_vectors(std::int64_t n) {
  return (n + kVectorLanes<T> - 1) / kVectorLanes<T> * kVectorLanes<T>;
}

/// Rows [first, first + count) of one head, dense, `stride` apart, zeros behind each.
template <class T>
void pack_rows(const TokenRows& rows,
               std::int64_t n,
               std::int64_t first,
               std::int64_t count,
               std::int64_t head,
               std::int64_t width,
               std::int64_t stride,
               T* dst);

/// Rows [chunk.first, + chunk.count) of one head times `scale`, transposed: panels
/// [width][queries], zeros behind the queries. Panel p begins at begin(p) * width; `row` is scratch
/// of `stride` elements for each query of a panel.
template <class T>
void pack_panels(const TokenRows& rows,
                 std::int64_t n,
                 const Chunk<T>& chunk,
                 std::int64_t head,
                 std::int64_t width,
                 std::int64_t stride,
                 T scale,
                 T* row,
                 T* dst);

/// One panel of queries of a head against a tile of keys.
template <class T>
struct ScoreTile {
  const AttentionWork& work;
  std::int64_t n, h;
  const Chunk<T>& chunk;
  std::int64_t panel;
  std::int64_t first_key, keys;
  T* s;  ///< [key][query], whole blocks of keys
  std::int64_t pitch;

  /// s = log2(e) (scale q . k + bias) + start[query], -inf where the query must not see the key:
  /// the softmax is one of powers of two. `k_rows` are the packed keys, `q_panel` the transposed
  /// queries times `query_scale`.
  void scores(const T* k_rows, const T* q_panel, const T* start) const;
  /// values *= dropout factor, on a tile that lies like s.
  void drop(T* values) const;

  static T query_scale(const AttentionWork& work) {
    return static_cast<T>(work.options.scale * kLog2E);
  }
  static constexpr double kLog2E = 1.44269504088896340736;

 private:
  void add_bias() const;
  void apply_mask() const;
};

}  // namespace tessera::kernels::cpu
