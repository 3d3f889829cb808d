// ranks: 1 2 3 4 6 8
// A small convolutional network trained for a few steps: the same answer on any mesh, the same bits
// in every run.
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

const Shape kField{3, 13, 11, 1};

struct Run {
  std::vector<double> losses;
  std::vector<DenseArray> weights;
};

std::vector<DenseArray> initial_weights() {
  std::vector<DenseArray> w;
  for (const Shape& s : {Shape{4, 3, 3, 1}, Shape{4}, Shape{4}, Shape{4}, Shape{6, 4, 4, 4},
                         Shape{6, 3, 3, 4}, Shape{1, 3, 3, 8}, Shape{1}}) {
    w.push_back(random_array(s, 100 + w.size(), -0.5, 0.5));
  }
  return w;
}

/// Descent by a strided convolution and by pooling, ascent by a transposed one and by
/// interpolation, a skip, circular columns, dropout.
Tensor network(const Tensor& x, const std::vector<Tensor>& w, std::uint64_t step) {
  const std::vector<EdgeRule> edges = {EdgeRule::kZero, EdgeRule::kCircular};
  const Tensor top = group_norm(conv(x, w[0], w[1], {.pad_lo = {1}, .edges = edges}), w[2], w[3], 2,
                                1e-5, Activation::kSilu);
  Tensor low = conv(top, w[4], {}, {.stride = {2}, .pad_lo = {1}, .edges = edges});
  low = max_pool(dropout(low, 0.3, {1, step}), {.kernel = {3}, .stride = {1}, .pad_lo = {1}});
  const Tensor up = conv_transpose(silu(low), w[5], {}, {.stride = {2}, .pad_lo = {1}});
  const Tensor same = interpolate(up, {x.size(1), x.size(2)},
                                  {.mode = InterpolateMode::kLinear, .like = top.layout()});
  return conv(concat({top, same}, 3), w[6], w[7], {.pad_lo = {1}, .edges = edges});
}

Run train(const Layout& layout, int steps, DType dtype = DType::kFloat64) {
  const auto whole = [&](const Shape& s) { return Layout::replicated(layout.mesh(), s); };
  std::vector<Tensor> w;
  for (const DenseArray& a : initial_weights())
    w.push_back(require_grad(to_tensor(a, whole(a.shape), dtype)));
  Run run;
  for (int step = 0; step < steps; ++step) {
    const Tensor x =
        to_tensor(random_array(kField, 7 + static_cast<std::uint64_t>(step)), layout, dtype);
    const Tensor target = to_tensor(random_array(kField, 70), layout, dtype);
    const Tensor loss = mse_loss(network(x, w, static_cast<std::uint64_t>(step)), target);
    backward(loss);
    run.losses.push_back(reduced(loss).item());
    for (Tensor& p : w) {
      const Tensor g = gradient(p);
      const NoGrad off;
      p = require_grad((p.detach() - g * 0.1).detach());
    }
  }
  for (const Tensor& p : w) run.weights.push_back(to_dense(p));
  return run;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  Rng rng(5);
  for (const Mesh& mesh : test_meshes()) {
    if (mesh.axis_count() == 1) {
      for (int d = 0; d < 3; ++d) all.push_back(draw_layout(mesh, kField, {d}, 0, rng));
    } else if (mesh.axis_count() == 2) {
      all.push_back(draw_layout(mesh, kField, {0, 1}, 0, rng));
      all.push_back(draw_layout(mesh, kField, {1, 2}, 0, rng));
    } else {
      all.push_back(draw_layout(mesh, kField, {0, 1, 2}, 0, rng));
    }
  }
  return all;
}

TEST_CASE("the same losses and weights on any mesh") {
  const Run one = train(Layout::replicated(Mesh::self(), kField), 4);
  CHECK(one.losses.back() < one.losses.front());
  std::string failure;
  for (const Layout& layout : layouts()) {
    const Run run = train(layout, 4);
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      if (!(std::abs(run.losses[i] - one.losses[i]) <= 1e-10 * one.losses[i])) {
        failure += str("loss ", i, " on ", layout, ": ", run.losses[i], " instead of ",
                       one.losses[i], "\n");
      }
    }
    for (std::size_t i = 0; i < one.weights.size(); ++i)
      failure += compare(str("weight ", i, " on ", layout), run.weights[i], one.weights[i], 1e-9);
  }
  report(agreed(failure));
}

TEST_CASE("two runs on one mesh are the same bits") {
  for (const Layout& layout : layouts()) {
    const Run first = train(layout, 2, DType::kFloat32);
    const Run second = train(layout, 2, DType::kFloat32);
    CHECK(first.losses == second.losses);
    for (std::size_t i = 0; i < first.weights.size(); ++i)
      CHECK(first.weights[i].values == second.weights[i].values);
  }
}

}  // namespace
}  // namespace tessera::test
