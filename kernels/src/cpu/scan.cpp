#include <algorithm>
#include <cmath>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/scan.hpp>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

View without(const View& v, int dim) {
  View result = v;
  result.shape.erase(dim);
  result.strides.erase(dim);
  return result;
}

const char* at(const View& v, std::int64_t offset) {
  return v.as<const char>() + offset * static_cast<std::int64_t>(size_of(v.dtype));
}
char* mutable_at(const View& v, std::int64_t offset) {
  return v.as<char>() + offset * static_cast<std::int64_t>(size_of(v.dtype));
}

/// Where an operand begins and how it goes on along the scanned dimension.
struct Walk {
  const View& view;
  std::int64_t first;
  std::int64_t step;
  Walk(const View& v, int dim, bool reverse)
      : view(v),
        first(reverse ? (v.shape[dim] - 1) * v.strides[dim] : 0),
        step(reverse ? -v.strides[dim] : v.strides[dim]) {}
};

/// One line, whose elements lie `step` apart.
template <class Acc>
void scan_line(
    const Walk& x, std::int64_t in, const Walk& y, std::int64_t out, std::int64_t n, Acc sum) {
  alignas(64) Acc values[kBlock];
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = std::min(kBlock, n - i);
    load(at(x.view, in + i * x.step), x.view.dtype, x.step, count, values);
    for (std::int64_t e = 0; e < count; ++e) values[e] = sum += values[e];
    store(values, count, mutable_at(y.view, out + i * y.step), y.view.dtype, y.step);
  }
}

/// `count` lines beside each other.
template <class Acc>
void scan_block(const Walk& x,
                std::int64_t in,
                std::int64_t in_stride,
                const Walk& y,
                std::int64_t out,
                std::int64_t out_stride,
                std::int64_t n,
                std::int64_t count,
                Acc* sum) {
  alignas(64) Acc values[kBlock];
  for (std::int64_t i = 0; i < n; ++i) {
    load(at(x.view, in + i * x.step), x.view.dtype, in_stride, count, values);
    for (std::int64_t e = 0; e < count; ++e) sum[e] += values[e];
    store(sum, count, mutable_at(y.view, out + i * y.step), y.view.dtype, out_stride);
  }
}

template <class Acc>
void scan(const View& x, int dim, bool reverse, const View& start, const View& y) {
  const Walk in(x, dim, reverse);
  const Walk out(y, dim, reverse);
  const View lines_in = without(x, dim);
  const View lines_out = without(y, dim);
  const View starts = start.data != nullptr ? without(start, dim) : lines_out;
  const View* const views[] = {&lines_out, &lines_in, &starts};
  const LoopNest nest = make_loop_nest("cumsum", views);
  const int last = nest.dims - 1;
  const std::int64_t n = x.shape[dim];
  // Lines that are dense go one by one, others side by side.
  const bool single = std::abs(x.strides[dim]) == 1 || nest.size[last] == 1;
  parallel_chunks(nest.total, n, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc sum[kBlock];
    while (begin < end) {
      const std::int64_t row = nest.size[last] - begin % nest.size[last];
      const std::int64_t count = single ? 1 : std::min({kBlock, row, end - begin});
      const std::int64_t to = out.first + nest_offset(nest, 0, begin);
      const std::int64_t from = in.first + nest_offset(nest, 1, begin);
      if (start.data != nullptr) {
        load(at(start, nest_offset(nest, 2, begin)), start.dtype, nest.stride[2][last], count, sum);
      } else {
        std::fill_n(sum, count, Acc(0));
      }
      if (count == 1) {
        scan_line(in, from, out, to, n, sum[0]);
      } else {
        scan_block(in, from, nest.stride[1][last], out, to, nest.stride[0][last], n, count, sum);
      }
      begin += count;
    }
  });
}

}  // namespace

void cumulative_sum(const View& x, int dim, bool reverse, const View& start, const View& y) {
  if (x.dtype != y.dtype || x.dtype == DType::kBool) {
    throw DTypeError(str("cumsum: element types ", name(x.dtype), " and ", name(y.dtype),
                         " have no running sum. Cast to one type other than bool."));
  }
  if (!(x.shape == y.shape) || dim < 0 || dim >= x.dims())
    throw ShapeError(
        str("cumsum: ", x.shape, " along dimension ", dim, " does not fill ", y.shape, "."));
  if (dry_run() || y.empty()) return;
  if (is_floating(x.dtype)) {
    scan<double>(x, dim, reverse, start, y);
  } else {
    scan<std::int64_t>(x, dim, reverse, start, y);
  }
}

}  // namespace tessera::kernels
