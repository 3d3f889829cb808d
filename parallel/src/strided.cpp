#include "strided.hpp"

#include <limits>
#include <tessera/core/tensor.hpp>
#include <tessera/kernels/elementwise.hpp>

namespace tessera::parallel {

namespace {

kernels::BinaryKind kind_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return kernels::BinaryKind::kMaximum;
    case ReduceOp::kMin:
      return kernels::BinaryKind::kMinimum;
    case ReduceOp::kSum:
      break;
  }
  return kernels::BinaryKind::kAdd;
}

template <class T>
T neutral(ReduceOp op) {
  if (op == ReduceOp::kSum) return T{};
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(neutral<float>(op));
  } else {
    using Limits = std::numeric_limits<T>;
    if constexpr (Limits::has_infinity) {
      return op == ReduceOp::kMax ? -Limits::infinity() : Limits::infinity();
    } else {
      return op == ReduceOp::kMax ? Limits::lowest() : Limits::max();
    }
  }
}

/// to = value, bit for bit.
template <class T>
void fill_bits(const View& to, T value) {
  const View one{&value, to.dtype, to.shape, Strides::filled(to.dims(), 0), {}};
  kernels::copy(one, to);
}

}  // namespace

void accumulate(const View& from, const View& to, ReduceOp op) {
  if (from.empty()) return;
  Box repeats = Box::whole(Dims::filled(to.dims(), 1));
  for (int d = 0; d < to.dims(); ++d)
    if (to.strides[d] == 0) repeats.hi[d] = to.shape[d];
  for_each_index(repeats, [&](const Index& at) {
    Box part = Box::whole(to.shape);
    for (int d = 0; d < to.dims(); ++d)
      if (to.strides[d] == 0) part.set(d, {at[d], at[d] + 1});
    const View target = to.slice(part);
    kernels::binary(kind_of(op), target, from.slice(part), target);
  });
}

void fill_neutral(const View& to, ReduceOp op) {
  if (to.device.kind == Device::kCpu) {
    visit_dtype(to.dtype, [&]<class T>() { fill_bits(to, neutral<T>(op)); });
  } else {
    // Through double, which holds these values for all types but 64-bit integers.
    visit_dtype(to.dtype, [&]<class T>() {
      if constexpr (std::is_same_v<T, std::int64_t>) {
        if (op == ReduceOp::kMin)
          throw NotSupported("redistribute: a Partial minimum of i64 on a device. Use f64.");
      }
      if constexpr (std::is_same_v<T, BFloat16>) {
        kernels::fill(to, static_cast<double>(neutral<float>(op)));
      } else {
        kernels::fill(to, static_cast<double>(neutral<T>(op)));
      }
    });
  }
}

void poison(const View& to) {
  if (to.device.kind != Device::kCpu) {
    kernels::fill(to, is_floating(to.dtype) ? std::numeric_limits<double>::quiet_NaN() : 85.0);
    return;
  }
  visit_dtype(to.dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      BFloat16 nan;
      nan.bits = 0x7fa0;  // made from a float it would be quiet
      fill_bits(to, nan);
    } else if constexpr (std::is_floating_point_v<T>) {
      fill_bits(to, std::numeric_limits<T>::signaling_NaN());
    } else if constexpr (std::is_same_v<T, bool>) {
      fill_bits(to, true);
    } else {
      fill_bits(to, static_cast<T>(std::numeric_limits<T>::max() / 3));
    }
  });
}

}  // namespace tessera::parallel
