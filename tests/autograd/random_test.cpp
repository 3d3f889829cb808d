// ranks: 1 2 3 4

#include <Random123/philox.h>

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/random.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr RandomKey kKey{0x1234567890abcdefull, 42};

/// Word of element i as the reference implementation of Philox 4x32-10 gives it.
std::uint32_t word(std::uint64_t i) {
  const std::uint64_t block = i / 4;
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(kKey.low), static_cast<std::uint32_t>(kKey.low >> 32)}};
  const r123::Philox4x32::key_type key = {
      {static_cast<std::uint32_t>(kKey.high), static_cast<std::uint32_t>(kKey.high >> 32)}};
  return r123::Philox4x32()(counter, key)[i % 4];
}

}  // namespace

OP_TEST("dropout") {
  InputSpec x = uniform({3, 7, 5});
  x.partial = false;
  return {.inputs = {x},
          .f = [](const auto& t) { return std::vector{dropout(t[0], 0.3, kKey)}; },
          .reference = [](const auto& t) -> std::vector<DenseArray> {
            DenseArray y = t[0];
            for (std::size_t i = 0; i < y.values.size(); ++i)
              y.values[i] = word(i) < 0.3 * 0x1p32 ? 0.0 : y.values[i] / 0.7;
            return {y};
          },
          .linear = {{0}},
          .tolerance = 1e-15};
}

OP_TEST("dropout of a pending sum") {
  return {.inputs = {uniform({4, 6})},
          .f = [](const auto& t) { return std::vector{dropout(t[0], 0.5, kKey)}; },
          .reference = [](const auto& t) -> std::vector<DenseArray> {
            DenseArray y = t[0];
            for (std::size_t i = 0; i < y.values.size(); ++i)
              y.values[i] = word(i) < 0.5 * 0x1p32 ? 0.0 : y.values[i] * 2;
            return {y};
          },
          .linear = {{0}}};
}

TEST_CASE("new random tensors are the same on any mesh") {
  for (const Mesh& mesh : test_meshes()) {
    Rng rng(7);
    for (int trial = 0; trial < 10; ++trial) {
      const Shape shape{5, 7, 3};
      const Layout layout = draw_layout(mesh, shape, rng);
      DenseArray uniform_values(shape), normal_values(shape);
      for (std::size_t i = 0; i < uniform_values.values.size(); ++i) {
        uniform_values.values[i] = -1 + 3 * (word(i) * 0x1p-32);
        const std::size_t even = i & ~std::size_t{1};
        const double radius = std::sqrt(-2 * std::log((word(even) + 1.0) * 0x1p-32));
        const double angle = 2 * M_PI * 0x1p-32 * word(even + 1);
        normal_values.values[i] =
            2 + 0.5 * radius * (i == even ? std::cos(angle) : std::sin(angle));
      }
      report(compare("uniform", random_uniform(layout, kKey, -1, 2, DType::kFloat64),
                     uniform_values, 1e-14));
      report(compare("normal", random_normal(layout, kKey, 2, 0.5, DType::kFloat64), normal_values,
                     1e-13));
      report(compare("fp32", random_normal(layout, kKey, 2, 0.5), normal_values, 1e-6));
    }
  }
}

TEST_CASE("what cannot be drawn throws") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout layout = Layout::replicated(mesh, {4});
  if (mesh.size() > 1)
    REQUIRE_THROWS_AS(random_uniform(layout.with_partial(mesh.all_axes()), kKey), LayoutError);
  REQUIRE_THROWS_AS(random_normal(layout, kKey, 0, 1, DType::kInt32), DTypeError);
  REQUIRE_THROWS_AS(dropout(Tensor::zeros(layout), 1.0, kKey), UsageError);
  REQUIRE_THROWS_AS(dropout(Tensor::zeros(layout, DType::kInt32), 0.5, kKey), DTypeError);
}

OP_TABLE("dropout") {
  return {.inputs = {uniform({2, n, 5})},
          .f = [](const auto& t) { return std::vector{dropout(t[0], 0.5, kKey)}; },
          .reference = [](const auto& t) -> std::vector<DenseArray> {
            DenseArray y = t[0];
            for (std::size_t i = 0; i < y.values.size(); ++i)
              y.values[i] = word(i) < 0.5 * 0x1p32 ? 0.0 : y.values[i] * 2;
            return {y};
          }};
}

OP_TABLE("random_uniform") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [](const auto& t) {
                return std::vector{
                    random_uniform(t[0].layout().dual(), kKey, -1.0, 2.0, DType::kFloat64)};
              },
          .first = false};
}
OP_TABLE("random_normal") {
  return {.inputs = {uniform({2, n, 3})},
          .f =
              [](const auto& t) {
                return std::vector{
                    random_normal(t[0].layout().dual(), kKey, 1.0, 2.0, DType::kFloat64)};
              },
          .first = false};
}
