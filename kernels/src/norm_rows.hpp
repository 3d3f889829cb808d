#pragma once

#include <algorithm>
#include <numeric>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <vector>

#include "functors/norm.hpp"
#include "launch.hpp"

/// Rows of channels, in strips, as group norms read and write them.
namespace tessera::kernels::norm_rows {

/// Elements of a block: two passes over it stay in the second-level cache.
inline constexpr std::int64_t kBlockElements = 16384;

/// Most views whose rows run together.
inline constexpr std::size_t kMost = 4;

/// Rows of channels of one sample; rows of x and of other views of its shape run together.
struct Rows {
  LoopNest nest;       // over the domain; operands x, others
  std::int64_t count;  // rows per sample
  std::int64_t channels;
  std::int64_t samples;
  std::int64_t sample_stride[kMost];
  std::int64_t channel_stride[kMost];
};

inline Rows make_rows(const char* op,
                      std::span<const View* const> views,
                      const GroupNormOptions& options) {
  const View& x = *views[0];
  const int d = x.dims();
  if (d < 2 || options.groups < 1 || x.shape[d - 1] % options.groups != 0) {
    throw ShapeError(str(op, ": ", options.groups, " groups do not divide the channels of ",
                         x.shape, " [N, ..., C]. Choose a divisor of C."));
  }
  View domain[kMost];
  const View* pointers[kMost];
  Rows rows{};
  for (std::size_t k = 0; k < views.size(); ++k) {
    const View& v = *views[k];
    domain[k] = v;
    domain[k].shape.resize(d - 1);
    domain[k].strides.resize(d - 1);
    domain[k].shape.erase(0);
    domain[k].strides.erase(0);
    pointers[k] = &domain[k];
    rows.sample_stride[k] = v.strides[0];
    rows.channel_stride[k] = v.strides[d - 1];
  }
  rows.nest = make_loop_nest(op, std::span<const View* const>(pointers, views.size()), false);
  rows.count = rows.nest.total;
  rows.channels = x.shape[d - 1];
  rows.samples = x.shape[0];
  return rows;
}

inline char* at(const View& v, std::int64_t offset) {
  return v.as<char>() + offset * static_cast<std::int64_t>(size_of(v.dtype));
}

inline std::int64_t row_offset(const Rows& rows, int k, std::int64_t sample, std::int64_t row) {
  return sample * rows.sample_stride[k] + nest_offset(rows.nest, k, row);
}

/// Whether the rows of operand k lie one after the other.
inline bool contiguous(const Rows& rows, int k) {
  if (rows.channel_stride[k] != 1 && rows.channels > 1) return false;
  std::int64_t expected = rows.channels;
  for (int d = rows.nest.dims - 1; d >= 0 && rows.count > 1; --d) {
    if (rows.nest.stride[k][d] != expected) return false;
    expected *= rows.nest.size[d];
  }
  return true;
}

/// Rows are taken in strips: loops are long however few the channels, and made of whole groups of
/// kLanes. What belongs to a channel is repeated for every row of a strip.
inline std::int64_t rows_per_strip(const Rows& rows) {
  constexpr std::int64_t kStripElements = 256;
  const std::int64_t step = kLanes / std::gcd<std::int64_t, std::int64_t>(kLanes, rows.channels);
  const std::int64_t most =
      step * std::max<std::int64_t>(1, kStripElements / (step * rows.channels));
  return std::clamp<std::int64_t>(rows.count, 1, most);
}

inline std::int64_t rows_per_block(const Rows& rows) {
  const std::int64_t strip = rows_per_strip(rows);
  return strip * std::max<std::int64_t>(1, kBlockElements / (strip * rows.channels));
}

inline std::size_t padded(std::int64_t elements) {
  return static_cast<std::size_t>((elements + kLanes - 1) / kLanes * kLanes);
}

/// One operand, strip by strip.
template <class T>
class Strips {
 public:
  Strips(const View& view, const Rows& rows, int k)
      : view_(view),
        rows_(rows),
        k_(k),
        contiguous_(contiguous(rows, k)),
        buffer_(padded(rows_per_strip(rows) * rows.channels)) {}

  /// `count` rows from `row` on. `whole`: readable up to a whole group of lanes.
  const T* read(std::int64_t sample, std::int64_t row, std::int64_t count, bool whole) {
    const std::int64_t c = rows_.channels;
    if (contiguous_ && (!whole || count * c % kLanes == 0) && view_.dtype == dtype_of<T>)
      return reinterpret_cast<const T*>(at(view_, row_offset(rows_, k_, sample, row)));
    if (contiguous_) {
      load(at(view_, row_offset(rows_, k_, sample, row)), view_.dtype, 1, count * c,
           buffer_.data());
    } else {
      for (std::int64_t r = 0; r < count; ++r)
        load(at(view_, row_offset(rows_, k_, sample, row + r)), view_.dtype,
             rows_.channel_stride[k_], c, buffer_.data() + r * c);
    }
    return buffer_.data();
  }
  /// Where to write `count` rows, in whole groups of lanes; finished by write().
  T* target(std::int64_t sample, std::int64_t row, std::int64_t count) {
    in_place_ = contiguous_ && count * rows_.channels % kLanes == 0 && view_.dtype == dtype_of<T>;
    return in_place_ ? reinterpret_cast<T*>(at(view_, row_offset(rows_, k_, sample, row)))
                     : buffer_.data();
  }
  void write(std::int64_t sample, std::int64_t row, std::int64_t count) {
    if (in_place_) return;
    const std::int64_t c = rows_.channels;
    for (std::int64_t r = 0; r < count; ++r)
      store(buffer_.data() + r * c, c, at(view_, row_offset(rows_, k_, sample, row + r)),
            view_.dtype, rows_.channel_stride[k_]);
  }

 private:
  const View& view_;
  const Rows& rows_;
  int k_;
  bool contiguous_;
  bool in_place_ = false;
  std::vector<T> buffer_;
};

/// f(j) for j < n, in vectors as far as they fill: for sums.
template <class F>
void for_each_lane(std::int64_t n, const F& f) {
  std::int64_t begin = 0;
  for (; begin + kLanes <= n; begin += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) f(begin + l);
  }
  for (; begin < n; ++begin) f(begin);
}

/// The same in whole groups alone, beyond n if need be: an element's bits depend on no neighbour.
template <class F>
void for_each_group(std::int64_t n, const F& f) {
  for (std::int64_t begin = 0; begin < n; begin += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) f(begin + l);
  }
}

inline Moments load_moments(const View& m, std::int64_t n, std::int64_t g) {
  const double* const p = m.as<double>() + n * m.strides[0] + g * m.strides[1];
  return {p[0], p[m.strides[2]], p[2 * m.strides[2]]};
}

inline void store_moments(const Moments& value, const View& m, std::int64_t n, std::int64_t g) {
  double* const p = m.as<double>() + n * m.strides[0] + g * m.strides[1];
  p[0] = value.count;
  p[m.strides[2]] = value.mean;
  p[2 * m.strides[2]] = value.m2;
}

inline void require_moments(const char* op,
                            const View& m,
                            std::int64_t samples,
                            std::int64_t groups) {
  if (m.dtype != DType::kFloat64 || !(m.shape == Shape{samples, groups, 3}))
    throw ShapeError(
        str(op, ": moments are ", m.shape, " ", name(m.dtype), ", needed are f64 [N, groups, 3]."));
}

/// Calls f.operator()<T, activation>().
template <class F>
void visit_norm(DType dtype, NormActivation activation, F&& f) {
  const auto with_type = [&]<class T>() {
    switch (activation) {
      case NormActivation::kNone:
        return f.template operator()<T, NormActivation::kNone>();
      case NormActivation::kRelu:
        return f.template operator()<T, NormActivation::kRelu>();
      case NormActivation::kSilu:
        return f.template operator()<T, NormActivation::kSilu>();
      case NormActivation::kGelu:
        return f.template operator()<T, NormActivation::kGelu>();
    }
  };
  if (!is_floating(dtype))
    throw DTypeError(
        str("group_norm: element type ", name(dtype), " is not a floating type. Cast it first."));
  if (dtype == DType::kFloat64) {
    with_type.template operator()<double>();
  } else {
    with_type.template operator()<float>();
  }
}

[[noreturn]] inline void throw_weights_on_cuda() {
  throw NotSupported(
      "group_norm: statistics are weighted in host memory alone. Leave the weights out, or move "
      "the tensors to the host.");
}

}  // namespace tessera::kernels::norm_rows
