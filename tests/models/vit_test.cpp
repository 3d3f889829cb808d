// ranks: 1 2 3 4 6 8
#include <tessera/models/vit.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::ViT;
using models::ViTOptions;
using Positions = ViTOptions::Positions;

ViTOptions small(int dims) {
  ViTOptions o;
  o.dims = dims;
  o.patch = {3};
  o.channels = 12;
  o.depth = 2;
  o.heads = 2;
  o.mlp_ratio = 2;
  return o;
}

}  // namespace

TEST_CASE("vit: any mesh gives one answer") {
  ViTOptions o = small(2);
  o.in_channels = 3;
  o.out_channels = 2;
  SECTION("rotary positions, a circle, dropout") {
    o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
    o.dropout = 0.2;
    o.attention_dropout = 0.1;
    check_cuts<ViT>(o, {2, 13, 18, 3}, 2);
  }
  SECTION("learned positions of another grid, grouped queries, gated") {
    o.positions = Positions::kLearned;
    o.grid = {3, 4};
    o.heads = 4;
    o.key_heads = 2;
    o.gated_mlp = true;
    o.qk_norm = true;
    check_cuts<ViT>(o, {1, 10, 12, 3}, 2);
  }
  SECTION("classes") {
    o.classes = 5;
    o.positions = Positions::kSinusoidal;
    check_cuts<ViT>(o, {3, 9, 11, 3}, 2);
  }
  SECTION("finer output") {
    o.upscale = 2;
    o.input_skip = models::InputSkip::kCubic;
    o.conserve_means = true;
    o.detail_scale = 0.5;
    o.patch = {2, 4};
    check_cuts<ViT>(o, {1, 9, 10, 3}, 2);
  }
}

TEST_CASE("vit in one and three dimensions") {
  check_cuts<ViT>(small(1), {2, 20, 1}, 1);
  ViTOptions o = small(3);
  o.patch = {2, 3, 2};
  check_cuts<ViT>(o, {1, 5, 6, 4, 1}, 3);
}

TEST_CASE("vit: 20 steps of training are the same on any mesh") {
  ViTOptions o = small(2);
  o.dropout = 0.1;
  check_training<ViT>(o, {2, 13, 18, 1}, 2, 20);
}

TEST_CASE("a circular dimension has no seam") {
  ViTOptions o = small(2);
  o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
  ViT model(o, Mesh::self(), DType::kFloat64);
  const DenseArray x = random_array({1, 6, 15, 1}, 3);
  DenseArray shifted = x;
  for_each(x.shape, [&](const Index& i) { shifted[{i[0], i[1], (i[2] + 6) % 15, i[3]}] = x[i]; });
  const auto rotated = [](const DenseArray& y) {
    DenseArray turned = y;
    for_each(y.shape, [&](const Index& i) { turned[{i[0], i[1], (i[2] + 6) % 15, i[3]}] = y[i]; });
    return turned;
  };
  const DenseArray y = to_dense(model(to_self(x)));
  CHECK(compare("shifted", model(to_self(shifted)), rotated(y), 1e-12) == "");
  model.set_edges({EdgeRule::kZero});
  const DenseArray open = to_dense(model(to_self(x)));
  CHECK(compare("open", model(to_self(shifted)), rotated(open), 1e-12) != "");
}

TEST_CASE("vit has the sizes it says") {
  CHECK(ViTOptions::preset("B").channels == 768);
  CHECK(ViTOptions::preset("huge").depth == 32);
  CHECK_THROWS_AS(ViTOptions::preset("tiny"), UsageError);
  ViTOptions base = ViTOptions::preset("base");
  base.in_channels = 3;
  base.classes = 1000;
  base.positions = Positions::kLearned;
  base.grid = {14, 14};
  // ViT-B/16 with a class token and its position has 768 + 768 more (86,567,656).
  CHECK(ViT(base, Mesh::self()).parameter_count() == 86567656 - 2 * 768);

  ViTOptions o = small(2);
  o.patch = {2, 3};
  ViT model(o, Mesh::self());
  CHECK(model.total_stride() == 6);
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  CHECK(model(zeros({1, 7, 8, 1})).shape() == Shape{1, 7, 8, 1});
  CHECK_THROWS_AS(model(zeros({1, 8, 8, 2})), ShapeError);
  CHECK_THROWS_AS(model(zeros({1, 8, 1})), ShapeError);
  o.positions = Positions::kLearned;
  CHECK_THROWS_AS(ViT(o, Mesh::self()), UsageError);
  o = small(2);
  o.heads = 5;
  CHECK_THROWS_AS(ViT(o, Mesh::self()), UsageError);
  o = small(2);
  o.classes = 3;
  o.upscale = 2;
  CHECK_THROWS_AS(ViT(o, Mesh::self()), UsageError);
  o = small(2);
  o.input_skip = models::InputSkip::kCubic;
  o.out_channels = 2;
  CHECK_THROWS_AS(ViT(o, Mesh::self()), UsageError);
}

}  // namespace tessera::test
