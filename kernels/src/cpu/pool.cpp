#include <algorithm>
#include <limits>
#include <tessera/kernels/pool.hpp>
#include <type_traits>

#include "cpu/separable.hpp"
#include "cpu/tap_regions.hpp"

namespace tessera::kernels {

namespace {

using cpu::ceil_div;
using cpu::floor_div;
using cpu::Grid;
using cpu::TapTable;

/// The window of one domain dimension.
struct Axis {
  std::int64_t kernel = 1, stride = 1, pad_lo = 0, pad_hi = 0, dilation = 1;
  std::int64_t elements = 0, bins = 0;  // adaptive: of inputs and outputs

  std::int64_t input(std::int64_t j, std::int64_t t) const {
    return bins > 0 ? adaptive_inputs(elements, bins, {j, j + 1}).lo + t
                    : j * stride - pad_lo + t * dilation;
  }
  /// Number of inputs of output j.
  std::int64_t taps(std::int64_t j) const {
    return bins > 0 ? adaptive_inputs(elements, bins, {j, j + 1}).size() : kernel;
  }
  /// Outputs that may read input i, in a hull.
  Interval readers(std::int64_t i) const {
    if (bins > 0) return adaptive_outputs(elements, bins, {i, i + 1});
    const std::int64_t reach = (kernel - 1) * dilation;
    return {ceil_div(i + pad_lo - reach, stride), floor_div(i + pad_lo, stride) + 1};
  }
};

using Axes = std::array<Axis, 3>;

/// The windows over x [N, domain..., C] of this domain; `p` is a piece of x or y.
Axes axes(const char* op, const PoolGeometry& g, const Piece& p, const Shape& x) {
  const int dims = g.dims();
  Axes result;
  if (!g.bins.empty()) {
    for (int d = 0; d < dims; ++d) {
      Axis& a = result[static_cast<std::size_t>(3 - dims + d)];
      a.elements = x[d + 1];
      a.bins = g.bins[d];
    }
    return result;
  }
  if (dims != p.view.dims() - 2 || g.stride.size() != dims || g.pad_lo.size() != dims ||
      g.pad_hi.size() != dims || g.dilation.size() != dims)
    throw ShapeError(str(op, ": kernel ", g.kernel, ", stride ", g.stride, ", padding ", g.pad_lo,
                         " and ", g.pad_hi, ", dilation ", g.dilation,
                         " do not describe the domain dimensions of ", p.view.shape,
                         ". Give one value per dimension."));
  for (int d = 0; d < dims; ++d) {
    const Axis a{g.kernel[d], g.stride[d], g.pad_lo[d], g.pad_hi[d], g.dilation[d]};
    if (a.kernel < 1 || a.stride < 1 || a.dilation < 1)
      throw ShapeError(str(op, ": kernel, stride and dilation must be at least 1."));
    result[static_cast<std::size_t>(3 - dims + d)] = a;
  }
  return result;
}

/// Inputs of each output of [out), among those of [in), ascending.
TapTable window_table(const Axis& a, Interval in, Interval out) {
  TapTable table;
  for (std::int64_t j = out.lo; j < out.hi; ++j) {
    for (std::int64_t t = 0; t < a.taps(j); ++t) {
      const std::int64_t i = a.input(j, t);
      if (i >= in.lo && i < in.hi) table.taps.push_back({i, 1});
    }
    table.close_output();
  }
  return table;
}

/// Outputs of [out) that read each input of [in), ascending.
TapTable reader_table(const Axis& a, Interval in, Interval out) {
  TapTable table;
  for (std::int64_t i = in.lo; i < in.hi; ++i) {
    const Interval readers = intersect(a.readers(i), out);
    for (std::int64_t j = readers.lo; j < readers.hi; ++j)
      if ((i - a.input(j, 0)) % a.dilation == 0) table.taps.push_back({j, 1});
    table.close_output();
  }
  return table;
}

/// Elements of window j that count for the average of a domain of n inputs.
double divisor(const Axis& a, std::int64_t n, std::int64_t j, bool count_include_pad) {
  const Interval counted = count_include_pad ? Interval{-a.pad_lo, n + a.pad_hi} : Interval{0, n};
  std::int64_t count = 0;
  for (std::int64_t t = 0; t < a.taps(j); ++t)
    if (const std::int64_t i = a.input(j, t); i >= counted.lo && i < counted.hi) ++count;
  return static_cast<double>(std::max<std::int64_t>(count, 1));
}

template <class T>
auto widen(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

/// Channels that are worked on at a time.
constexpr std::int64_t kBlock = 64;

/// f(offset of the input pixel, its linear position in the domain) for the window of one pixel.
template <class F>
void for_each_input(const std::array<TapTable, 3>& tables,
                    const Grid& in,
                    const std::array<std::int64_t, 3>& domain,
                    std::int64_t n,
                    const std::array<std::size_t, 3>& o,
                    const F& f) {
  for (std::size_t a = tables[0].begin[o[0]]; a < tables[0].begin[o[0] + 1]; ++a)
    for (std::size_t b = tables[1].begin[o[1]]; b < tables[1].begin[o[1] + 1]; ++b)
      for (std::size_t c = tables[2].begin[o[2]]; c < tables[2].begin[o[2] + 1]; ++c) {
        const std::int64_t i0 = tables[0].taps[a].input, i1 = tables[1].taps[b].input,
                           i2 = tables[2].taps[c].input;
        f(in.at(n, i0, i1, i2), (i0 * domain[1] + i1) * domain[2] + i2);
      }
}

template <class T>
void max_forward(const Axes& window, const Piece& x, const Piece& y, const Piece& index) {
  const Grid in(x), out(y), out_index(index);
  std::array<TapTable, 3> tables;
  for (std::size_t d = 0; d < 3; ++d)
    tables[d] = window_table(window[d], in.box[d + 1], out.box[d + 1]);
  const T* source = x.view.as<T>() + (out.box[4].lo - in.box[4].lo) * in.stride[4];
  T* target = y.view.as<T>();
  auto* winner = index.view.as<std::int64_t>();
  const double work =
      static_cast<double>(tables[0].longest() * tables[1].longest() * tables[2].longest());
  out.for_each_row(work, [&](std::int64_t n, std::int64_t i0, std::int64_t i1) {
    for (std::int64_t i2 = out.box[3].lo; i2 < out.box[3].hi; ++i2) {
      const std::array<std::size_t, 3> o{static_cast<std::size_t>(i0 - out.box[1].lo),
                                         static_cast<std::size_t>(i1 - out.box[2].lo),
                                         static_cast<std::size_t>(i2 - out.box[3].lo)};
      T* to = target + out.at(n, i0, i1, i2);
      std::int64_t* to_index = winner + out_index.at(n, i0, i1, i2);
      for (std::int64_t c0 = 0; c0 < out.channels(); c0 += kBlock) {
        const std::int64_t count = std::min(kBlock, out.channels() - c0);
        decltype(widen(T{})) best[kBlock];
        std::int64_t best_at[kBlock];
        std::fill_n(best, kBlock, -std::numeric_limits<decltype(widen(T{}))>::infinity());
        std::fill_n(best_at, kBlock, std::int64_t{-1});
        const auto visit = [&](const T* from, std::int64_t step, std::int64_t position) {
          for (std::int64_t c = 0; c < count; ++c) {
            const auto v = widen(from[c * step]);
            // greater, the first one, or the first NaN
            const bool take = (best_at[c] < 0) | (!(v <= best[c]) & (best[c] == best[c]));
            best[c] = take ? v : best[c];
            best_at[c] = take ? position : best_at[c];
          }
        };
        for_each_input(tables, in, in.domain, n, o,
                       [&](std::int64_t offset, std::int64_t position) {
                         const T* from = source + offset + c0 * in.stride[4];
                         if (in.stride[4] == 1) {
                           visit(from, 1, position);
                         } else {
                           visit(from, in.stride[4], position);
                         }
                       });
        for (std::int64_t c = 0; c < count; ++c) {
          to[(c0 + c) * out.stride[4]] = T(best[c]);
          to_index[(c0 + c) * out_index.stride[4]] = best_at[c];
        }
      }
    }
  });
}

template <class T>
void max_gather(const Piece& v, const Piece& index, const Piece& y) {
  const Grid in(v), out(y), at(index);
  const T* source = v.view.as<T>();
  const auto* winner = index.view.as<std::int64_t>();
  T* target = y.view.as<T>();
  out.for_each_row(4, [&](std::int64_t n, std::int64_t i0, std::int64_t i1) {
    for (std::int64_t i2 = out.box[3].lo; i2 < out.box[3].hi; ++i2)
      for (std::int64_t c = 0; c < out.channels(); ++c) {
        const std::int64_t position = winner[at.at(n, i0, i1, i2) + c * at.stride[4]];
        T* to = target + out.at(n, i0, i1, i2) + c * out.stride[4];
        *to = T{};
        if (position < 0) continue;
        const std::int64_t j2 = position % in.domain[2], q = position / in.domain[2];
        const std::int64_t j1 = q % in.domain[1], j0 = q / in.domain[1];
        if (in.box[1].contains({j0, j0 + 1}) && in.box[2].contains({j1, j1 + 1}) &&
            in.box[3].contains({j2, j2 + 1}))
          *to = source[in.at(n, j0, j1, j2) + (out.box[4].lo + c - in.box[4].lo) * in.stride[4]];
      }
  });
}

template <class T>
void max_input_grad(const Axes& window, const Piece& dy, const Piece& index, const Piece& dx) {
  const Grid in(dy), in_index(index), out(dx);
  std::array<TapTable, 3> tables;
  for (std::size_t d = 0; d < 3; ++d)
    tables[d] = reader_table(window[d], out.box[d + 1], in.box[d + 1]);
  const std::int64_t channel = out.box[4].lo - in.box[4].lo;
  const T* source = dy.view.as<T>() + channel * in.stride[4];
  const auto* winner = index.view.as<std::int64_t>() + channel * in_index.stride[4];
  T* target = dx.view.as<T>();
  const double work =
      static_cast<double>(tables[0].longest() * tables[1].longest() * tables[2].longest());
  out.for_each_row(work, [&](std::int64_t n, std::int64_t i0, std::int64_t i1) {
    for (std::int64_t i2 = out.box[3].lo; i2 < out.box[3].hi; ++i2) {
      const std::array<std::size_t, 3> o{static_cast<std::size_t>(i0 - out.box[1].lo),
                                         static_cast<std::size_t>(i1 - out.box[2].lo),
                                         static_cast<std::size_t>(i2 - out.box[3].lo)};
      const std::int64_t self = (i0 * out.domain[1] + i1) * out.domain[2] + i2;
      T* to = target + out.at(n, i0, i1, i2);
      for (std::int64_t c0 = 0; c0 < out.channels(); c0 += kBlock) {
        const std::int64_t count = std::min(kBlock, out.channels() - c0);
        decltype(widen(T{})) sum[kBlock]{};
        for (std::size_t a = tables[0].begin[o[0]]; a < tables[0].begin[o[0] + 1]; ++a)
          for (std::size_t b = tables[1].begin[o[1]]; b < tables[1].begin[o[1] + 1]; ++b)
            for (std::size_t e = tables[2].begin[o[2]]; e < tables[2].begin[o[2] + 1]; ++e) {
              const std::int64_t j0 = tables[0].taps[a].input, j1 = tables[1].taps[b].input,
                                 j2 = tables[2].taps[e].input;
              const T* from = source + in.at(n, j0, j1, j2) + c0 * in.stride[4];
              const std::int64_t* at =
                  winner + in_index.at(n, j0, j1, j2) + c0 * in_index.stride[4];
              for (std::int64_t c = 0; c < count; ++c)
                sum[c] += at[c * in_index.stride[4]] == self ? widen(from[c * in.stride[4]])
                                                             : decltype(widen(T{})){};
            }
        for (std::int64_t c = 0; c < count; ++c) to[(c0 + c) * out.stride[4]] = T(sum[c]);
      }
    }
  });
}

void check_index(const char* op, const Piece& y, const Piece& index) {
  if (index.view.dtype != DType::kInt64 || !(index.box == y.box))
    throw ShapeError(str(op, ": the index piece has type ", name(index.view.dtype), " and box ",
                         index.box, "; it must be i64 with the box ", y.box,
                         " of the pooled values."));
}

}  // namespace

std::int64_t pool_size(const PoolGeometry& g, int dim, std::int64_t n, bool ceil_mode) {
  const std::int64_t room =
      n + g.pad_lo[dim] + g.pad_hi[dim] - g.dilation[dim] * (g.kernel[dim] - 1) - 1;
  if (room < 0) return 0;
  const std::int64_t s = g.stride[dim];
  if (!ceil_mode) return room / s + 1;
  std::int64_t m = ceil_div(room, s) + 1;
  while (m > 1 && (m - 1) * s >= n + g.pad_lo[dim]) --m;
  return m;
}

Interval adaptive_inputs(std::int64_t n, std::int64_t m, Interval j) {
  return {floor_div(j.lo * n, m), ceil_div(j.hi * n, m)};
}

Interval adaptive_outputs(std::int64_t n, std::int64_t m, Interval i) {
  return {floor_div(i.lo * m, n), floor_div(i.hi * m - 1, n) + 1};
}

void check_pool_index(const PoolGeometry& g, const Shape& domain, const Piece& index) {
  const int dims = g.dims();
  if (index.view.dtype != DType::kInt64 || dims != index.view.dims() - 2 || domain.size() != dims)
    throw ShapeError(str("max_unpool: index ", index.view.shape, " of type ",
                         name(index.view.dtype), " does not name elements of a domain ", domain,
                         ". Pass what max_pool_with_index gave."));
  Shape x = index.global;
  std::array<std::int64_t, 3> sizes{1, 1, 1};
  for (int d = 0; d < dims; ++d) {
    x[d + 1] = domain[d];
    sizes[static_cast<std::size_t>(3 - dims + d)] = domain[d];
  }
  const Axes window = axes("max_unpool", g, index, x);
  const Grid grid(index);
  const auto* const values = index.view.as<std::int64_t>();
  const auto inside = [](const Axis& a, std::int64_t n, std::int64_t j, std::int64_t i) {
    const std::int64_t t = i - a.input(j, 0);
    return i >= 0 && i < n && t >= 0 && t % a.dilation == 0 && t / a.dilation < a.taps(j);
  };
  for (std::int64_t n = grid.box[0].lo; n < grid.box[0].hi; ++n)
    for (std::int64_t j0 = grid.box[1].lo; j0 < grid.box[1].hi; ++j0)
      for (std::int64_t j1 = grid.box[2].lo; j1 < grid.box[2].hi; ++j1)
        for (std::int64_t j2 = grid.box[3].lo; j2 < grid.box[3].hi; ++j2)
          for (std::int64_t c = 0; c < grid.channels(); ++c) {
            const std::int64_t i = values[grid.at(n, j0, j1, j2) + c * grid.stride[4]];
            if (i == -1) continue;
            const std::int64_t row = floor_div(i, sizes[2]);
            if (inside(window[0], sizes[0], j0, floor_div(row, sizes[1])) &&
                inside(window[1], sizes[1], j1, row - floor_div(row, sizes[1]) * sizes[1]) &&
                inside(window[2], sizes[2], j2, i - row * sizes[2]))
              continue;
            throw ShapeError(str("max_unpool: index ", i,
                                 " lies outside of the window of its "
                                 "place in a domain ",
                                 domain,
                                 ". Pass what max_pool_with_index gave for the same options."));
          }
}

void max_pool_forward(const PoolGeometry& g, const Piece& x, const Piece& y, const Piece& index) {
  cpu::check_pixels("max_pool", g.dims(), x, y);
  check_index("max_pool", y, index);
  const Axes window = axes("max_pool", g, x, x.global);
  if (y.view.empty()) return;
  visit_floating("max_pool", x.view.dtype, [&]<class T>() { max_forward<T>(window, x, y, index); });
}

void max_pool_gather(const Piece& v, const Piece& index, const Piece& y) {
  cpu::check_pixels("max_pool_gather", 0, v, y);
  check_index("max_pool_gather", y, index);
  if (y.view.empty()) return;
  visit_floating("max_pool_gather", v.view.dtype, [&]<class T>() { max_gather<T>(v, index, y); });
}

void max_pool_input_grad(const PoolGeometry& g,
                         const Piece& dy,
                         const Piece& index,
                         const Piece& dx) {
  cpu::check_pixels("max_pool_input_grad", g.dims(), dy, dx);
  check_index("max_pool_input_grad", dy, index);
  const Axes window = axes("max_pool_input_grad", g, dx, dx.global);
  if (dx.view.empty()) return;
  visit_floating("max_pool_input_grad", dy.view.dtype,
                 [&]<class T>() { max_input_grad<T>(window, dy, index, dx); });
}

void avg_pool_forward(const PoolGeometry& g,
                      const Piece& x,
                      const Piece& y,
                      bool count_include_pad) {
  cpu::check_pixels("avg_pool", g.dims(), x, y);
  const Axes window = axes("avg_pool", g, x, x.global);
  if (y.view.empty()) return;
  const Grid in(x), out(y);
  std::array<TapTable, 3> tables;
  for (std::size_t d = 0; d < 3; ++d) {
    tables[d] = window_table(window[d], in.box[d + 1], out.box[d + 1]);
    for (std::int64_t j = out.box[d + 1].lo; j < out.box[d + 1].hi; ++j)
      tables[d].divisor.push_back(divisor(window[d], in.domain[d], j, count_include_pad));
  }
  cpu::apply_separable(tables, x, y);
}

void avg_pool_input_grad(const PoolGeometry& g,
                         const Piece& dy,
                         const Piece& dx,
                         bool count_include_pad) {
  cpu::check_pixels("avg_pool_input_grad", g.dims(), dy, dx);
  const Axes window = axes("avg_pool_input_grad", g, dx, dx.global);
  if (dx.view.empty()) return;
  const Grid in(dy), out(dx);
  std::array<TapTable, 3> tables;
  for (std::size_t d = 0; d < 3; ++d) {
    tables[d] = reader_table(window[d], out.box[d + 1], in.box[d + 1]);
    for (TapTable::Tap& tap : tables[d].taps)
      tap.weight = 1 / divisor(window[d], out.domain[d], tap.input, count_include_pad);
  }
  cpu::apply_separable(tables, dy, dx);
}

}  // namespace tessera::kernels
