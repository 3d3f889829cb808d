#include <cmath>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/segment.hpp>
#include <vector>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

[[noreturn]] void misfit(const char* op, const View& a, const View& b, const View& c) {
  throw ShapeError(str(op, ": ", a.shape, ", ", b.shape, " and ", c.shape,
                       " do not fit. Needed are rows [m, ...], segments [n] and [n, ...]."));
}

/// Rows [m, ...] and values per segment [n, ...] of one floating type on the host.
void check(const char* op, const View& rows, const View& values) {
  if (!is_floating(rows.dtype) || rows.dtype != values.dtype) {
    throw DTypeError(str(op, ": element types ", name(rows.dtype), " and ", name(values.dtype),
                         " (needed is one floating type). Cast one."));
  }
  if (!(rows.device == Device{}) || !(values.device == Device{}))
    throw NotSupported(str(op, ": there is no kernel for this device yet. Use the CPU."));
  bool fits = rows.dims() >= 1 && rows.dims() == values.dims();
  for (int d = 1; fits && d < rows.dims(); ++d) fits = rows.shape[d] == values.shape[d];
  if (!fits) misfit(op, rows, values, values);
}

void check_begin(
    const char* op, const View& begin, std::int64_t first, const View& rows, const View& values) {
  if (begin.dtype != DType::kInt64)
    throw DTypeError(str(op, ": starts of segments are ", name(begin.dtype), ", not i64."));
  if (begin.dims() != 1 || begin.shape[0] != values.shape[0]) misfit(op, rows, begin, values);
  const bool covered = begin.shape[0] > 0 ? *begin.as<std::int64_t>() == first : rows.shape[0] == 0;
  if (!covered) {
    throw ShapeError(str(op, ": the first of ", begin.shape[0], " segments does not start at row ",
                         first, " (each rank holds whole segments). Cut rows where segments end."));
  }
}

/// The rows of segment s, in rows of the view.
Interval segment(const View& begin, std::int64_t first, std::int64_t rows, std::int64_t s) {
  const std::int64_t* const at = begin.as<std::int64_t>();
  const std::int64_t lo = at[s * begin.strides[0]] - first;
  const std::int64_t hi = s + 1 < begin.shape[0] ? at[(s + 1) * begin.strides[0]] - first : rows;
  if (lo < 0 || hi > rows || hi < lo) {
    throw ShapeError(str("segments: segment ", s, " is rows ", lo, " to ", hi, " of ", rows,
                         " (starts must not decrease). Sort the rows by segment."));
  }
  return {lo, hi};
}

std::int64_t width(const View& v) {
  std::int64_t n = 1;
  for (int d = 1; d < v.dims(); ++d) n *= v.shape[d];
  return n;
}

/// Rows as dense memory: the view itself, or a copy in `store`.
View dense_rows(const View& v, std::vector<char>& store) {
  if (v.is_dense()) return v;
  store.resize(static_cast<std::size_t>(v.size()) * size_of(v.dtype));
  const View copied = View::dense(store.data(), v.dtype, v.shape);
  copy(v, copied);
  return copied;
}

/// Runs f(dense y) and copies the result to y where that is not dense.
template <class F>
void into(const View& y, F&& f) {
  if (y.is_dense()) return f(y);
  std::vector<char> store(static_cast<std::size_t>(y.size()) * size_of(y.dtype));
  const View dense = View::dense(store.data(), y.dtype, y.shape);
  f(dense);
  copy(dense, y);
}

char* row_at(const View& v, std::int64_t element) {
  return v.as<char>() + element * static_cast<std::int64_t>(size_of(v.dtype));
}

}  // namespace

void segment_sum(const View& x, const View& begin, std::int64_t first, bool mean, const View& y) {
  check("segment_sum", x, y);
  check_begin("segment_sum", begin, first, x, y);
  if (y.empty()) return;
  std::vector<char> held;
  const View rows = dense_rows(x, held);
  const std::int64_t w = width(y);
  const std::int64_t cost = w * (1 + x.shape[0] / y.shape[0]);
  into(y, [&](const View& out) {
    visit_compute_type(y.dtype, [&]<class T>() {
      parallel_chunks(y.shape[0], cost, [&](std::int64_t from, std::int64_t to) {
        alignas(64) double sum[kBlock];
        alignas(64) T value[kBlock];
        for (std::int64_t s = from; s < to; ++s) {
          const Interval part = segment(begin, first, x.shape[0], s);
          const double scale = mean && part.size() > 0 ? 1.0 / static_cast<double>(part.size()) : 1;
          for (std::int64_t c = 0; c < w; c += kBlock) {
            const std::int64_t n = std::min(kBlock, w - c);
            std::fill_n(sum, n, 0.0);
            for (std::int64_t i = part.lo; i < part.hi; ++i) {
              load(row_at(rows, i * w + c), x.dtype, 1, n, value);
              for (std::int64_t j = 0; j < n; ++j) sum[j] += static_cast<double>(value[j]);
            }
            for (std::int64_t j = 0; j < n; ++j) value[j] = static_cast<T>(sum[j] * scale);
            kernels::store(value, n, row_at(out, s * w + c), y.dtype, 1);
          }
        }
      });
    });
  });
}

void segment_spread(
    const View& x, const View& begin, std::int64_t first, bool mean, const View& y) {
  check("segment_spread", y, x);
  check_begin("segment_spread", begin, first, y, x);
  if (y.empty()) return;
  std::vector<char> held;
  const View values = dense_rows(x, held);
  const std::int64_t w = width(y);
  const std::int64_t segments = x.shape[0];
  into(y, [&](const View& out) {
    visit_compute_type(y.dtype, [&]<class T>() {
      const std::int64_t cost = w * (1 + y.shape[0] / std::max<std::int64_t>(1, segments));
      parallel_chunks(segments, cost, [&](std::int64_t from, std::int64_t to) {
        alignas(64) T value[kBlock];
        for (std::int64_t s = from; s < to; ++s) {
          const Interval part = segment(begin, first, y.shape[0], s);
          if (part.empty()) continue;
          const double scale = mean ? 1.0 / static_cast<double>(part.size()) : 1.0;
          for (std::int64_t c = 0; c < w; c += kBlock) {
            const std::int64_t n = std::min(kBlock, w - c);
            load(row_at(values, s * w + c), x.dtype, 1, n, value);
            if (mean)
              for (std::int64_t j = 0; j < n; ++j)
                value[j] = static_cast<T>(static_cast<double>(value[j]) * scale);
            for (std::int64_t i = part.lo; i < part.hi; ++i)
              kernels::store(value, n, row_at(out, i * w + c), y.dtype, 1);
          }
        }
      });
    });
  });
}

void segment_argmax(const View& x, const View& begin, std::int64_t first, const View& y) {
  check("segment_argmax", x, x);
  check_begin("segment_argmax", begin, first, x, y);
  if (y.dtype != DType::kInt64 || !y.is_dense() || width(x) != width(y))
    misfit("segment_argmax", x, begin, y);
  if (y.empty()) return;
  std::vector<char> held;
  const View rows = dense_rows(x, held);
  const std::int64_t w = width(y);
  const std::int64_t cost = w * (1 + x.shape[0] / y.shape[0]);
  std::int64_t* const at = y.as<std::int64_t>();
  visit_compute_type(x.dtype, [&]<class T>() {
    parallel_chunks(y.shape[0], cost, [&](std::int64_t from, std::int64_t to) {
      alignas(64) T best[kBlock];
      alignas(64) T value[kBlock];
      for (std::int64_t s = from; s < to; ++s) {
        const Interval part = segment(begin, first, x.shape[0], s);
        for (std::int64_t c = 0; c < w; c += kBlock) {
          const std::int64_t n = std::min(kBlock, w - c);
          std::int64_t* const here = at + s * w + c;
          std::fill_n(here, n, -1);
          for (std::int64_t i = part.lo; i < part.hi; ++i) {
            load(row_at(rows, i * w + c), x.dtype, 1, n, value);
            for (std::int64_t j = 0; j < n; ++j) {
              const bool better =
                  here[j] < 0 || value[j] > best[j] || (value[j] != value[j] && best[j] == best[j]);
              if (!better) continue;
              best[j] = value[j];
              here[j] = first + i;
            }
          }
        }
      }
    });
  });
}

void pick_rows(const View& x, const View& at, std::int64_t first, const View& y) {
  check("pick_rows", x, y);
  if (!at.is_dense() || at.dtype != DType::kInt64 || !(at.shape == y.shape))
    misfit("pick_rows", x, at, y);
  if (y.empty()) return;
  std::vector<char> held;
  const View rows = dense_rows(x, held);
  const std::int64_t w = width(y);
  const std::int64_t* const named = at.as<std::int64_t>();
  into(y, [&](const View& out) {
    const auto take = [&]<class T>(const T*) {
      const T* const from = rows.as<T>();
      T* const to = out.as<T>();
      for (std::int64_t e = 0; e < y.size(); ++e) {
        const std::int64_t row = named[e] - first;
        if (named[e] >= 0 && (row < 0 || row >= x.shape[0]))
          throw ShapeError(str("pick_rows: row ", row, " is outside ", x.shape, "."));
        to[e] = named[e] < 0 ? T(0) : from[row * w + e % w];
      }
    };
    switch (size_of(y.dtype)) {
      case 2:
        return take(static_cast<const std::uint16_t*>(nullptr));
      case 4:
        return take(static_cast<const std::uint32_t*>(nullptr));
      default:
        return take(static_cast<const std::uint64_t*>(nullptr));
    }
  });
}

void place_rows(const View& x, const View& at, std::int64_t first, const View& y) {
  check("place_rows", y, x);
  if (!at.is_dense() || at.dtype != DType::kInt64 || !(at.shape == x.shape))
    misfit("place_rows", y, at, x);
  fill(y, 0.0);
  if (y.empty()) return;
  std::vector<char> held;
  const View values = dense_rows(x, held);
  const std::int64_t w = width(y);
  const std::int64_t* const named = at.as<std::int64_t>();
  into(y, [&](const View& out) {
    if (out.data != y.data) fill(out, 0.0);
    const auto put = [&]<class T>(const T*) {
      const T* const from = values.as<T>();
      T* const to = out.as<T>();
      for (std::int64_t e = 0; e < x.size(); ++e) {
        if (named[e] < 0) continue;
        const std::int64_t row = named[e] - first;
        if (row < 0 || row >= y.shape[0])
          throw ShapeError(str("place_rows: row ", row, " is outside ", y.shape, "."));
        to[row * w + e % w] = from[e];
      }
    };
    switch (size_of(y.dtype)) {
      case 2:
        return put(static_cast<const std::uint16_t*>(nullptr));
      case 4:
        return put(static_cast<const std::uint32_t*>(nullptr));
      default:
        return put(static_cast<const std::uint64_t*>(nullptr));
    }
  });
}

}  // namespace tessera::kernels
