// ranks: 1 2 3 4
#include <tessera/models/forecaster.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::Forecaster;
using models::ForecasterOptions;

ForecasterOptions small(int dims) {
  ForecasterOptions o;
  o.dims = dims;
  o.patch = {2};
  o.channels = 8;
  o.depth = 2;
  o.heads = 2;
  o.window = {3};
  o.mlp_ratio = 2;
  return o;
}

/// A forecaster that is asked for one season, for check_cuts.
struct InWinter : Forecaster {
  using Forecaster::Forecaster;
  Tensor forward(const Tensor& x) const override {
    const DenseArray season = random_array({x.size(0), options().condition_features}, 5);
    return Forecaster::forward(
        x, to_tensor(season, Layout::replicated(x.mesh(), season.shape), x.dtype()));
  }
};

}  // namespace

TEST_CASE("forecaster: any mesh gives one answer") {
  ForecasterOptions o = small(2);
  o.in_channels = 3;
  o.out_channels = 2;
  o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
  SECTION("a season, dropout") {
    o.condition_features = 4;
    o.dropout = 0.2;
    check_cuts<InWinter>(o, {2, 13, 18, 3}, 2);
  }
  SECTION("dilation, windows of two sizes") {
    o.dilations = {1, 2};
    o.window = {5, 4};
    o.predict_change = false;
    check_cuts<Forecaster>(o, {1, 20, 24, 3}, 2);
  }
}

TEST_CASE("forecaster in one and three dimensions") {
  check_cuts<Forecaster>(small(1), {2, 21, 1}, 1);
  check_cuts<Forecaster>(small(3), {1, 5, 6, 7, 1}, 3, 1);
}

TEST_CASE("forecaster: training is the same on any mesh") {
  ForecasterOptions o = small(2);
  o.condition_features = 3;
  check_training<InWinter>(o, {2, 13, 18, 1}, 2, 6, 1e-3);
}

TEST_CASE("a forecaster starts with persistence, and has no seam") {
  ForecasterOptions o = small(2);
  o.edges = {EdgeRule::kZero, EdgeRule::kCircular};
  Forecaster model(o, Mesh::self(), DType::kFloat64);
  const DenseArray x = random_array({1, 8, 16, 1}, 3);
  CHECK(compare("untrained", model(to_self(x)), x, 0.0) == "");

  // Without positions of its own (a rotation changes them), the seam is nowhere.
  o.predict_change = false;
  Forecaster other(o, Mesh::self(), DType::kFloat64);
  DenseArray same(x.shape);
  for_each(x.shape, [&](const Index& i) { same[i] = x[{0, i[1], i[2] % 2, 0}]; });
  const DenseArray y = to_dense(other(to_self(same)));
  CHECK(y.largest() > 0.0);
  other.set_edges({EdgeRule::kZero});
  CHECK(compare("open", other(to_self(same)), y, 1e-9) != "");
}

TEST_CASE("the condition counts") {
  ForecasterOptions o = small(2);
  o.condition_features = 2;
  Forecaster model(o, Mesh::self(), DType::kFloat64);
  stir(model, 1);
  const Tensor x = to_self(random_array({2, 6, 6, 1}, 3));
  DenseArray condition({2, 2});
  const DenseArray zero = to_dense(model(x));
  CHECK(compare("zero", model.forward(x, to_self(condition)), zero, 0.0) == "");
  condition(1, 0) = 1.0;
  const DenseArray other = to_dense(model.forward(x, to_self(condition)));
  CHECK(compare("season", other, zero, 1e-3) != "");
  for_each({1, 6, 6, 1}, [&](const Index& i) { CHECK(other[i] == zero[i]); });  // first sample
  CHECK_THROWS_AS(model.forward(x, to_self(DenseArray({2, 3}))), ShapeError);
  const Forecaster plain(small(2), Mesh::self(), DType::kFloat64);
  CHECK_THROWS_AS(plain.forward(x, to_self(condition)), ShapeError);
}

TEST_CASE("forecaster in bf16, with and without recomputation") {
  ForecasterOptions o = small(2);
  o.condition_features = 3;
  check_narrow<InWinter>(o, {1, 16, 12, 1});
}

TEST_CASE("forecaster has the sizes it says") {
  ForecasterOptions o = small(2);
  o.patch = {2, 3};
  Forecaster model(o, Mesh::self());
  CHECK(model.total_stride() == 6);
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  CHECK(model(zeros({1, 3, 4, 1})).shape() == Shape{1, 3, 4, 1});
  CHECK_THROWS_AS(model(zeros({1, 8, 8, 2})), ShapeError);
  o.out_channels = 2;
  CHECK_THROWS_AS(Forecaster(o, Mesh::self()), UsageError);
  o = small(2);
  o.dilations = {};
  CHECK_THROWS_AS(Forecaster(o, Mesh::self()), UsageError);
}

}  // namespace tessera::test
