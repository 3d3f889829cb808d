// ranks: 1 2 3 4
#include <cmath>
#include <tessera/nn/encodings.hpp>

#include "layer_cuts.hpp"

namespace tessera::test {

TEST_CASE("sines and cosines of the position") {
  const Shape shape = {2, 5, 6, 9};
  const auto y = check_layer_cuts(
      [](const Mesh&) {
        return nn::SinusoidalPositions({.base = 50.0, .circular = {false, true}});
      },
      shape);
  DenseArray expected = random_array(shape, 2);
  const auto waves = position_waves({5, 6}, 4, {.base = 50.0, .circular = {false, true}});
  for_each(shape, [&](const Index& i) {
    if (i[3] == 8) return;  // the odd channel
    const PositionWave& wave = waves[static_cast<std::size_t>(i[3] % 4)];
    const double angle = wave.step * static_cast<double>(i[1 + wave.dim]);
    expected[i] += i[3] < 4 ? std::sin(angle) : std::cos(angle);
  });
  CHECK(compare("y", y[0], expected, 1e-13) == "");
}

TEST_CASE("sinusoidal positions follow other sizes, types and edges") {
  nn::SinusoidalPositions layer;
  nn::initialize(layer, 1);
  const auto zeros = [](const Shape& s, DType t) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s), t);
  };
  const DenseArray a = to_dense(layer(zeros({1, 4, 4}, DType::kFloat64)));
  CHECK(layer(zeros({3, 7, 4}, DType::kFloat32)).shape() == Shape{3, 7, 4});
  CHECK(compare("again", layer(zeros({1, 4, 4}, DType::kFloat64)), a, 0.0) == "");
  layer.set_edges({EdgeRule::kCircular});
  CHECK(compare("circle", layer(zeros({1, 4, 4}, DType::kFloat64)), a, 1e-3) != "");
}

TEST_CASE("learned positions, on their grid and on others") {
  const auto make = [](const Mesh& mesh) {
    return nn::LearnedPositions({.grid = {4, 5}, .channels = 3, .init = nn::init::normal(0, 1)},
                                mesh, DType::kFloat64);
  };
  check_layer_cuts(make, {2, 4, 5, 3});
  check_layer_cuts(make, {1, 7, 6, 3});
  check_layer_cuts(make, {2, 3, 2, 3});
  auto layer = make(Mesh::self());
  nn::initialize(layer, 1);
  CHECK_THROWS_AS(layer(to_self(DenseArray({1, 4, 5, 2}))), ShapeError);
  CHECK_THROWS_AS(layer(to_self(DenseArray({1, 4, 3}))), ShapeError);
  CHECK_THROWS_AS(nn::LearnedPositions({.grid = {}, .channels = 3}, Mesh::self()), UsageError);
  CHECK_THROWS_AS(nn::LearnedPositions({.grid = {2, 0}, .channels = 3}, Mesh::self()), UsageError);
}

}  // namespace tessera::test
