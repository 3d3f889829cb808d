#include <cub/device/device_radix_sort.cuh>

#include "device.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

/// Loops over the elements of a row, operands as given.
LoopNest row_nest(const char* op, const View& out, const View& in) {
  View rows[2] = {out, in};
  for (View& v : rows) {
    v.shape.erase(0);
    v.strides.erase(0);
  }
  const View* const views[] = {&rows[0], &rows[1]};
  return make_loop_nest(op, views);
}

/// First position in sorted keys whose key is at least `key`.
__device__ std::int64_t lower_bound(const std::int64_t* keys, std::int64_t n, std::int64_t key) {
  std::int64_t lo = 0;
  while (lo < n) {
    const std::int64_t middle = (lo + n) / 2;
    if (keys[middle] < key) {
      lo = middle + 1;
    } else {
      n = middle;
    }
  }
  return lo;
}

template <class Acc>
void scatter(const View& x,
             const std::int64_t* keys,
             const std::int64_t* positions,
             std::int64_t first,
             bool accumulate,
             const View& y) {
  const LoopNest row = row_nest("scatter_add_rows", y, x);
  const Memory in = memory(x), out = memory(y);
  const std::int64_t m = x.shape[0], in_stride = x.strides[0], out_stride = y.strides[0];
  each("scatter_add_rows", y.shape[0] * row.total, [=] __device__(std::int64_t i) {
    const std::int64_t r = i / row.total;
    std::int64_t offset[2];
    offsets_of(row, i % row.total, offset);
    const std::int64_t to = r * out_stride + offset[0];
    Acc sum = accumulate ? load_at<Acc>(out, to) : Acc(0);
    for (std::int64_t p = lower_bound(keys, m, r + first); p < m && keys[p] == r + first; ++p)
      sum += load_at<Acc>(in, positions[p] * in_stride + offset[1]);
    store_at<Acc>(out, to, sum);
  });
}

template <class T>
void take(const View& x, const View& index, std::int64_t first, const View& y) {
  const LoopNest row = row_nest("take_rows", y, x);
  const Memory in = memory(x), out = memory(y), at = memory(index);
  const std::int64_t rows = x.shape[0], in_stride = x.strides[0], out_stride = y.strides[0];
  const std::int64_t index_stride = index.strides[0];
  each("take_rows", y.shape[0] * row.total, [=] __device__(std::int64_t i) {
    const std::int64_t r = load_at<std::int64_t>(at, i / row.total * index_stride) - first;
    std::int64_t offset[2];
    offsets_of(row, i % row.total, offset);
    const bool present = r >= 0 && r < rows;
    store_at<T>(out, i / row.total * out_stride + offset[0],
                present ? load_at<T>(in, r * in_stride + offset[1]) : T(0));
  });
}

}  // namespace

void take_rows(const View& x, const View& index, std::int64_t first, const View& y) {
  visit_compute(y.dtype, [&]<class T>() { take<T>(x, index, first, y); });
}

void scatter_add_rows(
    const View& x, const View& index, std::int64_t first, bool accumulate, const View& y) {
  const std::int64_t m = x.shape[0];
  const Scratch<std::int64_t> memory_of(std::max<std::int64_t>(1, 4 * m));
  std::int64_t* const keys = memory_of.get();
  std::int64_t* const positions = keys + m;
  std::int64_t* const sorted_keys = positions + m;
  std::int64_t* const sorted_positions = sorted_keys + m;
  if (m > 0) {
    const Memory at = memory(index);
    const std::int64_t stride = index.strides[0];
    each("scatter_add_rows", m, [=] __device__(std::int64_t i) {
      keys[i] = load_at<std::int64_t>(at, i * stride);
      positions[i] = i;
    });
    // A stable sort: each row keeps its positions in rising order.
    std::size_t bytes = 0;
    check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted_keys, positions,
                                          sorted_positions, m, 0, 64, stream()),
          "scatter_add_rows");
    const Scratch<char> scratch(static_cast<std::int64_t>(bytes));
    check(cub::DeviceRadixSort::SortPairs(scratch.get(), bytes, keys, sorted_keys, positions,
                                          sorted_positions, m, 0, 64, stream()),
          "scatter_add_rows");
  }
  if (is_floating(y.dtype)) {
    scatter<double>(x, sorted_keys, sorted_positions, first, accumulate, y);
  } else {
    scatter<std::int64_t>(x, sorted_keys, sorted_positions, first, accumulate, y);
  }
}

}  // namespace tessera::kernels::cuda
