// ranks: 1 2 3 4
#include <tessera/models/swin.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::Swin;
using models::SwinOptions;

SwinOptions small(int dims) {
  SwinOptions o;
  o.dims = dims;
  o.patch = {2};
  o.channels = 4;
  o.depths = {2, 2};
  o.heads = {1, 2};
  o.window = {3};
  o.mlp_ratio = 2;
  return o;
}

}  // namespace

TEST_CASE("swin: any mesh gives one answer") {
  SwinOptions o = small(2);
  o.in_channels = 3;
  o.out_channels = 2;
  SECTION("odd sizes, dropout") {
    o.dropout = 0.2;
    check_cuts<Swin>(o, {2, 15, 18, 3}, 2);
  }
  SECTION("a circle, finer output, three levels, windows wider than the coarsest") {
    o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
    o.depths = {1, 2, 2};
    o.heads = {1, 1, 2};
    o.upscale = 2;
    o.patch = {1, 2};
    o.input_skip = models::InputSkip::kLinear;
    o.detail_scale = 0.5;
    check_cuts<Swin>(o, {1, 9, 24, 3}, 2);
  }
}

TEST_CASE("swin in one and three dimensions") {
  check_cuts<Swin>(small(1), {2, 21, 1}, 1);
  check_cuts<Swin>(small(3), {1, 7, 6, 8, 1}, 3, 1);
}

TEST_CASE("swin: training is the same on any mesh") {
  check_training<Swin>(small(2), {2, 13, 18, 1}, 2, 6, 0.1);
}

TEST_CASE("swin in bf16, with and without recomputation") {
  SwinOptions o = small(2);  // norms of four channels would magnify the rounding
  o.channels = 16;
  check_narrow<Swin>(o, {1, 14, 18, 1});
}

TEST_CASE("swin has the sizes it says") {
  SwinOptions o = small(2);
  Swin model(o, Mesh::self());
  CHECK(model.total_stride() == 4);
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  for (const std::int64_t n : {1, 3, 7, 12})
    CHECK(model(zeros({1, n, n + 1, 1})).shape() == Shape{1, n, n + 1, 1});
  CHECK_THROWS_AS(model(zeros({1, 8, 8, 2})), ShapeError);
  o.heads = {1};
  CHECK_THROWS_AS(Swin(o, Mesh::self()), UsageError);
  o = small(2);
  o.window = {3, 3, 3};
  CHECK_THROWS_AS(Swin(o, Mesh::self()), UsageError);
}

}  // namespace tessera::test
