// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/class_losses.hpp>

#include "nn/loss_cases.hpp"

namespace tessera::test {
namespace {

/// Class numbers with some that are none.
InputSpec numbers(const Shape& shape) { return integers(shape, -1, 3); }
InputSpec class_weights() { return whole(uniform({4}, 0.2, 2.0)); }

/// What torch computes: torch.nn.functional.cross_entropy(logits, target, weight,
/// ignore_index=ignore, label_smoothing=e), where numbers that are no class do not count either.
double cross_entropy_of(const DenseArray& logits,
                        const DenseArray& target,
                        const DenseArray* weight,
                        double e,
                        int ignore) {
  double total = 0.0, divisor = 0.0;
  for_each(target.shape, [&](const Index& i) {
    const auto y = static_cast<int>(target[i]);
    if (y < 0 || y > 3 || y == ignore) return;
    Index at = i;
    at.push_back(0);
    const auto logit = [&](int c) {
      at.back() = c;
      return logits[at];
    };
    double sum = 0.0;
    for (int c = 0; c < 4; ++c) sum += std::exp(logit(c));
    for (int c = 0; c < 4; ++c) {
      const double w = weight != nullptr ? (*weight)(c) : 1.0;
      const double share = (c == y ? 1.0 - e : 0.0) + e / 4.0;
      total += w * share * (std::log(sum) - logit(c));
      if (c == y) divisor += w;
    }
  });
  return total / divisor;
}

OpCase cross_entropy_case(bool weighted, double e, int ignore) {
  OpCase c{.inputs = {uniform({3, 5, 4}, -2.0, 2.0), numbers({3, 5})},
           .f = [=](const auto& x) -> std::vector<Tensor> {
             nn::CrossEntropyOptions options{.label_smoothing = e};
             if (weighted) options.class_weight = x[2];
             if (ignore >= 0) options.ignore = ignore;
             return {nn::cross_entropy(x[0], x[1], options)};
           },
           .reference = [=](const auto& x) -> std::vector<DenseArray> {
             return {DenseArray(
                 {}, cross_entropy_of(x[0], x[1], weighted ? &x[2] : nullptr, e, ignore))};
           },
           .may_throw = disagree};
  if (weighted) c.inputs.push_back(class_weights());
  return c;
}

double softplus_of(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

/// A mean over elements of term(x, t, pos) with a weight that stretches over channels.
OpCase binary_case(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                   const std::function<double(double x, double t, double pos)>& term,
                   InputSpec target) {
  return {.inputs = {uniform({3, 5, 2}, -3.0, 3.0), constant(std::move(target)),
                     whole(uniform({5, 1}, 0.0, 2.0)), whole(uniform({2}, 0.5, 3.0))},
          .f = [=](const auto& x) { return std::vector{f(x)}; },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            double total = 0.0, divisor = 0.0;
            for_each(x[0].shape, [&](const Index& i) {
              const double w = x[2](i[1], 0);
              total += w * term(x[0][i], x[1][i], x[3](i[2]));
              divisor += w;
            });
            return {DenseArray({}, total / divisor)};
          },
          .may_throw = disagree};
}

OpCase dice_case(bool number, nn::DiceOptions options, bool class_weighted) {
  OpCase c{.inputs = {uniform({3, 4, 3, 4}, 0.05, 0.95),
                      number ? numbers({3, 4, 3}) : constant(uniform({3, 4, 3, 4}, 0.0, 1.0)),
                      class_weights(), whole(uniform({4, 1, 1}, 0.0, 1.0))},
           .f = [=](const auto& x) -> std::vector<Tensor> {
             nn::DiceOptions o = options;
             if (class_weighted) o.class_weight = x[2];
             o.weight = x[3];
             return {nn::dice_loss(x[0], x[1], o)};
           },
           .reference = [=](const auto& x) -> std::vector<DenseArray> {
             const int samples = options.per_sample ? 3 : 1;
             double score = 0.0, divisor = 0.0;
             for (int n = 0; n < samples; ++n) {
               for (int k = 0; k < 4; ++k) {
                 double both = 0.0, each = 0.0;
                 for_each({3, 4, 3}, [&](const Index& i) {
                   if (options.per_sample && i[0] != n) return;
                   const double p = x[0](i[0], i[1], i[2], k);
                   double t = 0.0, w = x[3](i[1], 0, 0);
                   if (number) {
                     t = x[1][i] == k ? 1.0 : 0.0;
                     if (x[1][i] < 0) w = 0.0;
                   } else {
                     t = x[1](i[0], i[1], i[2], k);
                   }
                   both += w * p * t;
                   each += w * (options.squared ? p * p + t * t : p + t);
                 });
                 const double w = class_weighted ? x[2](k) : 1.0;
                 score += w * (2 * both + options.smooth) / (each + options.smooth);
                 divisor += w;
               }
             }
             return {DenseArray({}, 1.0 - score / divisor)};
           },
           .may_throw = disagree};
  return c;
}

}  // namespace

OP_TEST("cross-entropy with class weights") { return cross_entropy_case(true, 0.0, -1); }
OP_TEST("cross-entropy with smoothed labels") { return cross_entropy_case(false, 0.2, -1); }
OP_TEST("cross-entropy with an ignored class") { return cross_entropy_case(false, 0.0, 2); }
OP_TEST("cross-entropy with everything") { return cross_entropy_case(true, 0.1, 0); }
OP_TEST("cross-entropy without options") { return cross_entropy_case(false, 0.0, -1); }

OP_TEST("binary cross-entropy of logits") {
  return binary_case(
      [](const auto& x) {
        return nn::bce_with_logits(x[0], x[1], {.pos_weight = x[3], .weight = x[2]});
      },
      [](double x, double t, double pos) {
        return pos * t * softplus_of(-x) + (1 - t) * softplus_of(x);
      },
      uniform({3, 5, 2}, 0.0, 1.0));
}
OP_TEST("focal loss") {
  return binary_case(
      [](const auto& x) {
        return nn::focal_loss(x[0], x[1], {.gamma = 1.5, .alpha = 0.3, .weight = x[2]});
      },
      [](double x, double t, double) {
        const double p = 1.0 / (1.0 + std::exp(-x));
        return t == 1.0 ? -0.3 * std::pow(1 - p, 1.5) * std::log(p)
                        : -0.7 * std::pow(p, 1.5) * std::log(1 - p);
      },
      integers({3, 5, 2}, 0, 1));
}
OP_TEST("focal loss without alpha") {
  return binary_case(
      [](const auto& x) {
        return nn::focal_loss(x[0], x[1], {.gamma = 0.0, .alpha = -1.0, .weight = x[2]});
      },
      [](double x, double t, double) { return softplus_of(t == 1.0 ? -x : x); }, flags({3, 5, 2}));
}

OP_TEST("dice of class numbers") { return dice_case(true, {}, false); }
OP_TEST("dice of class numbers per sample") {
  return dice_case(true, {.smooth = 0.1, .per_sample = true}, true);
}
OP_TEST("dice of probabilities, squared") { return dice_case(false, {.squared = true}, true); }

TEST_CASE("binary losses hold for any logit, with their gradients") {
  const Layout layout = Layout::replicated(line(), {4});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    DenseArray logits({4});
    logits.values = {-200, 200, -200, 200};
    DenseArray target({4});
    target.values = {1, 0, 0, 1};
    const Tensor t = to_tensor(target, layout);
    const Tensor x = require_grad(to_tensor(logits, layout, dtype));
    const Tensor bce = nn::bce_with_logits(x, t);
    CHECK(bce.item() == Approx(100.0));
    backward(bce + nn::focal_loss(x, t, {.gamma = 0.5, .alpha = -1}));
    DenseArray expected({4});
    expected.values = {-0.5, 0.5, 0.0, 0.0};
    CHECK(compare("gradient", gradient(x), expected, 1e-5) == "");
    // What is small stays exact: log1p(exp(-20)).
    const Tensor small = to_tensor(DenseArray({4}, -20.0), layout, dtype);
    CHECK(nn::bce_with_logits(small, to_tensor(DenseArray({4}, 0.0), layout)).item() ==
          Approx(std::log1p(std::exp(-20.0))).epsilon(1e-5));
  }
}

TEST_CASE("class losses refuse what does not fit") {
  const auto zeros = [&](const Shape& s, DType dtype = DType::kFloat32) {
    return Tensor::zeros(Layout::replicated(line(), s), dtype);
  };
  const Tensor x = zeros({3, 4});
  const Tensor y = zeros({3}, DType::kInt64);
  CHECK_THROWS_AS(nn::cross_entropy(x, y, {.label_smoothing = 1.5}), UsageError);
  CHECK_THROWS_AS(nn::cross_entropy(x, y, {.class_weight = zeros({3})}), ShapeError);
  CHECK_THROWS_AS(nn::cross_entropy(x, zeros({3}), {.ignore = 0}), DTypeError);
  CHECK_THROWS_AS(nn::cross_entropy(x, zeros({4}, DType::kInt64), {.ignore = 0}), ShapeError);
  CHECK_THROWS_AS(nn::bce_with_logits(x, zeros({3, 1})), ShapeError);
  CHECK_THROWS_AS(nn::bce_with_logits(x, x, {.pos_weight = zeros({3})}), ShapeError);
  CHECK_THROWS_AS(nn::focal_loss(x, x, {.gamma = -1}), UsageError);
  CHECK_THROWS_AS(nn::dice_loss(zeros({0, 3, 4}), zeros({0, 3}, DType::kInt64)), ShapeError);
  CHECK_THROWS_AS(nn::dice_loss(x, zeros({3}, DType::kBool)), DTypeError);
}

}  // namespace tessera::test
