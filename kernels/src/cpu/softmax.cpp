#include <cmath>
#include <limits>
#include <tessera/kernels/softmax.hpp>
#include <type_traits>
#include <vector>

#include "math.hpp"
#include "row_loops.hpp"

namespace tessera::kernels {

namespace {

/// sum f(i) in double, in an order that follows from n alone.
template <class F>
double lane_sum(std::int64_t n, const F& f) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lanes[l] += static_cast<double>(f(i + l));
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] += static_cast<double>(f(i));
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// The largest element; NaN where there is one.
template <class T>
T largest(const T* v, std::int64_t n) {
  T most = -std::numeric_limits<T>::infinity();
  bool ordered = true;
#pragma omp simd reduction(max : most) reduction(&& : ordered)
  for (std::int64_t i = 0; i < n; ++i) {
    most = v[i] > most ? v[i] : most;
    ordered = ordered && v[i] == v[i];
  }
  return ordered ? most : std::numeric_limits<T>::quiet_NaN();
}

/// f(row of each input, row of the output) for all rows; rows pass through buffers where they are
/// not dense in type T.
template <class T, std::size_t kInputs, class F>
void for_each_row(const char* op, const View* const (&x)[kInputs], const View& y, const F& f) {
  const RowLoops loops =
      kInputs == 1 ? RowLoops(op, {x[0], &y}) : RowLoops(op, {x[0], x[kInputs - 1], &y});
  const std::int64_t c = loops.channels;
  const int last = static_cast<int>(kInputs);
  parallel_chunks(loops.rows, c, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> buffers[kInputs + 1];
    for (std::vector<T>& buffer : buffers) buffer.resize(static_cast<std::size_t>(c));
    const bool direct = y.dtype == dtype_of<T> && loops.step[last] == 1;
    for (std::int64_t r = begin; r < end; ++r) {
      const T* in[kInputs];
      for (std::size_t k = 0; k < kInputs; ++k)
        in[k] = read_row(loops, *x[k], static_cast<int>(k), r, buffers[k].data());
      char* const dst = row_at(loops, y, last, r);
      T* const out = direct ? reinterpret_cast<T*>(dst) : buffers[kInputs].data();
      f(in, out, c);
      if (!direct) store(out, c, dst, y.dtype, loops.step[last]);
    }
  });
}

template <class T>
void softmax_row(const T* x, T* y, std::int64_t n) {
  const T most = largest(x, n);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = m::exp(x[i] - most);
  const T factor = static_cast<T>(1.0 / lane_sum(n, [&](std::int64_t i) { return y[i]; }));
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] *= factor;
}

template <class T>
void grad_row(const T* y, const T* dy, T* dx, std::int64_t n) {
  const T total = static_cast<T>(lane_sum(n, [&](std::int64_t i) { return y[i] * dy[i]; }));
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - total);
}

}  // namespace

void softmax(const View& x, const View& y) {
  visit_compute_type(x.dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      for_each_row<T>("softmax", {&x}, y, [](const T* const* in, T* out, std::int64_t n) {
        softmax_row(in[0], out, n);
      });
    } else {
      throw DTypeError(str("softmax: ", name(x.dtype), " is not floating."));
    }
  });
}

void softmax_grad(const View& y, const View& dy, const View& dx) {
  visit_compute_type(y.dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      for_each_row<T>(
          "softmax_grad", {&y, &dy}, dx,
          [](const T* const* in, T* out, std::int64_t n) { grad_row(in[0], in[1], out, n); });
    } else {
      throw DTypeError(str("softmax_grad: ", name(y.dtype), " is not floating."));
    }
  });
}

}  // namespace tessera::kernels
