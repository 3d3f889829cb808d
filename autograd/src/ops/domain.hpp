#pragma once

#include <algorithm>
#include <tessera/core/layout.hpp>

namespace tessera {

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

/// Boundaries of an output of size m where input boundary b becomes `map(b)`, clamped; the last
/// part takes what is left.
template <class Map>
Bounds mapped_bounds(const Bounds& from, std::int64_t m, Map map) {
  Bounds bounds;
  for (const std::int64_t b : from) bounds.push_back(std::clamp<std::int64_t>(map(b), 0, m));
  bounds.front() = 0;
  bounds.back() = m;
  return bounds;
}

/// The windows of a convolution or pooling, as static arguments: output j reads inputs j stride -
/// pad_lo + t dilation, t = 0 .. kernel - 1, in each domain dimension.
struct WindowGeometry {
  Dims kernel;
  Dims stride;
  Dims pad_lo;
  Dims pad_hi;
  Dims dilation;
  Dims size;  // domain of the op's result

  int dims() const { return kernel.size(); }
  /// Inputs that the outputs [j.lo, j.hi) read.
  Interval input_need(int d, Interval j) const {
    const std::int64_t lo = j.lo * stride[d] - pad_lo[d];
    return {lo, (j.hi - 1) * stride[d] - pad_lo[d] + dilation[d] * (kernel[d] - 1) + 1};
  }
  /// Outputs that read one of the inputs [i.lo, i.hi).
  Interval output_need(int d, Interval i) const {
    const std::int64_t reach = dilation[d] * (kernel[d] - 1);
    return {ceil_div(i.lo + pad_lo[d] - reach, stride[d]),
            floor_div(i.hi - 1 + pad_lo[d], stride[d]) + 1};
  }
};

/// `args` for a result with the domain of `like` [N, domain..., C].
template <class Args>
Args with_size(Args args, const Shape& like) {
  for (int d = 0; d < args.size.size(); ++d) args.size[d] = like[d + 1];
  return args;
}

/// Number of domain dimensions of [N, domain..., C]; throws ShapeError unless 1 to 3.
int domain_dims(const char* op, const Shape& shape);

/// An option list with one value per domain dimension: empty means `standard`, one value means all.
/// Throws ShapeError on another length, or values below `least`.
Dims per_dim(const char* op,
             const char* option,
             const Dims& values,
             int dims,
             std::int64_t standard,
             std::int64_t least);

}  // namespace tessera
