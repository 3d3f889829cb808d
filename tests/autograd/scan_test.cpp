// ranks: 1 2 3 4
// deep: 1 4

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/scan.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

DenseArray running(const DenseArray& x, int dim, bool reverse) {
  DenseArray y(x.shape);
  for_each(x.shape, [&](const Index& i) {
    Index j = i;
    for (j[dim] = 0; j[dim] < x.shape[dim]; ++j[dim])
      if (reverse ? j[dim] >= i[dim] : j[dim] <= i[dim]) y[i] += x[j];
  });
  return y;
}

}  // namespace

OP_TEST("running sums along each dimension") {
  return {.inputs = {uniform({4, 9, 3})},
          .f =
              [](const auto& x) {
                return std::vector{cumsum(x[0], 0), cumsum(x[0], 1), cumsum(x[0], -1),
                                   cumsum(x[0], 1, true)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {running(x[0], 0, false), running(x[0], 1, false), running(x[0], 2, false),
                    running(x[0], 1, true)};
          },
          .linear = {{0}}};
}

OP_TEST("integers, and what depends on a running sum in a curve") {
  return {.inputs = {integers({11, 2}, -5, 5), uniform({13})},
          .f =
              [](const auto& x) {
                return std::vector{cumsum(x[0], 0), square(cumsum(x[1], 0)),
                                   cumsum(square(x[1]), 0, true)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray a = running(x[1], 0, false), b = x[1];
            for (double& v : a.values) v *= v;
            for (double& v : b.values) v *= v;
            return {running(x[0], 0, false), a, running(b, 0, true)};
          },
          .bf16_tolerance = 8e-2};
}

RANDOM_OP_TEST("running sums of random sizes") {
  const Shape shape{rng.integer(0, 7), rng.integer(1, 40), rng.integer(1, 5)};
  const int dim = static_cast<int>(rng.integer(0, 2));
  const bool reverse = rng.coin();
  return {.inputs = {uniform(shape)},
          .f = [=](const auto& x) { return std::vector{cumsum(x[0], dim, reverse)}; },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            return {running(x[0], dim, reverse)};
          },
          .linear = {{0}}};
}

TEST_CASE("long lines, dense and strided, on threads") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  for (const Shape& shape : {Shape{3, 3000}, Shape{1200, 601}, Shape{2, 700, 33}}) {
    for (int dim = 0; dim < shape.size(); ++dim) {
      const Layout layout = Placement(mesh).shard(1, {"a"}).resolve(shape);
      const Tensor x = to_tensor(random_array(shape, 7), layout, DType::kFloat64);
      DenseArray expected = to_dense(x);
      const Strides step = row_major(shape);
      for (std::size_t i = 0; i < expected.values.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i) / step[dim] % shape[dim];
        if (at > 0) expected.values[i] += expected.values[i - static_cast<std::size_t>(step[dim])];
      }
      report(compare(str(shape, " ", dim), cumsum(x, dim), expected, 1e-12));
    }
  }
  const Tensor flags = Tensor::zeros(Layout::replicated(mesh, {3}), DType::kBool);
  REQUIRE_THROWS_AS(cumsum(flags, 0), DTypeError);
  REQUIRE_THROWS_AS(cumsum(cast(flags, DType::kInt32), 1), ShapeError);
}

OP_TABLE("cumsum") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{cumsum(x[0], 1)};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {running(x[0], 1, false)};
          }};
}
