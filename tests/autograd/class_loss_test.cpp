// ranks: 1 2 3 4
// Losses of classes; some targets are no class.

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// softmax of each row of logits [samples, classes].
std::vector<double> probabilities(const DenseArray& logits, std::size_t classes) {
  std::vector<double> p = logits.values;
  for (std::size_t row = 0; row < p.size(); row += classes) {
    double sum = 0.0;
    for (std::size_t c = 0; c < classes; ++c) sum += p[row + c] = std::exp(p[row + c]);
    for (std::size_t c = 0; c < classes; ++c) p[row + c] /= sum;
  }
  return p;
}

double entropy_reference(const DenseArray& logits, const DenseArray& target) {
  const std::size_t classes = logits.values.size() / target.values.size();
  const std::vector<double> p = probabilities(logits, classes);
  double sum = 0.0, count = 0.0;
  for (std::size_t s = 0; s < target.values.size(); ++s) {
    const double t = target.values[s];
    if (t < 0.0 || t >= static_cast<double>(classes)) continue;
    sum -= std::log(p[s * classes + static_cast<std::size_t>(t)]);
    count += 1.0;
  }
  return sum / count;
}

double dice_reference(const DenseArray& logits, const DenseArray& target) {
  const std::size_t classes = logits.values.size() / target.values.size();
  const std::vector<double> p = probabilities(logits, classes);
  double mean = 0.0;
  for (std::size_t c = 0; c < classes; ++c) {
    double common = 0.0, both = 0.0;
    for (std::size_t s = 0; s < target.values.size(); ++s) {
      const double t = target.values[s];
      if (t < 0.0 || t >= static_cast<double>(classes)) continue;
      const bool is = t == static_cast<double>(c);
      common += is ? p[s * classes + c] : 0.0;
      both += p[s * classes + c] + (is ? 1.0 : 0.0);
    }
    mean += (2.0 * common + 1.0) / (both + 1.0) / static_cast<double>(classes);
  }
  return 1.0 - mean;
}

OpCase loss_case(Tensor (*loss)(const Tensor&, const Tensor&),
                 double (*reference)(const DenseArray&, const DenseArray&),
                 const Shape& samples,
                 std::int64_t classes,
                 std::int64_t lowest = -1) {
  Shape logits = samples;
  logits.push_back(classes);
  return {.inputs = {uniform(logits, -2.0, 2.0), integers(samples, lowest, classes - 1)},
          .f = [=](const auto& x) { return std::vector{loss(x[0], x[1])}; },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            return {DenseArray({}, reference(x[0], x[1]))};
          },
          .may_throw = disagree};
}

constexpr double kWeight = 0.7;

Tensor both_losses(const Tensor& logits, const Tensor& target) {
  return segmentation_loss(logits, target, kWeight);
}

double both_reference(const DenseArray& logits, const DenseArray& target) {
  return entropy_reference(logits, target) + kWeight * dice_reference(logits, target);
}

}  // namespace

OP_TEST("cross-entropy of points") {
  return loss_case(cross_entropy, entropy_reference, {2, 3, 5}, 4);
}
OP_TEST("cross-entropy and Dice of points") {
  return loss_case(both_losses, both_reference, {2, 3, 5}, 4);
}
OP_TEST("cross-entropy and Dice of rows") { return loss_case(both_losses, both_reference, {7}, 3); }

TEST_CASE("a class that is neither there nor said costs next to nothing") {
  const Tensor target = to_self(DenseArray({4}, 0.0), DType::kInt32);
  DenseArray logits({4, 3}, -20.0);
  for (std::size_t s = 0; s < 4; ++s) logits.values[3 * s] = 20.0;
  const auto dice = [&] {
    const Tensor x = to_self(logits);
    return segmentation_loss(x, target).item() - cross_entropy(x, target).item();
  };
  CHECK(dice() < 1e-12);
  for (std::size_t s = 0; s < 4; ++s) std::swap(logits.values[3 * s], logits.values[3 * s + 1]);
  // Nothing of class 0 is found, all of class 1 is wrong, class 2 is right to be nowhere.
  CHECK(dice() == Approx((0.8 + 0.8) / 3.0));
}

TEST_CASE("targets that do not fit are refused") {
  const Tensor logits = to_self(DenseArray({4, 3}, 0.0));
  CHECK_THROWS_AS(segmentation_loss(logits, to_self(DenseArray({3}, 0.0), DType::kInt32)),
                  ShapeError);
  CHECK_THROWS_AS(segmentation_loss(logits, to_self(DenseArray({4}, 0.0))), DTypeError);
}

// A mean over nothing is not a number on one rank, and has no reference.
OP_TABLE("segmentation_loss", TableOptions{.refuses = [](auto n) { return n == 0; }}) {
  return loss_case(both_losses, both_reference, {2, n}, 5, 0);
}
