// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/autograd/ops/softmax.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Over all dimensions for which `over` is set.
DenseArray reference(const DenseArray& x, const std::vector<bool>& over, bool logarithm) {
  DenseArray y = x;
  for_each(x.shape, [&](const Index& i) {
    double total = 0.0;
    for_each(x.shape, [&](const Index& j) {
      for (int d = 0; d < j.size(); ++d)
        if (!over[static_cast<std::size_t>(d)] && i[d] != j[d]) return;
      total += std::exp(x[j] - x[i]);
    });
    y[i] = logarithm ? -std::log(total) : 1.0 / total;
  });
  return y;
}

}  // namespace

OP_TEST("softmax over the last dimension") {
  return {.inputs = {uniform({4, 3, 5})},
          .f = [](const auto& x) { return std::vector{softmax(x[0])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {reference(x[0], {false, false, true}, false)};
          }};
}

OP_TEST("softmax over a long last dimension of a permuted tensor") {
  return {.inputs = {uniform({35, 3, 2}, -3.0, 3.0)},
          .f =
              [](const auto& x) {
                return std::vector{softmax(permute(x[0], {2, 1, 0}))};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray turned({2, 3, 35});
            for_each(turned.shape, [&](const Index& i) { turned[i] = x[0](i[2], i[1], i[0]); });
            return {reference(turned, {false, false, true}, false)};
          }};
}

OP_TEST("softmax over two dimensions") {
  return {.inputs = {uniform({4, 3, 5})},
          .f =
              [](const auto& x) {
                return std::vector{softmax(x[0], {0, 2})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {reference(x[0], {true, false, true}, false)};
          }};
}

OP_TEST("log_softmax") {
  return {.inputs = {uniform({4, 3, 5}, -3.0, 3.0)},
          .f = [](const auto& x) { return std::vector{log_softmax(x[0], {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {reference(x[0], {false, true, false}, true)};
          }};
}

TEST_CASE("large values do not overflow") {
  DenseArray x(Shape{3});
  x.values = {1e4, 1e4, -1e4};
  const Tensor y = softmax(to_self(x));
  CHECK(y.at({0}) == 0.5);
  CHECK(y.at({2}) == 0.0);
}

OP_TABLE("softmax") {
  return {.inputs = {uniform({2, n, 5})},
          .f = [](const auto& x) { return std::vector{softmax(x[0], {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {reference(x[0], {false, true, false}, false)};
          }};
}
OP_TABLE("log_softmax") {
  return {.inputs = {uniform({2, n, 5}, -3.0, 3.0)},
          .f = [](const auto& x) { return std::vector{log_softmax(x[0], {1})}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {reference(x[0], {false, true, false}, true)};
          }};
}
