#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "device.hpp"
#include "functors/binary.hpp"
#include "functors/unary_table.hpp"
#include "launch.hpp"

namespace tessera::kernels {

const char* name(UnaryKind kind) {
  static constexpr const char* names[] = {
      "neg",      "abs",    "exp",        "expm1", "log",  "log1p", "sqrt",
      "rsqrt",    "square", "reciprocal", "power", "sin",  "cos",   "tanh",
      "sigmoid",  "relu",   "leaky_relu", "elu",   "silu", "gelu",  "gelu_tanh",
      "softplus", "erf",    "sign",       "floor", "ceil", "round"};
  return names[static_cast<std::size_t>(kind)];
}

const char* name(BinaryKind kind) {
  static constexpr const char* names[] = {"add", "sub",     "mul",     "div",
                                          "pow", "maximum", "minimum", "atan2"};
  return names[static_cast<std::size_t>(kind)];
}

const char* name(CompareKind kind) {
  static constexpr const char* names[] = {"eq", "ne", "lt", "le", "gt", "ge"};
  return names[static_cast<std::size_t>(kind)];
}

namespace {

void require_type(const char* op, const View& view, DType expected) {
  if (view.dtype != expected) {
    throw DTypeError(str(op, ": element type ", name(view.dtype), " where ", name(expected),
                         " is needed (operands do not mix). Cast it first."));
  }
}

void require_order(const char* op, int order) {
  if (order < 0 || order > kMaxUnaryOrder) {
    throw UsageError(str(op, ": derivative of order ", order, " (known are 0 to ", kMaxUnaryOrder,
                         "). Compose it from simpler functions."));
  }
}

/// Double for double, float for float and bf16.
template <class F>
void visit_floating_compute(const char* op, DType dtype, F&& f) {
  if (!is_floating(dtype))
    throw DTypeError(
        str(op, ": element type ", name(dtype), " is not a floating type. Cast it first."));
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

/// g * f(x), with f given as its block function.
template <class T>
struct Scaled {
  BlockFunction<T> block;
  T alpha;
};

template <class T>
void scaled_block(const void* functor, const T* const* in, T* out, std::int64_t groups) {
  const auto& scaled = *static_cast<const Scaled<T>*>(functor);
  alignas(64) T value[kBlock];
  scaled.block(&scaled.alpha, in + 1, value, groups);
  const T* const g = in[0];
  const std::int64_t n = groups * kLanes;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) out[i] = g[i] * value[i];
}

}  // namespace

void unary(UnaryKind kind, int order, double alpha, const View& x, const View& y) {
  require_order(name(kind), order);
  require_type(name(kind), x, y.dtype);
  if (on_cuda(y)) return cuda::unary(kind, order, alpha, nullptr, x, y);
  visit_floating_compute(name(kind), y.dtype, [&]<class T>() {
    const T a = static_cast<T>(alpha);
    const View* const in[] = {&x};
    map<T>(name(kind), unary_block<T>(kind, order), &a, y, in);
  });
}

void mul_unary(
    UnaryKind kind, int order, double alpha, const View& g, const View& x, const View& y) {
  require_order(name(kind), order);
  require_type(name(kind), x, y.dtype);
  require_type(name(kind), g, y.dtype);
  if (on_cuda(y)) return cuda::unary(kind, order, alpha, &g, x, y);
  visit_floating_compute(name(kind), y.dtype, [&]<class T>() {
    const Scaled<T> scaled{unary_block<T>(kind, order), static_cast<T>(alpha)};
    const View* const in[] = {&g, &x};
    map<T>(name(kind), &scaled_block<T>, &scaled, y, in);
  });
}

void binary(BinaryKind kind, const View& a, const View& b, const View& y) {
  if (dry_run()) return;
  const char* const op = name(kind);
  require_type(op, a, y.dtype);
  require_type(op, b, y.dtype);
  if (on_cuda(y)) return cuda::binary(kind, a, b, y);
  visit_compute_type(y.dtype, [&]<class T>() {
    switch (kind) {
      case BinaryKind::kAdd:
        return map_functor<T>(op, Binary<BinaryKind::kAdd, T>{}, y, a, b);
      case BinaryKind::kSub:
        return map_functor<T>(op, Binary<BinaryKind::kSub, T>{}, y, a, b);
      case BinaryKind::kMul:
        return map_functor<T>(op, Binary<BinaryKind::kMul, T>{}, y, a, b);
      case BinaryKind::kMaximum:
        return map_functor<T>(op, Binary<BinaryKind::kMaximum, T>{}, y, a, b);
      case BinaryKind::kMinimum:
        return map_functor<T>(op, Binary<BinaryKind::kMinimum, T>{}, y, a, b);
      default:
        break;
    }
    if constexpr (std::is_floating_point_v<T>) {
      switch (kind) {
        case BinaryKind::kDiv:
          return map_functor<T>(op, Binary<BinaryKind::kDiv, T>{}, y, a, b);
        case BinaryKind::kPow:
          return map_functor<T>(op, Binary<BinaryKind::kPow, T>{}, y, a, b);
        default:
          return map_functor<T>(op, Binary<BinaryKind::kAtan2, T>{}, y, a, b);
      }
    } else {
      throw DTypeError(
          str(op, ": element type ", name(y.dtype), " is not a floating type. Cast it first."));
    }
  });
}

void compare(CompareKind kind, const View& a, const View& b, const View& y) {
  const char* const op = name(kind);
  require_type(op, b, a.dtype);
  require_type(op, y, DType::kBool);
  if (on_cuda(y)) return cuda::compare(kind, a, b, y);
  visit_compute_type(a.dtype, [&]<class T>() {
    switch (kind) {
#define TESSERA_CASE(k) \
  case CompareKind::k:  \
    return map_functor<T>(op, Compare<CompareKind::k, T>{}, y, a, b);
      TESSERA_FOR_EACH_COMPARE(TESSERA_CASE)
#undef TESSERA_CASE
    }
  });
}

void logical(LogicalKind kind, const View& a, const View& b, const View& y) {
  require_type("logical", a, DType::kBool);
  require_type("logical", b, DType::kBool);
  require_type("logical", y, DType::kBool);
  if (on_cuda(y)) return cuda::logical(kind, a, b, y);
  using T = std::int64_t;
  switch (kind) {
    case LogicalKind::kAnd:
      return map_functor<T>("and", Logical<LogicalKind::kAnd>{}, y, a, b);
    case LogicalKind::kOr:
      return map_functor<T>("or", Logical<LogicalKind::kOr>{}, y, a, b);
    case LogicalKind::kXor:
      return map_functor<T>("xor", Logical<LogicalKind::kXor>{}, y, a, b);
  }
}

void logical_not(const View& x, const View& y) {
  require_type("not", x, DType::kBool);
  require_type("not", y, DType::kBool);
  if (on_cuda(y)) return cuda::logical_not(x, y);
  map_functor<std::int64_t>("not", LogicalNot{}, y, x);
}

void where(const View& condition, const View& a, const View& b, const View& y) {
  require_type("where", condition, DType::kBool);
  require_type("where", a, y.dtype);
  require_type("where", b, y.dtype);
  if (on_cuda(y)) return cuda::where(condition, a, b, y);
  visit_compute_type(y.dtype,
                     [&]<class T>() { map_functor<T>("where", Where<T>{}, y, condition, a, b); });
}

void clamp(const View& x, double low, double high, const View& y) {
  require_type("clamp", x, y.dtype);
  if (on_cuda(y)) return cuda::clamp(x, low, high, y);
  visit_floating_compute("clamp", y.dtype, [&]<class T>() {
    map_functor<T>("clamp", Clamp<T>{static_cast<T>(low), static_cast<T>(high)}, y, x);
  });
}

void clamp_grad(const View& g, const View& x, double low, double high, const View& y) {
  require_type("clamp", x, y.dtype);
  require_type("clamp", g, y.dtype);
  if (on_cuda(y)) return cuda::clamp_grad(g, x, low, high, y);
  visit_floating_compute("clamp", y.dtype, [&]<class T>() {
    map_functor<T>("clamp", ClampGrad<T>{static_cast<T>(low), static_cast<T>(high)}, y, g, x);
  });
}

void affine(double alpha, const View& x, double beta, const View& y) {
  require_type("affine", x, y.dtype);
  if (on_cuda(y)) return cuda::affine(alpha, x, beta, y);
  visit_compute_type(y.dtype, [&]<class T>() {
    map_functor<T>("affine", Affine<T>{static_cast<T>(alpha), static_cast<T>(beta)}, y, x);
  });
}

void axpby(double alpha, const View& a, double beta, const View& b, const View& y) {
  if (dry_run()) return;
  require_type("axpby", a, y.dtype);
  require_type("axpby", b, y.dtype);
  if (on_cuda(y)) return cuda::axpby(alpha, a, beta, b, y);
  visit_compute_type(y.dtype, [&]<class T>() {
    map_functor<T>("axpby", Axpby<T>{static_cast<T>(alpha), static_cast<T>(beta)}, y, a, b);
  });
}

void mul_add(const View& a, const View& b, const View& c, const View& y) {
  require_type("mul_add", a, y.dtype);
  require_type("mul_add", b, y.dtype);
  require_type("mul_add", c, y.dtype);
  if (on_cuda(y)) return cuda::mul_add(a, b, c, y);
  visit_compute_type(y.dtype,
                     [&]<class T>() { map_functor<T>("mul_add", MulAdd<T>{}, y, a, b, c); });
}

void fill(const View& y, double value) {
  if (dry_run()) return;
  if (on_cuda(y)) return cuda::fill(y, value);
  if (y.dtype == DType::kBool) value = value != 0.0 ? 1.0 : 0.0;
  visit_compute_type(
      y.dtype, [&]<class T>() { map_functor<T>("fill", Constant<T>{static_cast<T>(value)}, y); });
}

View broadcast_to(const View& x, const Shape& shape) {
  if (x.shape == shape) return x;
  View y = x;
  y.shape = shape;
  y.strides = Strides::filled(shape.size(), 0);
  const int lead = shape.size() - x.dims();
  bool fits = lead >= 0;
  for (int d = 0; fits && d < x.dims(); ++d) {
    if (x.shape[d] == shape[lead + d]) {
      y.strides[lead + d] = x.strides[d];
    } else {
      fits = x.shape[d] == 1;
    }
  }
  if (!fits) {
    throw ShapeError(str("broadcast: shape ", x.shape, " does not stretch to ", shape,
                         " (only sizes of 1 do). Reshape it first."));
  }
  return y;
}

View permute(const View& x, const Dims& order) {
  View y = x;
  for (int i = 0; i < order.size(); ++i) {
    const int d = static_cast<int>(order[i]);
    y.shape[i] = x.shape[d];
    y.strides[i] = x.strides[d];
  }
  return y;
}

}  // namespace tessera::kernels
