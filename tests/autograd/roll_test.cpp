// ranks: 1 2 3 4
// deep: 1 4

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/roll.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

DenseArray rolled(const DenseArray& x, const Dims& shifts) {
  DenseArray y(x.shape);
  for_each(x.shape, [&](const Index& i) {
    Index j = i;
    for (int d = 0; d < i.size(); ++d)
      j[d] = ((i[d] + shifts[d]) % x.shape[d] + x.shape[d]) % x.shape[d];
    y[j] = x[i];
  });
  return y;
}

DenseArray flipped(const DenseArray& x, const Dims& dims) {
  DenseArray y(x.shape);
  for_each(x.shape, [&](const Index& i) {
    Index j = i;
    for (int d = 0; d < i.size(); ++d)
      if (dims.contains(d)) j[d] = x.shape[d] - 1 - i[d];
    y[j] = x[i];
  });
  return y;
}

}  // namespace

OP_TEST("roll along each dimension, and along several") {
  return {.inputs = {uniform({3, 8, 5})},
          .f =
              [](const auto& x) {
                return std::vector{roll(x[0], {1}, {1}), roll(x[0], {-3, 2}, {1, -1}),
                                   roll(x[0], {7, 100, -13}, {0, 1, 2}), roll(x[0], {4}, {1})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {rolled(x[0], {0, 1, 0}), rolled(x[0], {0, -3, 2}), rolled(x[0], {7, 100, -13}),
                    rolled(x[0], {0, 4, 0})};
          },
          .linear = {{0}},
          .exact = true};
}

OP_TEST("flip") {
  return {.inputs = {uniform({4, 7, 3})},
          .f =
              [](const auto& x) {
                return std::vector{flip(x[0], {1}), flip(x[0], {0, -1}), flip(x[0])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {flipped(x[0], {1}), flipped(x[0], {0, 2}), flipped(x[0], {0, 1, 2})};
          },
          .linear = {{0}},
          .exact = true};
}

OP_TEST("integers and truth values move, too; sizes 0 and 1") {
  return {.inputs = {integers({5, 6}, -9, 9), flags({6, 1, 4}), uniform({3, 0})},
          .f =
              [](const auto& x) {
                return std::vector{roll(x[0], {2, 2}, {0, 1}), flip(x[1], {0, 1}),
                                   roll(x[1], {5}, {1}), flip(roll(x[2], {1, 1}, {0, 1}))};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {rolled(x[0], {2, 2}), flipped(x[1], {0, 1}), x[1], x[2]};
          },
          .exact = true};
}

RANDOM_OP_TEST("roll and flip of random sizes") {
  const Shape shape{rng.integer(1, 9), rng.integer(1, 9), rng.integer(1, 4)};
  const Dims shifts{rng.integer(-20, 20), rng.integer(-20, 20), rng.integer(-5, 5)};
  Dims mirrored;
  for (int d = 0; d < 3; ++d)
    if (rng.coin()) mirrored.push_back(d);
  if (mirrored.empty()) mirrored.push_back(1);
  return {.inputs = {uniform(shape)},
          .f =
              [=](const auto& x) {
                return std::vector{roll(x[0], shifts, {0, 1, 2}), flip(x[0], mirrored)};
              },
          .reference = [=](const auto& x) -> std::vector<DenseArray> {
            return {rolled(x[0], shifts), flipped(x[0], mirrored)};
          },
          .linear = {{0}},
          .exact = true};
}

TEST_CASE("a roll keeps the layout and sends what crosses a boundary") {
  const int ranks = process().count;
  const Mesh mesh = Mesh::world({{"a", ranks}});
  const Layout layout = Placement(mesh).shard(0, {"a"}).resolve({12 * ranks, 3});
  const Tensor x = Tensor::full(layout, 1.0);
  // Two rows of three numbers of four bytes from each rank to the next; the short way around.
  const std::int64_t crossing = ranks > 1 ? ranks : 0;
  expect_traffic(crossing * 2 * 3 * 4, crossing,
                 [&] { REQUIRE(roll(x, {2}, {0}).layout() == layout); });
  expect_traffic(crossing * 2 * 3 * 4, crossing, [&] { roll(x, {12 * ranks - 2}, {0}); });
  expect_traffic(0, 0, [&] { roll(x, {1}, {1}); });
  REQUIRE_THROWS_AS(roll(x, {1, 2}, {0}), ShapeError);
  REQUIRE_THROWS_AS(roll(x, {1, 2}, {0, -2}), ShapeError);
  REQUIRE_THROWS_AS(flip(x, {0, 0}), ShapeError);
  REQUIRE_THROWS_AS(flip(x, {2}), ShapeError);
}

OP_TABLE("roll") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{roll(x[0], {2}, {1})};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {n == 0 ? x[0] : rolled(x[0], {0, 2, 0})};
          }};
}

OP_TABLE("flip") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [n](const auto& x) {
                (void)n;
                return std::vector{flip(x[0], {1})};
              },
          .reference = [n](const auto& x) -> std::vector<DenseArray> {
            (void)n;
            return {flipped(x[0], {1})};
          }};
}
