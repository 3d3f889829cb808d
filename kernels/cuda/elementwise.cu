#include <tessera/core/backend.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "device.hpp"
#include "functors/binary.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

void throw_no_cuda() { throw DeviceError("cuda: this kernel has no GPU version. Use the CPU."); }

void binary(BinaryKind kind, const View& a, const View& b, const View& y) {
  const char* const op = name(kind);
  visit_compute(y.dtype, [&]<class T>() {
    switch (kind) {
      case BinaryKind::kAdd:
        return map<T>(op, Binary<BinaryKind::kAdd, T>{}, y, a, b);
      case BinaryKind::kSub:
        return map<T>(op, Binary<BinaryKind::kSub, T>{}, y, a, b);
      case BinaryKind::kMul:
        return map<T>(op, Binary<BinaryKind::kMul, T>{}, y, a, b);
      case BinaryKind::kMaximum:
        return map<T>(op, Binary<BinaryKind::kMaximum, T>{}, y, a, b);
      case BinaryKind::kMinimum:
        return map<T>(op, Binary<BinaryKind::kMinimum, T>{}, y, a, b);
      default:
        break;
    }
    if constexpr (std::is_floating_point_v<T>) {
      switch (kind) {
        case BinaryKind::kDiv:
          return map<T>(op, Binary<BinaryKind::kDiv, T>{}, y, a, b);
        case BinaryKind::kPow:
          return map<T>(op, Binary<BinaryKind::kPow, T>{}, y, a, b);
        default:
          return map<T>(op, Binary<BinaryKind::kAtan2, T>{}, y, a, b);
      }
    } else {
      throw DTypeError(
          str(op, ": element type ", name(y.dtype), " is not a floating type. Cast it first."));
    }
  });
}

void compare(CompareKind kind, const View& a, const View& b, const View& y) {
  visit_compute(a.dtype, [&]<class T>() {
    switch (kind) {
#define TESSERA_CASE(k) \
  case CompareKind::k:  \
    return map<T>(name(kind), Compare<CompareKind::k, T>{}, y, a, b);
      TESSERA_FOR_EACH_COMPARE(TESSERA_CASE)
#undef TESSERA_CASE
    }
  });
}

void logical(LogicalKind kind, const View& a, const View& b, const View& y) {
  using T = std::int64_t;
  switch (kind) {
    case LogicalKind::kAnd:
      return map<T>("and", Logical<LogicalKind::kAnd>{}, y, a, b);
    case LogicalKind::kOr:
      return map<T>("or", Logical<LogicalKind::kOr>{}, y, a, b);
    case LogicalKind::kXor:
      return map<T>("xor", Logical<LogicalKind::kXor>{}, y, a, b);
  }
}

void logical_not(const View& x, const View& y) { map<std::int64_t>("not", LogicalNot{}, y, x); }

void where(const View& condition, const View& a, const View& b, const View& y) {
  visit_compute(y.dtype, [&]<class T>() { map<T>("where", Where<T>{}, y, condition, a, b); });
}

void clamp(const View& x, double low, double high, const View& y) {
  visit_floating_type(y.dtype, [&]<class T>() {
    map<T>("clamp", Clamp<T>{static_cast<T>(low), static_cast<T>(high)}, y, x);
  });
}

void clamp_grad(const View& g, const View& x, double low, double high, const View& y) {
  visit_floating_type(y.dtype, [&]<class T>() {
    map<T>("clamp", ClampGrad<T>{static_cast<T>(low), static_cast<T>(high)}, y, g, x);
  });
}

void affine(double alpha, const View& x, double beta, const View& y) {
  visit_compute(y.dtype, [&]<class T>() {
    map<T>("affine", Affine<T>{static_cast<T>(alpha), static_cast<T>(beta)}, y, x);
  });
}

void axpby(double alpha, const View& a, double beta, const View& b, const View& y) {
  visit_compute(y.dtype, [&]<class T>() {
    map<T>("axpby", Axpby<T>{static_cast<T>(alpha), static_cast<T>(beta)}, y, a, b);
  });
}

void mul_add(const View& a, const View& b, const View& c, const View& y) {
  visit_compute(y.dtype, [&]<class T>() { map<T>("mul_add", MulAdd<T>{}, y, a, b, c); });
}

void fill(const View& y, double value) {
  if (y.dtype == DType::kBool) value = value != 0.0 ? 1.0 : 0.0;
  visit_compute(y.dtype, [&]<class T>() { map<T>("fill", Constant<T>{static_cast<T>(value)}, y); });
}

namespace {

/// A dense view of the shape and type of `like` on `device`, with its memory.
struct Staged {
  Ref<Buffer> memory;
  View view;

  Staged(const View& like, Device device)
      : memory(MemoryPool::of(device).allocate(static_cast<std::size_t>(like.size()) *
                                               size_of(like.dtype))),
        view(View::dense(memory->data(), like.dtype, like.shape, device)) {}
};

/// Only dense bytes of one type travel between host and device: what is not is made so on its side.
void copy_between(const View& x, const View& y) {
  if (x.dtype != y.dtype || !x.is_dense()) {
    const Staged dense(y, x.device);
    kernels::copy(x, dense.view);
    return copy_between(dense.view, y);
  }
  if (!y.is_dense()) {
    const Staged dense(y, y.device);
    copy_between(x, dense.view);
    return kernels::copy(dense.view, y);
  }
  copy_bytes(y.data, y.device, x.data, x.device,
             static_cast<std::size_t>(x.size()) * size_of(x.dtype));
}

}  // namespace

void copy(const View& x, const View& y) {
  if (on_cuda(x) != on_cuda(y)) {
    if (!(x.shape == y.shape)) {
      throw ShapeError(str("copy: a kernel operand has shape ", x.shape, " but another ", y.shape,
                           ". Broadcast them first."));
    }
    if (!x.empty()) copy_between(x, y);
    return;
  }
  const bool integers = !is_floating(x.dtype) && !is_floating(y.dtype);
  const auto narrow = [](DType t) { return t == DType::kFloat32 || t == DType::kBFloat16; };
  if (integers) return map<std::int64_t>("copy", Identity<std::int64_t>{}, y, x);
  if (narrow(x.dtype) && narrow(y.dtype)) return map<float>("copy", Identity<float>{}, y, x);
  map<double>("copy", Identity<double>{}, y, x);
}

}  // namespace tessera::kernels::cuda
