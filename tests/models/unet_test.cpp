// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/models/unet.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using models::UNet;
using models::UNetOptions;
using Down = UNetOptions::Down;
using Up = UNetOptions::Up;
using InputSkip = UNetOptions::InputSkip;

/// Output and all gradients, the input's first.
std::vector<Tensor> run(UNet& model, const Tensor& input, std::uint64_t seed) {
  const Tensor x = require_grad(input);
  const Tensor y = model(x);
  backward(sum(y * to_tensor(random_array(y.shape(), seed), y.layout().dual())));
  std::vector<Tensor> all = {y, gradient(x)};
  for (const nn::Parameter& p : model.parameters()) all.push_back(gradient(p.value()));
  return all;
}

/// Output and gradients on every mesh and several cuts of the input against one rank.
void check_cuts(const UNetOptions& options, const Shape& shape) {
  Rng rng(from_process_0(run_seed()));
  const DenseArray x = random_array(shape, rng.bits());
  const std::uint64_t seed = rng.bits();
  UNet one(options, Mesh::self(), DType::kFloat64);
  std::vector<DenseArray> expected;
  for (const Tensor& t : run(one, to_self(x), seed)) expected.push_back(to_dense(t));
  CHECK(expected[0].shape[1] == shape[1] * options.upscale);
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < 2; ++variant) {
      std::vector<int> dims;
      int next = static_cast<int>(rng.integer(0, options.dims));
      for (int a = 0; a < mesh.axis_count(); ++a) {
        dims.push_back(next);
        next = (next + 1) % (options.dims + 1);
      }
      const Layout layout = draw_layout(mesh, shape, dims, variant, rng);
      UNet many(options, mesh, DType::kFloat64);
      INFO("mesh " << mesh.str() << ", input " << layout.str());
      const std::vector<Tensor> actual = run(many, to_tensor(x, layout), seed);
      REQUIRE(actual.size() == expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i) {
        CHECK(compare(str("tensor ", i), actual[i], expected[i], 1e-10, 1e-3) == "");
      }
    }
  }
}

UNetOptions small(int dims) {
  UNetOptions o;
  o.dims = dims;
  o.base = 4;
  o.multipliers = {1, 2, 3};
  o.norm_groups = 2;
  return o;
}

}  // namespace

TEST_CASE("unet 1-D: any mesh gives one answer") { check_cuts(small(1), {2, 21, 1}); }

TEST_CASE("unet 2-D: any mesh gives one answer") {
  UNetOptions o = small(2);
  o.in_channels = 3;
  o.out_channels = 2;
  o.edges = {EdgeRule::kReplicate, EdgeRule::kCircular};
  SECTION("strided and transposed convolutions") {
    o.blocks = 2;
    check_cuts(o, {2, 13, 18, 3});
  }
  SECTION("maximum and linear interpolation") {
    o.down = Down::kMaxPool;
    o.up = Up::kLinear;
    o.edges = {EdgeRule::kZero};
    check_cuts(o, {1, 11, 9, 3});
  }
  SECTION("mean and nearest") {
    o.down = Down::kAvgPool;
    o.up = Up::kNearest;
    o.activation = Activation::kGelu;
    check_cuts(o, {1, 12, 10, 3});
  }
  SECTION("finer output, no norm") {
    o.norm_groups = 0;
    o.upscale = 3;
    o.input_skip = InputSkip::kCubic;
    o.conserve_means = true;
    o.detail_scale = 0.5;
    check_cuts(o, {1, 7, 8, 3});
  }
}

TEST_CASE("unet 3-D: any mesh gives one answer") {
  UNetOptions o = small(3);
  o.edges = {EdgeRule::kReflect, EdgeRule::kZero, EdgeRule::kCircular};
  check_cuts(o, {1, 9, 6, 7, 1});
}

TEST_CASE("unet of patches, with attention: any mesh gives one answer") {
  UNetOptions o = small(3);
  o.multipliers = {1, 2};
  o.patch = 2;
  o.out_channels = 3;
  SECTION("patches") { check_cuts(o, {1, 9, 6, 7, 1}); }
  SECTION("patches and attention") {
    o.attention_blocks = 1;
    o.heads = 2;
    check_cuts(o, {2, 5, 6, 4, 1});
  }
  SECTION("attention in 2-D, finer output") {
    o.dims = 2;
    o.upscale = 2;
    o.attention_blocks = 2;
    o.edges = {EdgeRule::kCircular, EdgeRule::kReplicate};
    check_cuts(o, {1, 8, 6, 1});
  }
}

TEST_CASE("unet has the size and stride it says") {
  UNetOptions o = small(2);
  UNet model(o, Mesh::self());
  CHECK(model.total_stride() == 4);
  for (const std::int64_t n : {4, 5, 7, 8, 13}) {
    const Tensor x = Tensor::zeros(Layout::replicated(Mesh::self(), {1, n, n + 1, 1}));
    CHECK(model(x).shape() == Shape{1, n, n + 1, 1});
  }
  CHECK(model.summary().find("up.0.transposed.weight") != std::string::npos);
  CHECK_THROWS_AS(model(Tensor::zeros(Layout::replicated(Mesh::self(), {1, 8, 8, 2}))), ShapeError);
  CHECK_THROWS_AS(model(Tensor::zeros(Layout::replicated(Mesh::self(), {1, 8, 1}))), ShapeError);

  o.multipliers = {};
  CHECK_THROWS_AS(UNet(o, Mesh::self()), UsageError);
  o = small(2);
  o.kernel = 2;
  CHECK_THROWS_AS(UNet(o, Mesh::self()), UsageError);
  o = small(2);
  o.out_channels = 2;
  o.conserve_means = true;
  CHECK_THROWS_AS(UNet(o, Mesh::self()), UsageError);
}

TEST_CASE("a circular dimension has no seam") {
  const Mesh mesh = Mesh::self();
  UNetOptions o = small(2);
  o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
  o.upscale = 2;
  UNet model(o, mesh, DType::kFloat64);
  const DenseArray x = random_array({1, 8, 16, 1}, 3);
  DenseArray shifted = x;
  for_each(x.shape, [&](const Index& i) { shifted[{i[0], i[1], (i[2] + 4) % 16, i[3]}] = x[i]; });
  const DenseArray y = to_dense(model(to_self(x)));
  DenseArray expected = y;
  for_each(y.shape, [&](const Index& i) { expected[{i[0], i[1], (i[2] + 8) % 32, i[3]}] = y[i]; });
  CHECK(compare("shifted", model(to_self(shifted)), expected, 1e-12) == "");
}

TEST_CASE("edges can be changed afterwards") {
  UNetOptions o = small(2);
  o.detail_scale = 0.1;
  UNet model(o, Mesh::self(), DType::kFloat64);
  o.edges = {EdgeRule::kReplicate, EdgeRule::kCircular};
  UNet other(o, Mesh::self(), DType::kFloat64);
  const Tensor x = to_self(random_array({1, 6, 7, 1}, 5));
  CHECK(compare("before", model(x), to_dense(other(x)), 1e-12) != "");
  model.set_edges(o.edges);
  CHECK(compare("after", model(x), to_dense(other(x)), 0.0) == "");
  CHECK_THROWS_AS(model.set_edges(std::vector<EdgeRule>(3, EdgeRule::kZero)), UsageError);
}

TEST_CASE("learning what interpolation lacks") {
  const Mesh mesh = Mesh::self();
  UNetOptions o = small(2);
  o.upscale = 2;
  o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
  o.input_skip = InputSkip::kCubic;
  UNet model(o, mesh, DType::kFloat64);
  const DenseArray x = random_array({1, 6, 8, 1}, 4);

  // Untrained, it interpolates; across the seam as inside.
  DenseArray wide({1, 6, 16, 1});
  for_each(wide.shape, [&](const Index& i) { wide[i] = x[{0, i[1], (i[2] + 4) % 8, 0}]; });
  const DenseArray fine =
      to_dense(interpolate(to_self(wide), {12, 32}, {.mode = InterpolateMode::kCubic}));
  DenseArray expected({1, 12, 16, 1});
  for_each(expected.shape, [&](const Index& i) { expected[i] = fine[{0, i[1], i[2] + 8, 0}]; });
  CHECK(compare("untrained", model(to_self(x)), expected, 1e-12) == "");

  // Block means are kept, whatever the weights.
  o.input_skip = InputSkip::kNone;
  o.conserve_means = true;
  UNet keeps(o, mesh, DType::kFloat64);
  const DenseArray y = to_dense(keeps(to_self(x)));
  DenseArray means(x.shape);
  for_each(y.shape, [&](const Index& i) { means[{0, i[1] / 2, i[2] / 2, 0}] += y[i] / 4; });
  CHECK(compare("means", means, x, 1e-12) == "");
  CHECK(y.largest() > x.largest());
}

}  // namespace tessera::test
