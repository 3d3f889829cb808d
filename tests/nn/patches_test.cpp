// ranks: 1 2 3 4
#include <tessera/nn/patches.hpp>

#include "layer_cuts.hpp"

namespace tessera::test {

TEST_CASE("patches may straddle parts and end beyond the domain") {
  const nn::PatchOptions o{.dims = 2, .in = 2, .out = 3, .patch = {3, 4}};
  const auto make = [&](const Mesh& mesh) { return nn::PatchEmbed(o, mesh, DType::kFloat64); };
  const auto y = check_layer_cuts(make, {1, 10, 12, 2});
  CHECK(y[0].shape == Shape{1, 4, 3, 3});
  auto layer = make(Mesh::self());
  nn::initialize(layer, 5);
  const DenseArray w = to_dense(layer.proj.weight.value());
  const DenseArray b = to_dense(layer.proj.bias.value());
  const DenseArray x = random_array({1, 10, 12, 2}, 2);
  DenseArray expected(y[0].shape);
  for_each(expected.shape, [&](const Index& i) {
    expected[i] = b(i[3]);
    for_each({3, 4, 2}, [&](const Index& t) {
      const std::int64_t row = 3 * i[1] + t[0];
      if (row < 10) expected[i] += w(i[3], t[0], t[1], t[2]) * x(0, row, 4 * i[2] + t[1], t[2]);
    });
  });
  CHECK(compare("y", y[0], expected, 1e-12) == "");
  CHECK_THROWS_AS(layer(to_self(DenseArray({1, 10, 2}))), ShapeError);
  CHECK_THROWS_AS(layer(to_self(DenseArray({1, 10, 12, 3}))), ShapeError);
}

TEST_CASE("patches back to a grid, split as that grid is") {
  Rng rng(from_process_0(run_seed()));
  const nn::PatchOptions o{.dims = 2, .in = 3, .out = 2, .patch = {3, 4}};
  const DenseArray x = random_array({1, 4, 3, 3}, 2);
  const Shape grid = {1, 10, 11, 5};
  for (const Mesh& mesh : test_meshes()) {
    nn::PatchUnembed layer(o, mesh, DType::kFloat64);
    nn::initialize(layer, 5);
    const DenseArray w = to_dense(layer.proj.weight.value());
    const DenseArray b = to_dense(layer.proj.bias.value());
    DenseArray expected({1, 10, 11, 2});
    for_each(expected.shape, [&](const Index& i) {
      expected[i] = b(i[3]);
      for (std::int64_t c = 0; c < 3; ++c)
        expected[i] += w(c, i[1] % 3, i[2] % 4, i[3]) * x(0, i[1] / 3, i[2] / 4, c);
    });
    const std::vector<int> all = {1, 2, -1};
    const std::vector<int> dims(all.begin(), all.begin() + mesh.axis_count());
    const Layout tokens = draw_layout(mesh, x.shape, dims, 1, rng);
    const Layout like = draw_layout(mesh, grid, dims, 1, rng);
    const Tensor y = layer.forward_to(to_tensor(x, tokens), like);
    CHECK(y.layout() == nn::domain_layout(like, 1, 2));
    CHECK(compare("y", y, expected, 1e-12) == "");
    CHECK_THROWS_AS(layer.forward_to(to_tensor(x, tokens), Layout::replicated(mesh, {1, 9, 11, 5})),
                    ShapeError);
  }
}

TEST_CASE("the layout of a finer domain") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const Layout x = Placement(mesh).domain(1, "x").resolve({2, 5, 8, 3});
  const Layout fine = nn::domain_layout(x, 2, 7, 3);
  CHECK(fine.shape() == Shape{2, 15, 24, 7});
  for (std::size_t i = 0; i < x.split(2).bounds.size(); ++i)
    CHECK(fine.split(2).bounds[i] == 3 * x.split(2).bounds[i]);
  CHECK(nn::domain_layout(x, 1, 7).shape() == Shape{1, 5, 8, 7});
  const Layout batch = Placement(mesh).batch("x").resolve({4, 5, 3});
  CHECK(nn::domain_layout(batch, 4, 3) == batch);
  CHECK(nn::domain_layout(batch, 1, 3).is_replicated());
}

}  // namespace tessera::test
