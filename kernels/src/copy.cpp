#include <algorithm>
#include <cstring>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "device.hpp"
#include "functors/binary.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

// A transposition reads or writes against the grain; tiles of this many elements a side stay in
// cache.
constexpr std::int64_t kTile = 32;

struct Plane {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t out_row;  // strides in elements; columns of the output are dense
  std::int64_t in_row;
  std::int64_t in_column;
};

template <class T>
void transpose_plane(const Plane& p, const T* x, T* y, std::int64_t r0, std::int64_t r1) {
  for (std::int64_t c0 = 0; c0 < p.columns; c0 += kTile) {
    const std::int64_t c1 = std::min(p.columns, c0 + kTile);
    for (std::int64_t r = r0; r < r1; ++r)
      for (std::int64_t c = c0; c < c1; ++c)
        y[r * p.out_row + c] = x[r * p.in_row + c * p.in_column];
  }
}

template <class T>
void copy_row(const T* x, std::int64_t stride, T* y, std::int64_t out_stride, std::int64_t n) {
  if (stride == 1 && out_stride == 1) {
    std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(T));
  } else if (stride == 0 && out_stride == 1) {
    std::fill_n(y, n, *x);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i * out_stride] = x[i * stride];
  }
}

/// Steps through the rows (innermost dimension) of input and output without a division per row:
/// faces of a domain have rows of a few channels.
class RowWalk {
 public:
  RowWalk(const LoopNest& nest, std::int64_t linear) : nest_(nest) {
    for (int d = nest.dims - 1; d >= 0; --d) {
      index_[d] = linear % nest.size[d];
      linear /= nest.size[d];
      for (int k = 0; k < 2; ++k) offset_[k] += index_[d] * nest.stride[k][d];
    }
  }
  std::int64_t out() const { return offset_[0]; }
  std::int64_t in() const { return offset_[1]; }
  /// Elements up to the end of the row.
  std::int64_t left() const { return nest_.size[nest_.dims - 1] - index_[nest_.dims - 1]; }
  /// n elements on, at most left().
  void advance(std::int64_t n) {
    int d = nest_.dims - 1;
    move(d, n);
    while (d > 0 && index_[d] == nest_.size[d]) {
      move(d, -nest_.size[d]);
      move(--d, 1);
    }
  }

 private:
  void move(int d, std::int64_t n) {
    index_[d] += n;
    for (int k = 0; k < 2; ++k) offset_[k] += n * nest_.stride[k][d];
  }

  const LoopNest& nest_;
  std::int64_t index_[kMaxDims] = {};
  std::int64_t offset_[2] = {};
};

/// Same element type on both sides: only its width matters.
template <class T>
void copy_bits(const LoopNest& nest, const T* x, T* y) {
  const int last = nest.dims - 1;
  const std::int64_t inner = nest.size[last];
  const std::int64_t out_stride = nest.stride[0][last];
  const std::int64_t in_stride = nest.stride[1][last];

  if (nest.dims >= 2 && out_stride == 1 && in_stride != 1 && in_stride != 0) {
    for (int d = last - 1; d >= 0; --d) {
      if (nest.stride[1][d] != 1) continue;
      const Plane plane{nest.size[d], inner, nest.stride[0][d], 1, in_stride};
      LoopNest outer = nest;
      outer.total /= plane.rows * plane.columns;
      outer.dims = 0;
      for (int e = 0; e < last; ++e) {
        if (e == d) continue;
        outer.size[outer.dims] = nest.size[e];
        for (int k = 0; k < 2; ++k) outer.stride[k][outer.dims] = nest.stride[k][e];
        ++outer.dims;
      }
      const std::int64_t strips = (plane.rows + kTile - 1) / kTile;
      parallel_chunks(strips * outer.total, kTile * inner, [&](std::int64_t b, std::int64_t e) {
        for (std::int64_t s = b; s < e; ++s) {
          const std::int64_t r0 = s % strips * kTile;
          transpose_plane(plane, x + nest_offset(outer, 1, s / strips),
                          y + nest_offset(outer, 0, s / strips), r0,
                          std::min(plane.rows, r0 + kTile));
        }
      });
      return;
    }
  }

  parallel_chunks(nest.total, 1, [&](std::int64_t b, std::int64_t e) {
    RowWalk walk(nest, b);
    while (b < e) {
      const std::int64_t n = std::min(e - b, walk.left());
      copy_row(x + walk.in(), in_stride, y + walk.out(), out_stride, n);
      walk.advance(n);
      b += n;
    }
  });
}

}  // namespace

void copy(const View& x, const View& y) {
  if (dry_run()) return;
  if (on_cuda(y) || on_cuda(x)) return cuda::copy(x, y);
  if (x.dtype != y.dtype) {
    // Through 64 bits: exact between integers, and one rounding where a float type ends.
    const bool integers = !is_floating(x.dtype) && !is_floating(y.dtype);
    if (integers) return map_functor<std::int64_t>("copy", Identity<std::int64_t>{}, y, x);
    const auto narrow = [](DType t) { return t == DType::kFloat32 || t == DType::kBFloat16; };
    if (narrow(x.dtype) && narrow(y.dtype))
      return map_functor<float>("copy", Identity<float>{}, y, x);
    return map_functor<double>("copy", Identity<double>{}, y, x);
  }
  const View* const views[] = {&y, &x};
  const LoopNest nest = make_loop_nest("copy", views);
  if (nest.total == 0) return;
  switch (size_of(x.dtype)) {
    case 1:
      return copy_bits(nest, x.as<std::uint8_t>(), y.as<std::uint8_t>());
    case 2:
      return copy_bits(nest, x.as<std::uint16_t>(), y.as<std::uint16_t>());
    case 4:
      return copy_bits(nest, x.as<std::uint32_t>(), y.as<std::uint32_t>());
    default:
      return copy_bits(nest, x.as<std::uint64_t>(), y.as<std::uint64_t>());
  }
}

}  // namespace tessera::kernels
