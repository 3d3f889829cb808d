#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

// Element by element with broadcasting (trailing dimensions aligned, size 1 stretches). Operands of
// other boundaries are brought to those of the largest split operand. Linear ops pass Partial on;
// nonlinear ones take the sum first.

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor atan2(const Tensor& y, const Tensor& x);
/// alpha * x + beta
Tensor affine(const Tensor& x, double alpha, double beta = 0.0);
Tensor pow(const Tensor& x, double exponent);
Tensor clamp(const Tensor& x, double low, double high);
/// `condition ? a : b`; condition is bool.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return affine(a, 1.0, b); }
inline Tensor operator-(const Tensor& a, double b) { return affine(a, 1.0, -b); }
inline Tensor operator*(const Tensor& a, double b) { return affine(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return affine(b, a); }
inline Tensor operator/(const Tensor& a, double b) { return affine(a, 1.0 / b); }
inline Tensor operator-(const Tensor& a) { return affine(a, -1.0); }

Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor square(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);

Tensor relu(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1.0);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor silu(const Tensor& x);
/// x Phi(x) (Hendrycks & Gimpel 2016); `tanh_approximation` uses the paper's tanh form.
Tensor gelu(const Tensor& x, bool tanh_approximation = false);
Tensor softplus(const Tensor& x);

/// Comparisons; the result is bool.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);

}  // namespace tessera
