// ranks: 1 2 3 4 6 8
#include <catch2/catch.hpp>
#include <cmath>
#include <iostream>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/nn/optim.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using models::UNet;
using models::UNetOptions;

struct Result {
  std::vector<double> losses;
  std::vector<DenseArray> first_gradients;
  std::vector<DenseArray> weights;
};

UNetOptions options_of(int dims) {
  UNetOptions o;
  o.dims = dims;
  o.base = 4;
  o.multipliers = {1, 2, 2};
  o.norm_groups = 2;
  o.dropout = 0.2;
  o.edges.assign(static_cast<std::size_t>(dims), EdgeRule::kCircular);
  o.edges[0] = EdgeRule::kZero;
  return o;
}

/// 20 steps of AdamW with clipping on random data of batch 2; `nudge` moves the initial weights by
/// that many units in the last place.
Result train(int dims, const Placement& placement, const Mesh& mesh, DType dtype, int nudge = 0) {
  UNet model(options_of(dims), mesh, dtype);
  if (nudge > 0) {
    for (const nn::Parameter& p : model.parameters()) {
      const View v = p.value().mutable_local();
      for (std::int64_t i = 0; i < v.size(); ++i) {
        v.as<float>()[i] = std::nextafter(v.as<float>()[i], 1e30f);
      }
    }
  }
  optim::AdamW adam(model.parameters(), {.lr = 3e-3});
  const Shape shape = dims == 2 ? Shape{2, 13, 18, 1} : Shape{2, 9, 7, 6, 1};
  const Layout layout = placement.resolve(shape, {.multiple = model.total_stride()});
  Result result;
  for (std::uint64_t step = 0; step < 20; ++step) {
    model.random().step = step;
    const Tensor x = to_tensor(random_array(shape, 100 + step), layout, dtype);
    const Tensor t = to_tensor(random_array(shape, 200 + step), layout, dtype);
    const Tensor loss = mse_loss(model(x), t);
    backward(loss);
    optim::clip_grad_norm(model.parameters(), 0.5);
    if (step == 0) {
      for (const nn::Parameter& p : model.parameters()) {
        result.first_gradients.push_back(to_dense(gradient(p.value())));
      }
    }
    adam.step();
    result.losses.push_back(loss.item());
  }
  for (const nn::Parameter& p : model.parameters()) result.weights.push_back(to_dense(p.value()));
  return result;
}

Result train_one(int dims, DType dtype, int nudge = 0) {
  return train(dims, Placement(Mesh::self()), Mesh::self(), dtype, nudge);
}

/// Splits of a training over this mesh: domain dimensions first, the batch over the last axis too.
std::vector<Placement> placements(const Mesh& mesh, int dims) {
  std::vector<Placement> all;
  Placement domain(mesh);
  Placement with_batch(mesh);
  for (int a = 0; a < mesh.axis_count(); ++a) {
    if (a < dims) domain = domain.domain(a, mesh.axis_name(a));
    with_batch = a == 0 ? with_batch.batch(mesh.axis_name(a))
                        : (a <= dims ? with_batch.domain(a - 1, mesh.axis_name(a)) : with_batch);
  }
  all.push_back(domain);
  if (mesh.axis_size(0) == 2 && mesh.axis_count() > 1) all.push_back(with_batch);
  return all;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

}  // namespace

TEST_CASE("20 steps of training, fp64: the same on any mesh") {
  const int dims = GENERATE(2, 3);
  const Result one = train_one(dims, DType::kFloat64);
  CHECK(one.losses.back() != one.losses.front());
  for (const Mesh& mesh : test_meshes()) {
    for (const Placement& placement : placements(mesh, dims)) {
      INFO(dims << "-D, " << placement.str());
      const Result many = train(dims, placement, mesh, DType::kFloat64);
      CHECK(largest_difference(many.losses, one.losses) < 1e-10);
      for (std::size_t i = 0; i < one.weights.size(); ++i) {
        CHECK(compare(str("weights ", i), many.weights[i], one.weights[i], 1e-9) == "");
      }
    }
  }
}

TEST_CASE(
    "training, fp32: the first step agrees; later ones drift no more than rounding makes them") {
  const Result one = train_one(2, DType::kFloat32);
  const Result nudged = train_one(2, DType::kFloat32, 1);
  const double ulp = largest_difference(nudged.losses, one.losses);
  for (const Mesh& mesh : test_meshes()) {
    for (const Placement& placement : placements(mesh, 2)) {
      INFO(placement.str());
      const Result many = train(2, placement, mesh, DType::kFloat32);
      CHECK(std::abs(many.losses[0] - one.losses[0]) < 1e-5 * one.losses[0]);
      for (std::size_t i = 0; i < one.first_gradients.size(); ++i) {
        CHECK(compare(str("gradient ", i), many.first_gradients[i], one.first_gradients[i], 1e-5) ==
              "");
      }
      const double drift = largest_difference(many.losses, one.losses);
      if (process().rank == 0) {
        std::cout << "fp32 drift of the loss in 20 steps, " << placement.str() << ": " << drift
                  << "; of one ulp in the weights: " << ulp << std::endl;
      }
      CHECK(drift <= 3 * ulp);
    }
  }
}

TEST_CASE("two runs on one mesh are bit-identical") {
  const Mesh mesh = test_meshes().back();
  const Placement placement = placements(mesh, 2).back();
  const Result a = train(2, placement, mesh, DType::kFloat32);
  const Result b = train(2, placement, mesh, DType::kFloat32);
  CHECK(a.losses == b.losses);
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    CHECK(a.weights[i].values == b.weights[i].values);
  }
}

}  // namespace tessera::test
