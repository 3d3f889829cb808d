#include <algorithm>
#include <cstring>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/index.hpp>
#include <vector>

#include "device.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

void check(const char* op, const View& rows, const View& index, const View& other) {
  if (index.dtype != DType::kInt32 && index.dtype != DType::kInt64) {
    throw DTypeError(str(op, ": indices are ", name(index.dtype), ", not i32 or i64. Cast them."));
  }
  if (rows.dtype != other.dtype) {
    throw DTypeError(str(op, ": element types ", name(rows.dtype), " and ", name(other.dtype),
                         " mix. Cast one."));
  }
  bool fits = index.dims() == 1 && rows.dims() >= 1 && rows.dims() == other.dims() &&
              rows.shape[0] == index.shape[0];
  for (int d = 1; fits && d < rows.dims(); ++d) fits = rows.shape[d] == other.shape[d];
  if (!fits) {
    throw ShapeError(str(op, ": ", rows.shape, ", index ", index.shape, " and ", other.shape,
                         " do not fit. Needed are [m, ...], [m], [n, ...]."));
  }
}

std::int64_t index_at(const View& index, std::int64_t i) {
  return index.dtype == DType::kInt64 ? index.as<std::int64_t>()[i * index.strides[0]]
                                      : index.as<std::int32_t>()[i * index.strides[0]];
}

View row_of(const View& v) {
  View row = v;
  row.shape.erase(0);
  row.strides.erase(0);
  return row;
}

char* at(const View& v, std::int64_t offset) {
  return v.as<char>() + offset * static_cast<std::int64_t>(size_of(v.dtype));
}

/// f(offset in operand 0, in operand 1, elements) for the pieces of a row along its last loop.
template <class F>
void each_piece(const LoopNest& row, F&& f) {
  const std::int64_t inner = row.size[row.dims - 1];
  for (std::int64_t i = 0; i < row.total; i += inner)
    f(nest_offset(row, 0, i), nest_offset(row, 1, i), inner);
}

template <class T>
void copy_piece(const T* x, std::int64_t x_stride, T* y, std::int64_t y_stride, std::int64_t n) {
  if (x_stride == 1 && y_stride == 1) {
    std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(T));
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i * y_stride] = x[i * x_stride];
  }
}

template <class T>
void take(
    const View& x, const View& index, std::int64_t first, const View& y, const LoopNest& row) {
  const int last = row.dims - 1;
  parallel_chunks(index.shape[0], row.total, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = index_at(index, i) - first;
      const bool present = r >= 0 && r < x.shape[0];
      const T* const from = x.as<T>() + (present ? r * x.strides[0] : 0);
      T* const to = y.as<T>() + i * y.strides[0];
      each_piece(row, [&](std::int64_t out, std::int64_t in, std::int64_t n) {
        if (present) {
          copy_piece(from + in, row.stride[1][last], to + out, row.stride[0][last], n);
        } else {
          for (std::int64_t j = 0; j < n; ++j) to[out + j * row.stride[0][last]] = T(0);
        }
      });
    }
  });
}

/// For each row of y the positions in `index` that name it, in rising order.
struct Lists {
  std::vector<std::int64_t> begin;  // [rows + 1]
  std::vector<std::int64_t> position;
};

Lists make_lists(const View& index, std::int64_t first, std::int64_t rows) {
  Lists lists;
  lists.begin.assign(static_cast<std::size_t>(rows + 1), 0);
  const std::int64_t m = index.shape[0];
  const auto row = [&](std::int64_t i) { return index_at(index, i) - first; };
  for (std::int64_t i = 0; i < m; ++i)
    if (const std::int64_t r = row(i); r >= 0 && r < rows)
      ++lists.begin[static_cast<std::size_t>(r) + 1];
  for (std::size_t r = 1; r < lists.begin.size(); ++r) lists.begin[r] += lists.begin[r - 1];
  lists.position.resize(static_cast<std::size_t>(lists.begin.back()));
  std::vector<std::int64_t> next(lists.begin.begin(), lists.begin.end() - 1);
  for (std::int64_t i = 0; i < m; ++i)
    if (const std::int64_t r = row(i); r >= 0 && r < rows)
      lists.position[static_cast<std::size_t>(next[static_cast<std::size_t>(r)]++)] = i;
  return lists;
}

template <class T>
void scatter(const View& x,
             const View& index,
             std::int64_t first,
             bool accumulate,
             const View& y,
             const LoopNest& row) {
  using Acc = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
  const Lists lists = make_lists(index, first, y.shape[0]);
  const int last = row.dims - 1;
  const std::int64_t cost =
      row.total * (1 + index.shape[0] / std::max<std::int64_t>(1, y.shape[0]));
  parallel_chunks(y.shape[0], cost, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc acc[kBlock];
    alignas(64) Acc value[kBlock];
    for (std::int64_t r = begin; r < end; ++r) {
      const auto from = lists.begin[static_cast<std::size_t>(r)];
      const auto to = lists.begin[static_cast<std::size_t>(r) + 1];
      if (from == to && accumulate) continue;
      each_piece(row, [&](std::int64_t out, std::int64_t in, std::int64_t inner) {
        for (std::int64_t j = 0; j < inner; j += kBlock) {
          const std::int64_t n = std::min(kBlock, inner - j);
          const std::int64_t out_stride = row.stride[0][last];
          const std::int64_t in_stride = row.stride[1][last];
          char* const sum = at(y, r * y.strides[0] + out + j * out_stride);
          if (accumulate) {
            load(sum, y.dtype, out_stride, n, acc);
          } else {
            std::fill_n(acc, n, Acc(0));
          }
          for (std::int64_t p = from; p < to; ++p) {
            const std::int64_t i = lists.position[static_cast<std::size_t>(p)];
            load(at(x, i * x.strides[0] + in + j * in_stride), x.dtype, in_stride, n, value);
            for (std::int64_t e = 0; e < n; ++e) acc[e] += value[e];
          }
          store(acc, n, sum, y.dtype, out_stride);
        }
      });
    }
  });
}

LoopNest row_nest(const char* op, const View& out, const View& in) {
  const View out_row = row_of(out);
  const View in_row = row_of(in);
  const View* const views[] = {&out_row, &in_row};
  return make_loop_nest(op, views);
}

}  // namespace

void take_rows(const View& x, const View& index, std::int64_t first, const View& y) {
  check("take_rows", y, index, x);
  if (y.empty()) return;
  if (on_cuda(y)) return cuda::take_rows(x, index, first, y);
  const LoopNest row = row_nest("take_rows", y, x);
  switch (size_of(y.dtype)) {
    case 1:
      return take<std::uint8_t>(x, index, first, y, row);
    case 2:
      return take<std::uint16_t>(x, index, first, y, row);
    case 4:
      return take<std::uint32_t>(x, index, first, y, row);
    default:
      return take<std::uint64_t>(x, index, first, y, row);
  }
}

void scatter_add_rows(
    const View& x, const View& index, std::int64_t first, bool accumulate, const View& y) {
  check("scatter_add_rows", x, index, y);
  if (y.empty()) return;
  if (on_cuda(y)) return cuda::scatter_add_rows(x, index, first, accumulate, y);
  if (x.empty()) {
    if (!accumulate) fill(y, 0.0);
    return;
  }
  const LoopNest row = row_nest("scatter_add_rows", y, x);
  visit_compute_type(y.dtype, [&]<class T>() { scatter<T>(x, index, first, accumulate, y, row); });
}

}  // namespace tessera::kernels
