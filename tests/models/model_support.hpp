#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/optim.hpp>

#include "support/op_test.hpp"

/// What every model has to show: one answer and one loss curve on any mesh.
namespace tessera::test {

/// Output and all gradients, the input's first.
template <class Model>
std::vector<Tensor> outputs_and_gradients(Model& model, const Tensor& input, std::uint64_t seed) {
  const Tensor x = require_grad(input);
  const Tensor y = model(x);
  backward(sum(y * to_tensor(random_array(y.shape(), seed), y.layout().dual())));
  std::vector<Tensor> all = {y, gradient(x)};
  for (const nn::Parameter& p : model.parameters()) all.push_back(gradient(p.value()));
  return all;
}

/// Small random changes, so that what starts at zero counts.
template <class Model>
void stir(Model& model, std::uint64_t seed) {
  for (const nn::Parameter& p : model.parameters()) {
    const DenseArray noise = random_array(p.shape(), seed++, -0.1, 0.1);
    const View v = p.value().mutable_local();
    for (std::int64_t i = 0; i < v.size(); ++i)
      store_double(v.data, v.dtype, i,
                   load_as_double(v.data, v.dtype, i) + noise.values[static_cast<std::size_t>(i)]);
  }
}

/// Output and gradients in fp64 on every mesh and several cuts of the input, of samples and the
/// first `domain` dimensions, against one rank.
template <class Model, class Options>
void check_cuts(const Options& options, const Shape& shape, int domain, int variants = 2) {
  Rng rng(from_process_0(run_seed()));
  const DenseArray x = random_array(shape, rng.bits());
  const std::uint64_t seed = rng.bits();
  Model one(options, Mesh::self(), DType::kFloat64);
  stir(one, 7);
  std::vector<DenseArray> expected;
  for (const Tensor& t : outputs_and_gradients(one, to_self(x), seed))
    expected.push_back(to_dense(t));
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < variants; ++variant) {
      std::vector<int> dims;
      int next = static_cast<int>(rng.integer(0, domain));
      for (int a = 0; a < mesh.axis_count(); ++a) {
        dims.push_back(a > domain ? -1 : next);
        next = (next + 1) % (domain + 1);
      }
      const Layout layout = draw_layout(mesh, shape, dims, variant, rng);
      INFO("mesh " << mesh.str() << ", input " << layout.str());
      Model many(options, mesh, DType::kFloat64);
      stir(many, 7);
      const std::vector<Tensor> actual = outputs_and_gradients(many, to_tensor(x, layout), seed);
      REQUIRE(actual.size() == expected.size());
      for (std::size_t i = 0; i < actual.size(); ++i)
        CHECK(compare(str("tensor ", i), actual[i], expected[i], 1e-10, 1e-3) == "");
    }
  }
}

/// What a training leaves behind.
struct Training {
  std::vector<double> losses;
  std::vector<DenseArray> first_gradients;
};

/// Steps of AdamW on random data; the target has the shape of the output.
template <class Model, class Options>
Training train_model(const Options& options,
                     const Shape& shape,
                     const Placement& placement,
                     DType dtype,
                     int steps) {
  Model model(options, placement.mesh(), dtype);
  optim::AdamW adam(model.parameters(), {.lr = 3e-3});
  const Layout layout = placement.resolve(shape, {.multiple = model.total_stride()});
  Training result;
  for (int step = 0; step < steps; ++step) {
    const auto n = static_cast<std::uint64_t>(step);
    model.random().step = n;
    const Tensor y = model(to_tensor(random_array(shape, 100 + n), layout, dtype));
    const Tensor t = to_tensor(random_array(y.shape(), 200 + n), y.layout().dual(), dtype);
    const Tensor loss = mse_loss(y, t);
    backward(loss);
    if (step == 0) {
      for (const nn::Parameter& p : model.parameters())
        result.first_gradients.push_back(to_dense(gradient(p.value())));
    }
    adam.step();
    result.losses.push_back(loss.item());
  }
  return result;
}

/// The domain over the axes of the mesh, and, where there are several, samples over the first.
inline std::vector<Placement> placements(const Mesh& mesh, int dims) {
  Placement domain(mesh);
  Placement with_batch = Placement(mesh).batch(mesh.axis_name(0));
  for (int a = 0; a < mesh.axis_count(); ++a) {
    if (a < dims) domain = domain.domain(a, mesh.axis_name(a));
    if (a > 0 && a <= dims) with_batch = with_batch.domain(a - 1, mesh.axis_name(a));
  }
  if (mesh.axis_count() == 1) return {domain};
  return {domain, with_batch};
}

/// The losses of `steps` steps in fp64 to 1e-10 on every mesh, and the first step in fp32: loss and
/// gradients to 1e-5 of each tensor's largest value, or of `terms`, the size of what gradients that
/// cancel are sums of.
template <class Model, class Options>
void check_training(
    const Options& options, const Shape& shape, int dims, int steps, double terms = 1e-7) {
  const Placement alone(Mesh::self());
  const Training one = train_model<Model>(options, shape, alone, DType::kFloat64, steps);
  const Training one32 = train_model<Model>(options, shape, alone, DType::kFloat32, 1);
  CHECK(one.losses.back() != one.losses.front());
  for (const Mesh& mesh : test_meshes()) {
    for (const Placement& placement : placements(mesh, dims)) {
      INFO(placement.str());
      const Training many = train_model<Model>(options, shape, placement, DType::kFloat64, steps);
      for (std::size_t i = 0; i < many.losses.size(); ++i)
        CHECK(std::abs(many.losses[i] - one.losses[i]) <= 1e-10 * one.losses[i]);
      const Training many32 = train_model<Model>(options, shape, placement, DType::kFloat32, 1);
      CHECK(std::abs(many32.losses[0] - one32.losses[0]) <= 1e-5 * one32.losses[0]);
      for (std::size_t i = 0; i < one32.first_gradients.size(); ++i) {
        CHECK(compare(str("gradient ", i), many32.first_gradients[i], one32.first_gradients[i],
                      1e-5, terms) == "");
      }
    }
  }
}

/// Root mean square of a - b over that of b, all values together.
inline double relative_error(const std::vector<DenseArray>& a, const std::vector<DenseArray>& b) {
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    for (std::size_t j = 0; j < b[i].values.size(); ++j) {
      const double d = a[i].values[j] - b[i].values[j];
      difference += d * d;
      size += b[i].values[j] * b[i].values[j];
    }
  }
  return std::sqrt(difference / size);
}

/// In bf16 the error beside fp64 is that of bf16, on all ranks no more than 1.5 times that on one;
/// with `blocks.*` computed again in backward the gradients have the same bits.
template <class Model, class Options>
void check_narrow(const Options& options, const Shape& shape) {
  const DenseArray x = random_array(shape, 11);
  const auto all = [&](const Mesh& mesh, DType dtype, DType compute, bool again) {
    Model model(options, mesh, dtype);
    stir(model, 7);
    nn::compute_in(model, compute);
    if (again) nn::recompute(model, "blocks.*");
    const Layout layout = mesh.size() > 1 ? Placement(mesh).domain(0, "x").resolve(shape)
                                          : Layout::replicated(mesh, shape);
    const Tensor in = require_grad(to_tensor(x, layout, dtype));
    const Tensor y = model(in);
    CHECK(y.dtype() == dtype);
    backward(sum(y * to_tensor(random_array(y.shape(), 12), y.layout().dual(), dtype)));
    std::vector<DenseArray> dense = {to_dense(y), to_dense(gradient(in))};
    for (const nn::Parameter& p : model.parameters()) {
      REQUIRE(gradient(p.value()).defined());
      dense.push_back(to_dense(gradient(p.value())));
    }
    return dense;
  };
  const Mesh world = Mesh::world({{"x", process().count}});
  const auto exact = all(Mesh::self(), DType::kFloat64, DType::kFloat64, false);
  const auto narrow = all(world, DType::kFloat32, DType::kBFloat16, false);
  const double one =
      relative_error(all(Mesh::self(), DType::kFloat32, DType::kBFloat16, false), exact);
  const double many = relative_error(narrow, exact);
  INFO("error of bf16 on one rank " << one << ", on all " << many);
  CHECK(one > 1e-4);
  CHECK(one < 4e-2);
  CHECK(many <= 1.5 * one);
  const auto again = all(world, DType::kFloat32, DType::kBFloat16, true);
  for (std::size_t i = 0; i < narrow.size(); ++i) CHECK(again[i].values == narrow[i].values);
}

}  // namespace tessera::test
