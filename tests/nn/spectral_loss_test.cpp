// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <complex>
#include <numbers>
#include <tessera/autograd/autograd.hpp>
#include <tessera/nn/spectral_loss.hpp>

#include "nn/loss_cases.hpp"

namespace tessera::test {
namespace {

/// |X_k|^2 by the definition, for all frequencies.
DenseArray power_of(const DenseArray& x) {
  DenseArray power(x.shape);
  Shape domain;
  for (int d = 1; d + 1 < x.shape.size(); ++d) domain.push_back(x.shape[d]);
  for_each(x.shape, [&](const Index& k) {
    std::complex<double> sum = 0.0;
    for_each(domain, [&](const Index& j) {
      double phase = 0.0;
      Index at = k;
      for (int d = 0; d < domain.size(); ++d) {
        phase += static_cast<double>(k[d + 1] * j[d]) / static_cast<double>(domain[d]);
        at[d + 1] = j[d];
      }
      sum += x[at] * std::exp(std::complex<double>(0.0, -2.0 * std::numbers::pi * phase));
    });
    power[k] = std::norm(sum) / static_cast<double>(domain.product());
  });
  return power;
}

OpCase spectrum_case(const Shape& shape) {
  return {.inputs = {uniform(shape)},
          .f = [](const auto& x) -> std::vector<Tensor> { return {nn::power_spectrum(x[0])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const DenseArray all = power_of(x[0]);
            Shape result = x[0].shape;
            const int last = result.size() - 2;
            result[last] = result[last] / 2 + 1;
            DenseArray half(result);
            for_each(result, [&](const Index& i) { half[i] = all[i]; });
            return {half};
          },
          .bf16_tolerance = 0.1};
}

OpCase loss_case(const Shape& shape, const nn::SpectralOptions& options) {
  return {.inputs = {uniform(shape), constant(uniform(shape))},
          .f = [=](const auto& x) -> std::vector<Tensor> {
            return {nn::spectral_loss(x[0], x[1], options)};
          },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            const DenseArray p = power_of(x[0]), t = power_of(x[1]);
            const auto compared = [&](double power) {
              if (options.kind == nn::SpectralKind::kPower) return power;
              return options.kind == nn::SpectralKind::kAmplitude ? std::sqrt(power + options.eps)
                                                                  : std::log(power + options.eps);
            };
            double total = 0.0, divisor = 0.0;
            for_each(p.shape, [&](const Index& i) {
              double length = 0.0;
              for (int d = 1; d + 1 < p.shape.size(); ++d)
                length += std::pow(static_cast<double>(std::min(i[d], p.shape[d] - i[d])), 2);
              const double w = std::pow(1.0 + std::sqrt(length), options.slope);
              total += w * std::pow(compared(p[i]) - compared(t[i]), 2);
              divisor += w;
            });
            return {DenseArray({}, total / divisor)};
          },
          .may_throw = disagree,
          .bf16_tolerance = 0.2,
          .random_cuts = 6};
}

}  // namespace

OP_TEST("power along a line of odd length") { return spectrum_case({2, 7, 3}); }
OP_TEST("power in the plane") { return spectrum_case({2, 5, 6, 1}); }
OP_TEST("power in space") { return spectrum_case({1, 3, 2, 4, 2}); }

OP_TEST("difference of amplitudes") { return loss_case({2, 6, 5, 1}, {.eps = 0.01}); }
OP_TEST("difference of powers, weighed by frequency") {
  return loss_case({1, 4, 6, 2}, {.kind = nn::SpectralKind::kPower, .slope = 1.5});
}
OP_TEST("difference of logarithms of power") {
  return loss_case({2, 8, 2}, {.kind = nn::SpectralKind::kLogPower, .eps = 0.1});
}

TEST_CASE("powers sum to squares; a shifted field has the same spectrum") {
  const Shape shape = {1, 12, 10, 1};
  const DenseArray x = random_array(shape, 7);
  DenseArray shifted(shape);
  for_each(shape, [&](const Index& i) { shifted[i] = x(0, (i[1] + 5) % 12, (i[2] + 3) % 10, 0); });
  const Layout layout = Placement(line()).shard(1, {"x"}).resolve(shape);
  const DenseArray power = to_dense(nn::power_spectrum(to_tensor(x, layout)));
  double total = 0.0;
  for_each(power.shape,
           [&](const Index& i) { total += power[i] * (i[2] == 0 || i[2] == 5 ? 1.0 : 2.0); });
  CHECK(total == Approx(dot(x, x)));
  CHECK(nn::spectral_loss(to_tensor(shifted, layout), to_tensor(x, layout)).item() < 1e-20);
}

TEST_CASE("spectra refuse what is no field") {
  const auto zeros = [&](const Shape& s) { return Tensor::zeros(Layout::replicated(line(), s)); };
  CHECK_THROWS_AS(nn::power_spectrum(zeros({3, 4})), ShapeError);
  CHECK_THROWS_AS(nn::spectral_loss(zeros({3, 4, 1}), zeros({3, 4, 2})), ShapeError);
  CHECK_THROWS_AS(nn::spectral_loss(zeros({0, 4, 1}), zeros({0, 4, 1})), ShapeError);
}

}  // namespace tessera::test
