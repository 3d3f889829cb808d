// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

using Loss = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;

OpCase loss_case(const Loss& loss, double (*term)(double), InputSpec prediction, bool weighted) {
  InputSpec target = constant(given(DenseArray(prediction.shape, 0.1)));
  InputSpec weight = constant(uniform(prediction.shape, 0.0, 2.0));
  OpCase c{
      .inputs = {std::move(prediction), std::move(target)},
      .f = [=](const auto& x) { return std::vector{loss(x[0], x[1], weighted ? x[2] : Tensor())}; },
      .reference = [=](const auto& x) -> std::vector<DenseArray> {
        double sum = 0, count = 0;
        for (std::size_t i = 0; i < x[0].values.size(); ++i) {
          const double w = weighted ? x[2].values[i] : 1.0;
          sum += w * term(x[0].values[i] - x[1].values[i]);
          count += w;
        }
        return {DenseArray({}, sum / count)};
      },
      .may_throw = disagree};
  if (weighted) c.inputs.push_back(weight);
  return c;
}

Loss mse() {
  return [](const Tensor& p, const Tensor& t, const Tensor& w) { return mse_loss(p, t, w); };
}

}  // namespace

OP_TEST("mean squared error") {
  return loss_case(
      mse(), [](double d) { return d * d; }, uniform({3, 7, 2}), false);
}
OP_TEST("weighted mean squared error") {
  return loss_case(
      mse(), [](double d) { return d * d; }, uniform({3, 7, 2}), true);
}
OP_TEST("mean absolute error") {
  return loss_case(
      [](const Tensor& p, const Tensor& t, const Tensor& w) { return l1_loss(p, t, w); },
      [](double d) { return std::fabs(d); }, away_from({4, 6}, {0.1}), false);
}
OP_TEST("Huber") {
  return loss_case(
      [](const Tensor& p, const Tensor& t, const Tensor& w) { return huber_loss(p, t, 0.5, w); },
      [](double d) { return std::fabs(d) <= 0.5 ? d * d / 2 : 0.5 * (std::fabs(d) - 0.25); },
      away_from({4, 6}, {-0.4, 0.1, 0.6}), true);
}

TEST_CASE("uneven parts: the mean is over all elements, not of the means of the parts") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  Bounds bounds(static_cast<std::size_t>(mesh.size()), 0);
  bounds.push_back(10);
  if (mesh.size() > 2) bounds[static_cast<std::size_t>(mesh.size()) - 1] = 9;
  const Layout layout = Layout::make(mesh, {10}, {{{0}, bounds}});
  const Tensor p =
      Tensor::from_function(layout, [](const Index& i) { return i[0] == 9 ? 10.0 : 0.0; });
  REQUIRE(mse_loss(p, Tensor::zeros(layout)).item() == 10.0);
}

TEST_CASE("shapes that differ throw") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const auto zeros = [&](const Shape& s) { return Tensor::zeros(Layout::replicated(mesh, s)); };
  REQUIRE_THROWS_AS(mse_loss(zeros({3, 1}), zeros({3})), ShapeError);
  REQUIRE_THROWS_AS(l1_loss(zeros({3}), zeros({3}), zeros({1})), ShapeError);
  REQUIRE_THROWS_AS(mse_loss(zeros({0}), zeros({0})), ShapeError);
  REQUIRE_THROWS_AS(huber_loss(zeros({3}), zeros({3}), 0.0), UsageError);
}

namespace {
/// A mean over nothing is not a number on one rank, and has no reference.
const TableOptions some{.refuses = [](auto n) { return n == 0; }};
}  // namespace

OP_TABLE("mse_loss", some) {
  return loss_case(
      mse(), [](double d) { return d * d; }, uniform({2, n, 3}), true);
}
OP_TABLE("l1_loss", some) {
  return loss_case(
      [](const Tensor& p, const Tensor& t, const Tensor& w) { return l1_loss(p, t, w); },
      [](double d) { return std::fabs(d); }, away_from({2, n, 3}, {0.1}), false);
}
OP_TABLE("huber_loss", some) {
  return loss_case(
      [](const Tensor& p, const Tensor& t, const Tensor& w) { return huber_loss(p, t, 0.5, w); },
      [](double d) { return std::fabs(d) <= 0.5 ? d * d / 2 : 0.5 * (std::fabs(d) - 0.25); },
      away_from({2, n, 3}, {-0.4, 0.1, 0.6}), true);
}
OP_TABLE("cross_entropy", some) {
  return {.inputs = {uniform({2, n, 5}, -2.0, 2.0), integers({2, n}, 0, 4)},
          .f = [](const auto& x) { return std::vector{cross_entropy(x[0], x[1])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            double total = 0.0;
            for_each(x[1].shape, [&](const Index& i) {
              double sum = 0.0;
              for (int c = 0; c < 5; ++c) sum += std::exp(x[0](i[0], i[1], c));
              total += std::log(sum) - x[0](i[0], i[1], x[1][i]);
            });
            return {DenseArray({}, total / static_cast<double>(x[1].size()))};
          },
          .may_throw = disagree};
}
