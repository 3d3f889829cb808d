// ranks: 1 3
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <tessera/core/tensor.hpp>

namespace tessera {
namespace {

Layout split_rows(const Shape& shape, int dim) {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  splits[static_cast<std::size_t>(dim)].axes = {0};
  return Layout::make(mesh, shape, splits);
}

double code(const Index& i) {
  double v = 0.0;
  for (const std::int64_t k : i) v = v * 16.0 + static_cast<double>(k);
  return v;
}

TEST_CASE("values are global, memory is local") {
  for (int dim = 0; dim < 3; ++dim) {
    const Layout layout = split_rows({3, 2, 5}, dim);
    const Tensor t = Tensor::from_function(layout, code, DType::kInt32);
    CHECK(t.shape() == Shape{3, 2, 5});
    CHECK(t.size(-1) == 5);
    CHECK(t.numel() == 30);
    CHECK(t.local_shape() == layout.local_box().shape());
    CHECK(t.local_bytes() == 4 * t.local_shape().product());
    CHECK(t.local().is_dense());
    for_each_index(t.local_box(), [&](const Index& i) { CHECK(t.at(i) == code(i)); });
    Index outside = t.local_box().hi;
    CHECK_THROWS_AS(t.at(outside), LayoutError);
    CHECK(t.dtype() == DType::kInt32);
  }
}

TEST_CASE("filled tensors of every dtype") {
  const Layout layout = Layout::replicated(Mesh::self(), {2, 3});
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                            DType::kInt64, DType::kUInt8, DType::kBool}) {
    for (const double value : {0.0, 1.0}) {
      const Tensor t = Tensor::full(layout, value, dtype);
      for_each_index(t.local_box(), [&](const Index& i) { CHECK(t.at(i) == value); });
    }
  }
  CHECK(Tensor::full(layout, 2.5).at({1, 2}) == 2.5);
  CHECK(Tensor::zeros(Layout::replicated(Mesh::self(), {0, 3})).local().empty());
}

TEST_CASE("from_local copies a strided part and checks its shape") {
  float values[12];
  for (int i = 0; i < 12; ++i) values[i] = static_cast<float>(i);
  const Layout layout = Layout::replicated(Mesh::self(), {3, 4});
  const View transposed{values, DType::kFloat32, {3, 4}, {1, 3}};
  const Tensor t = Tensor::from_local(transposed, layout);
  values[0] = 99.0f;
  for_each_index(t.local_box(),
                 [&](const Index& i) { CHECK(t.at(i) == static_cast<double>(i[0] + 3 * i[1])); });
  CHECK_THROWS_AS(Tensor::from_local(View::dense(values, DType::kFloat32, {4, 3}), layout),
                  ShapeError);
  CHECK_THROWS_AS(Tensor::empty(Layout()), LayoutError);
}

TEST_CASE("item reads scalars that are there") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  CHECK(Tensor::scalar(mesh, 1.5, DType::kFloat64).item() == 1.5);
  CHECK(Tensor::full(Layout::replicated(mesh, {1, 1}), 7, DType::kInt64).item() == 7.0);
  CHECK_THROWS_AS(Tensor::zeros(Layout::replicated(mesh, {2})).item(), ShapeError);
  if (process().count > 1) {
    const Layout one = Layout::replicated(mesh, {1});
    CHECK_THROWS_WITH(Tensor::zeros(one.with_partial(1)).item(), Catch::Contains("reduced(x)"));
    CHECK_THROWS_WITH(Tensor::zeros(split_rows({1}, 0)).item(), Catch::Contains("replicate(x)"));
  }
}

TEST_CASE("aliases share memory, version and nothing else") {
  const Layout layout = Layout::replicated(Mesh::self(), {2, 3});
  const Tensor t = Tensor::from_function(layout, code);
  View column = t.local();
  column.shape = {2};
  column.strides = {3};
  column.data = column.as<float>() + 1;
  const Tensor second = Tensor::alias(t, Layout::replicated(Mesh::self(), {2}), column);
  CHECK(second.at({1}) == code({1, 1}));
  CHECK(second.id() != t.id());
  CHECK(second.buffer() == t.buffer());
  const std::uint32_t version = t.version();
  second.mutable_local().as<float>()[0] = 50.0f;
  CHECK(t.at({0, 1}) == 50.0);
  CHECK(t.version() == version + 1);
  CHECK_THROWS_AS(Tensor::alias(t, layout, column), ShapeError);

  const Tensor detached = t.detach();
  t.set_gradient_state(make_ref<GradientState>());
  CHECK(t.gradient_state());
  CHECK_FALSE(detached.gradient_state());
  CHECK_FALSE(t.detach().gradient_state());
  CHECK(detached.local().data == t.local().data);
}

TEST_CASE("a process outside the mesh holds nothing") {
  const Mesh elsewhere = Mesh::single(process().count + 1);
  const Tensor t = Tensor::full(Layout::replicated(elsewhere, {4}), 3.0);
  CHECK(t.shape() == Shape{4});
  CHECK(t.local_shape() == Shape{0});
  CHECK(Tensor::zeros(Layout::replicated(elsewhere, {})).numel() == 1);
}

TEST_CASE("views: dense, sliced, empty") {
  float values[24];
  const View v = View::dense(values, DType::kFloat32, {2, 3, 4});
  CHECK(v.strides == Strides{12, 4, 1});
  CHECK(v.is_dense());
  const View part = v.slice(Box({1, 0, 2}, {2, 3, 4}));
  CHECK(part.as<float>() == values + 14);
  CHECK(part.shape == Shape{1, 3, 2});
  CHECK_FALSE(part.is_dense());
  CHECK(v.slice(Box({1, 0, 0}, {2, 3, 4})).is_dense());
  CHECK(v.slice(Box({2, 0, 0}, {2, 3, 4})).empty());
  CHECK(v.slice(Box({5, 0, 0}, {2, 3, 4})).data == values);  // never outside the buffer
  const View stretched{values, DType::kFloat32, {5, 4}, {0, 1}};
  CHECK_FALSE(stretched.is_dense());

  const Piece piece{v, Box({10, 20, 30}, {12, 23, 34}), {50, 50, 50}};
  const Piece cut = piece.slice(Box({11, 0, 31}, {40, 22, 33}));
  CHECK(cut.box == Box({11, 20, 31}, {12, 22, 33}));
  CHECK(cut.view.as<float>() == values + 13);
  CHECK(cut.global == piece.global);
}

}  // namespace
}  // namespace tessera
