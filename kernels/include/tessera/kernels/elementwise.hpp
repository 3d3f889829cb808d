#pragma once

#include <tessera/core/view.hpp>

/// Index-wise kernels: y[i] = f(x[i], ...).
///
/// All views of a call have the same shape; strides are free (0 broadcasts). The output may be one
/// of the inputs, but must not overlap them otherwise. f64 is computed in double, f32 and bf16 in
/// float, integers and bool in 64 bits. The bits of an element depend on its inputs only: not on
/// its place, the shape, the strides, or the number of threads.
namespace tessera::kernels {

/// Functions of one variable with closed derivatives of order 0 to 3.
///
/// At a kink (abs, relu, leaky_relu, elu at 0) the derivative is the one from the left, that of abs
/// is 0. sign(0) = 0; round goes to the nearest even; sign, floor, ceil and round have derivative
/// 0.
enum class UnaryKind : std::uint8_t {
  kNeg,
  kAbs,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kSqrt,
  kRsqrt,  ///< 1 / sqrt(x)
  kSquare,
  kReciprocal,  ///< 1 / x
  kPower,       ///< x ^ alpha
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kRelu,
  kLeakyRelu,  ///< x > 0 ? x : alpha x
  kElu,        ///< x > 0 ? x : alpha (exp(x) - 1)
  kSilu,       ///< x sigmoid(x)
  kGelu,       ///< x Phi(x), with the error function (Hendrycks & Gimpel 2016)
  kGeluTanh,   ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kSoftplus,   ///< log(1 + exp(x))
  kErf,
  kSign,
  kFloor,
  kCeil,
  kRound,
};
const char* name(UnaryKind kind);

/// Highest derivative that `unary` knows.
inline constexpr int kMaxUnaryOrder = 3;

/// y = f^(order)(x); floating types. Throws DTypeError for others, UsageError for an order above 3.
void unary(UnaryKind kind, int order, double alpha, const View& x, const View& y);
/// y = g * f^(order)(x): the gradient of `unary` in one pass.
void mul_unary(
    UnaryKind kind, int order, double alpha, const View& g, const View& x, const View& y);

/// Functions of two variables. Division, pow and atan2 are for floating types only. Maximum and
/// minimum pass on NaN.
enum class BinaryKind : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMaximum,
  kMinimum,
  kAtan2,
};
const char* name(BinaryKind kind);

/// y = f(a, b); a, b and y have one element type.
void binary(BinaryKind kind, const View& a, const View& b, const View& y);

enum class CompareKind : std::uint8_t { kEq, kNe, kLt, kLe, kGt, kGe };
const char* name(CompareKind kind);

/// y = a ? b; y is bool, a and b have one element type.
void compare(CompareKind kind, const View& a, const View& b, const View& y);

enum class LogicalKind : std::uint8_t { kAnd, kOr, kXor };
/// y = a op b on bool.
void logical(LogicalKind kind, const View& a, const View& b, const View& y);
/// y = not x on bool.
void logical_not(const View& x, const View& y);

/// y = condition ? a : b; condition is bool, the others have one element type.
void where(const View& condition, const View& a, const View& b, const View& y);
/// y = min(max(x, low), high); NaN stays.
void clamp(const View& x, double low, double high, const View& y);
/// y = g where low <= x <= high, else 0: the gradient of `clamp`.
void clamp_grad(const View& g, const View& x, double low, double high, const View& y);
/// y = alpha x + beta.
void affine(double alpha, const View& x, double beta, const View& y);
/// y = alpha a + beta b.
void axpby(double alpha, const View& a, double beta, const View& b, const View& y);
/// y = a b + c.
void mul_add(const View& a, const View& b, const View& c, const View& y);
/// y = value.
void fill(const View& y, double value);
/// y = x, with conversion when the element types differ (to integers: towards zero; to bool: x !=
/// 0).
void copy(const View& x, const View& y);

/// `x` seen with shape `shape`: trailing dimensions aligned, size 1 stretched by stride 0. Throws
/// ShapeError when that is not possible.
View broadcast_to(const View& x, const Shape& shape);
/// Dimensions in the order `order`: result dimension i is dimension order[i] of x.
View permute(const View& x, const Dims& order);

}  // namespace tessera::kernels
