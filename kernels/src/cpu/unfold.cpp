#include <algorithm>
#include <tessera/kernels/unfold.hpp>
#include <type_traits>

#include "cpu/grid.hpp"

namespace tessera::kernels {

namespace {

using cpu::Grid;

/// Channels that are summed at a time.
constexpr std::int64_t kBlock = 64;

/// A piece [N, d..., taps, C] without its taps.
struct Windows {
  Piece pixels;
  std::int64_t taps = 0;
  std::int64_t step = 0;  // from tap to tap

  explicit Windows(const Piece& y) : pixels(y) {
    const int dim = y.view.dims() - 2;
    taps = y.view.shape[dim];
    step = y.view.strides[dim];
    pixels.view.shape.erase(dim);
    pixels.view.strides.erase(dim);
    pixels.box.lo.erase(dim);
    pixels.box.hi.erase(dim);
    pixels.global.erase(dim);
  }
};

void check(const char* op, const UnfoldGeometry& g, const Piece& x, const Piece& y) {
  const int dims = g.dims();
  if (dims < 1 || dims > 3 || x.view.dims() != dims + 2 || y.view.dims() != dims + 3 ||
      y.view.shape[dims + 1] != g.kernel.product() || g.stride.size() != dims ||
      g.pad_lo.size() != dims || g.dilation.size() != dims) {
    throw ShapeError(str(op, ": x ", x.view.shape, " and windows ", y.view.shape,
                         " do not fit a kernel ", g.kernel,
                         ". Give x [N, domain..., C] and windows [N, domain..., taps, C]."));
  }
  if (x.view.dtype != y.view.dtype)
    throw DTypeError(str(op, ": element types ", name(x.view.dtype), " and ", name(y.view.dtype),
                         " are mixed. Use cast()."));
}

/// One domain dimension; missing leading ones have a kernel of 1.
struct Axis {
  std::int64_t kernel = 1, stride = 1, pad_lo = 0, dilation = 1;
};

std::array<Axis, 3> axes_of(const UnfoldGeometry& g) {
  std::array<Axis, 3> axes;
  for (int d = 0; d < g.dims(); ++d)
    axes[static_cast<std::size_t>(3 - g.dims() + d)] = {g.kernel[d], g.stride[d], g.pad_lo[d],
                                                        g.dilation[d]};
  return axes;
}

/// f(t, t0, t1, t2) for the taps in row-major order.
template <class F>
void for_each_tap(const std::array<Axis, 3>& axes, const F& f) {
  std::int64_t t = 0;
  for (std::int64_t t0 = 0; t0 < axes[0].kernel; ++t0)
    for (std::int64_t t1 = 0; t1 < axes[1].kernel; ++t1)
      for (std::int64_t t2 = 0; t2 < axes[2].kernel; ++t2) f(t++, t0, t1, t2);
}

bool holds(const Grid& grid, std::int64_t i0, std::int64_t i1, std::int64_t i2) {
  return grid.box[1].contains({i0, i0 + 1}) && grid.box[2].contains({i1, i1 + 1}) &&
         grid.box[3].contains({i2, i2 + 1});
}

template <class T>
void unfold_of(const UnfoldGeometry& g, const Piece& x, const Piece& y) {
  const Windows windows(y);
  const Grid in(x), out(windows.pixels);
  const std::array<Axis, 3> axes = axes_of(g);
  const T* const source = x.view.as<T>() + (out.box[4].lo - in.box[4].lo) * in.stride[4];
  T* const target = y.view.as<T>();
  const std::int64_t channels = out.channels();
  out.for_each_row(static_cast<double>(windows.taps), [&](std::int64_t n, std::int64_t j0,
                                                          std::int64_t j1) {
    for (std::int64_t j2 = out.box[3].lo; j2 < out.box[3].hi; ++j2) {
      T* const pixel = target + out.at(n, j0, j1, j2);
      for_each_tap(axes, [&](std::int64_t t, std::int64_t t0, std::int64_t t1, std::int64_t t2) {
        const auto input = [](const Axis& a, std::int64_t j, std::int64_t tap) {
          return j * a.stride - a.pad_lo + tap * a.dilation;
        };
        const std::int64_t i0 = input(axes[0], j0, t0), i1 = input(axes[1], j1, t1),
                           i2 = input(axes[2], j2, t2);
        T* const to = pixel + t * windows.step;
        if (!holds(in, i0, i1, i2)) {
          for (std::int64_t c = 0; c < channels; ++c) to[c * out.stride[4]] = T{};
          return;
        }
        const T* const from = source + in.at(n, i0, i1, i2);
        for (std::int64_t c = 0; c < channels; ++c) to[c * out.stride[4]] = from[c * in.stride[4]];
      });
    }
  });
}

template <class T>
void fold_of(const UnfoldGeometry& g, const Piece& y, const Piece& x) {
  using Sum = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  const Windows windows(y);
  const Grid in(windows.pixels), out(x);
  const std::array<Axis, 3> axes = axes_of(g);
  const T* const source = y.view.as<T>() + (out.box[4].lo - in.box[4].lo) * in.stride[4];
  T* const target = x.view.as<T>();
  out.for_each_row(static_cast<double>(windows.taps), [&](std::int64_t n, std::int64_t i0,
                                                          std::int64_t i1) {
    for (std::int64_t i2 = out.box[3].lo; i2 < out.box[3].hi; ++i2) {
      T* const to = target + out.at(n, i0, i1, i2);
      for (std::int64_t c0 = 0; c0 < out.channels(); c0 += kBlock) {
        const std::int64_t count = std::min(kBlock, out.channels() - c0);
        Sum sum[kBlock]{};
        for_each_tap(axes, [&](std::int64_t t, std::int64_t t0, std::int64_t t1, std::int64_t t2) {
          // Output j times the stride, if there is one.
          const auto reach = [](const Axis& a, std::int64_t i, std::int64_t tap) {
            return i + a.pad_lo - tap * a.dilation;
          };
          const std::int64_t r0 = reach(axes[0], i0, t0), r1 = reach(axes[1], i1, t1),
                             r2 = reach(axes[2], i2, t2);
          if (r0 % axes[0].stride != 0 || r1 % axes[1].stride != 0 || r2 % axes[2].stride != 0)
            return;
          const std::int64_t j0 = r0 / axes[0].stride, j1 = r1 / axes[1].stride,
                             j2 = r2 / axes[2].stride;
          if (!holds(in, j0, j1, j2)) return;
          const T* const from =
              source + in.at(n, j0, j1, j2) + t * windows.step + c0 * in.stride[4];
          for (std::int64_t c = 0; c < count; ++c)
            sum[c] += static_cast<Sum>(from[c * in.stride[4]]);
        });
        for (std::int64_t c = 0; c < count; ++c) to[(c0 + c) * out.stride[4]] = T(sum[c]);
      }
    }
  });
}

}  // namespace

void unfold(const UnfoldGeometry& g, const Piece& x, const Piece& y) {
  check("unfold", g, x, y);
  if (y.view.empty()) return;
  visit_floating("unfold", x.view.dtype, [&]<class T>() { unfold_of<T>(g, x, y); });
}

void fold(const UnfoldGeometry& g, const Piece& y, const Piece& x) {
  check("fold", g, x, y);
  if (x.view.empty()) return;
  visit_floating("fold", x.view.dtype, [&]<class T>() { fold_of<T>(g, y, x); });
}

}  // namespace tessera::kernels
