#include <algorithm>
#include <cmath>
#include <numbers>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/spectral_loss.hpp>

#include "loss_support.hpp"

namespace tessera::nn {
namespace {

void check_domain(const char* op, const Tensor& x) {
  if (x.dims() < 3 || x.dims() > 5 || x.numel() == 0) {
    throw ShapeError(str(op, ": ", x.shape(),
                         " is not [N, domain..., C] with 1 to 3 domain dimensions and elements. "
                         "Reshape it."));
  }
}

/// Rows k < `rows` of the transform along n elements: cos(2 pi k j / n) / sqrt(n), or -sin.
Tensor waves(const Tensor& like, std::int64_t rows, std::int64_t n, bool sine) {
  std::vector<double> table(static_cast<std::size_t>(n));
  for (std::int64_t j = 0; j < n; ++j) {
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(j) / static_cast<double>(n);
    table[static_cast<std::size_t>(j)] =
        (sine ? -std::sin(angle) : std::cos(angle)) / std::sqrt(static_cast<double>(n));
  }
  const Tensor matrix = Tensor::empty(Layout::replicated(like.mesh(), {rows, n}), DType::kFloat64);
  if (!dry_run()) {
    double* value = matrix.mutable_local().as<double>();
    for (std::int64_t k = 0; k < rows; ++k) {
      std::int64_t at = 0;  // k j modulo n
      for (std::int64_t j = 0; j < n; ++j) {
        *value++ = table[static_cast<std::size_t>(at)];
        at += k;
        if (at >= n) at -= n;
      }
    }
  }
  return cast(matrix, like.dtype());
}

/// `x` with dimension `dim` whole where another dimension can take its split.
Tensor whole_along(const Tensor& x, int dim) {
  const Layout& layout = x.layout();
  if (!layout.is_split(dim)) return x;
  int to = -1;
  for (int d = 0; d < x.dims(); ++d)
    if (d != dim && !layout.is_split(d) && (to < 0 || x.size(d) > x.size(to))) to = d;
  if (to < 0) return x;
  const Layout freed = layout.with_dim(dim, x.size(dim), {});
  return redistribute(
      x, freed.with_dim(to, x.size(to),
                        {layout.split(dim).axes, balanced_bounds(x.size(to), layout.parts(dim))}));
}

/// y[.., k, ..] = sum_j matrix[k, j] x[.., j, ..] along `dim`.
Tensor product_along(const Tensor& x, int dim, const Tensor& matrix) {
  const int last = x.dims() - 1;
  Dims order;
  for (int d = 0; d < x.dims(); ++d) order.push_back(d);
  std::swap(order[dim], order[last]);
  return permute(linear(permute(x, order), matrix), order);
}

Tensor power_of(const Tensor& field) {
  const int last = field.dims() - 2;
  // The last dimension first: of a real field half of the frequencies say all.
  Tensor x = whole_along(reduced(field), last);
  const std::int64_t half = field.size(last) / 2 + 1;
  Tensor real = product_along(x, last, waves(x, half, field.size(last), false));
  Tensor imaginary = product_along(x, last, waves(x, half, field.size(last), true));
  for (int d = last - 1; d >= 1; --d) {
    const std::int64_t n = field.size(d);
    const Tensor cosine = waves(x, n, n, false);
    const Tensor sine = waves(x, n, n, true);
    const Tensor a = whole_along(reduced(real), d);
    const Tensor b = whole_along(reduced(imaginary), d);
    real = product_along(a, d, cosine) - product_along(b, d, sine);
    imaginary = product_along(a, d, sine) + product_along(b, d, cosine);
  }
  return square(reduced(real)) + square(reduced(imaginary));
}

}  // namespace

Tensor power_spectrum(const Tensor& x) {
  check_domain("power_spectrum", x);
  return power_of(widened(x));
}

Tensor spectral_loss(const Tensor& prediction,
                     const Tensor& target,
                     const SpectralOptions& options) {
  check_alike("spectral_loss", prediction, target);
  check_domain("spectral_loss", prediction);
  const Tensor p = power_of(widened(prediction));
  const Tensor t = power_of(widened(target));
  const auto compared = [&](const Tensor& power) {
    switch (options.kind) {
      case SpectralKind::kAmplitude:
        return sqrt(power + options.eps);
      case SpectralKind::kLogPower:
        return log(power + options.eps);
      case SpectralKind::kPower:
        break;
    }
    return power;
  };
  // Weights of frequencies, which count twice where they stand for their mirror image too.
  const Shape& fields = prediction.shape();
  const int last = fields.size() - 2;
  Shape shape = p.shape();
  shape[0] = shape[last + 1] = 1;
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  for (int d = 1; d <= last; ++d) splits[static_cast<std::size_t>(d)] = p.layout().split(d);
  const Tensor weight = Tensor::from_function(
      Layout::make(p.mesh(), shape, std::move(splits)),
      [&](const Index& i) {
        double length = 0.0;
        for (int d = 1; d <= last; ++d) {
          const auto waves = static_cast<double>(std::min(i[d], fields[d] - i[d]));
          length += waves * waves;
        }
        const double copies = i[last] == 0 || 2 * i[last] == fields[last] ? 1.0 : 2.0;
        return copies * std::pow(1.0 + std::sqrt(length), options.slope);
      },
      p.dtype());
  return weighted_mean(square(compared(p) - compared(t)), weight);
}

}  // namespace tessera::nn
