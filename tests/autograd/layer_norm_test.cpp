// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/norm.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

DenseArray normalised(const DenseArray& x,
                      const DenseArray& gamma,
                      const DenseArray& beta,
                      bool centred,
                      double eps) {
  const auto channels = static_cast<std::size_t>(x.shape.back());
  DenseArray y = x;
  for (std::size_t row = 0; row < x.values.size(); row += channels) {
    double mean = 0, m2 = 0;
    for (std::size_t j = 0; centred && j < channels; ++j)
      mean += x.values[row + j] / double(channels);
    for (std::size_t j = 0; j < channels; ++j) m2 += std::pow(x.values[row + j] - mean, 2);
    for (std::size_t j = 0; j < channels; ++j) {
      double& z = y.values[row + j];
      z = (z - mean) / std::sqrt(m2 / double(channels) + eps);
      if (!gamma.absent) z *= gamma.values[j];
      if (!beta.absent) z += beta.values[j];
    }
  }
  return y;
}

/// Channels or parameters that are split are errors with advice.
bool channels_split(const std::vector<Layout>& layouts) {
  for (std::size_t i = 0; i < layouts.size(); ++i)
    if (layouts[i].defined() && layouts[i].is_split(layouts[i].dims() - 1)) return true;
  return false;
}

}  // namespace

OP_TEST("layer normalisation of tokens") {
  return {.inputs = {uniform({2, 5, 6}, 1, 3), uniform({6}, 0.5, 1.5), uniform({6})},
          .f = [](const auto& x) { return std::vector{layer_norm(x[0], x[1], x[2], 1e-2)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {normalised(x[0], x[1], x[2], true, 1e-2)};
          },
          .may_throw = channels_split,
          .tolerance = 1e-10,
          .difference_tolerance = 1e-5,
          .bf16_tolerance = 0.2};
}

OP_TEST("layer normalisation of an image without parameters") {
  return {.inputs = {uniform({2, 3, 4, 5})},
          .f = [](const auto& x) { return std::vector{layer_norm(x[0], {}, {}, 1e-2)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray none;
            none.absent = true;
            return {normalised(x[0], none, none, true, 1e-2)};
          },
          .may_throw = channels_split,
          .tolerance = 1e-10,
          .difference_tolerance = 1e-5,
          .bf16_tolerance = 0.2};
}

OP_TEST("RMS normalisation") {
  return {.inputs = {uniform({3, 7}), uniform({7}, 0.5, 1.5)},
          .f = [](const auto& x) { return std::vector{rms_norm(x[0], x[1], 1e-2)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray none;
            none.absent = true;
            return {normalised(x[0], x[1], none, false, 1e-2)};
          },
          .may_throw = channels_split,
          .tolerance = 1e-10,
          .difference_tolerance = 1e-5,
          .bf16_tolerance = 0.2};
}

TEST_CASE("rows stay where they are, and wrong parameters throw on every rank") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Tensor x = Tensor::full(Placement(mesh).shard(1, {"a"}).resolve({2, 9, 4}), 1.0);
  const Tensor gamma = Tensor::full(Layout::replicated(mesh, {4}), 1.0);
  expect_traffic(0, 0, [&] { REQUIRE(layer_norm(x, gamma, {}).layout() == x.layout()); });
  REQUIRE_THROWS_AS(layer_norm(x, Tensor::zeros(Layout::replicated(mesh, {3})), {}), ShapeError);
  REQUIRE_THROWS_AS(rms_norm(Tensor::zeros(Layout::replicated(mesh, {2, 0})), {}), ShapeError);
  REQUIRE_THROWS_AS(rms_norm(Tensor::zeros(Layout::replicated(mesh, {2, 3}), DType::kInt32), {}),
                    DTypeError);
}

OP_TABLE("layer_norm") {
  return {.inputs = {uniform({2, n, 6}, 1, 3), uniform({6}, 0.5, 1.5), uniform({6})},
          .f = [](const auto& x) { return std::vector{layer_norm(x[0], x[1], x[2], 1e-2)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {normalised(x[0], x[1], x[2], true, 1e-2)};
          },
          .may_throw = channels_split};
}
OP_TABLE("rms_norm") {
  return {.inputs = {uniform({2, n, 7}), uniform({7}, 0.5, 1.5)},
          .f = [](const auto& x) { return std::vector{rms_norm(x[0], x[1], 1e-2)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray none;
            none.absent = true;
            return {normalised(x[0], x[1], none, false, 1e-2)};
          },
          .may_throw = channels_split};
}
