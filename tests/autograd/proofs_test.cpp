// ranks: 4
// One descriptor for every parallelism: small networks under each of them, equal to one rank in
// value, first and second derivatives, and in the gradients that backward() leaves at the leaves.
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/autograd/pairs.hpp"
#include "support/autograd/stencil.hpp"

namespace tessera::test {
namespace {

using Tensors = std::vector<Tensor>;

Mesh grid(const char* first, const char* second) { return Mesh::world({{first, 2}, {second, 2}}); }

/// Gradients that backward() leaves at the leaves, against one rank.
std::string check_backward(const OpCase& c, const std::vector<Layout>& layouts) {
  const auto leaves_after = [&](const std::function<Layout(std::size_t)>& layout_of) {
    Tensors leaves;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      const DenseArray values = c.inputs[i].values ? c.inputs[i].values(c.inputs[i].shape, i + 1)
                                                   : random_array(c.inputs[i].shape, i + 1);
      const Tensor x = to_tensor(values, layout_of(i), c.inputs[i].dtype);
      leaves.push_back(c.inputs[i].differentiable ? require_grad(x) : x);
    }
    backward(sum(square(c.f(leaves)[0])));
    return leaves;
  };
  const Tensors one = leaves_after(
      [&](std::size_t i) { return Layout::replicated(Mesh::self(), c.inputs[i].shape); });
  const Tensors all = leaves_after([&](std::size_t i) { return layouts[i]; });
  std::string failure;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!c.inputs[i].differentiable) continue;
    const Tensor g = gradient(all[i]);
    if (g.layout() != layouts[i].dual()) failure += str("gradient ", i, " lies as ", g.layout());
    failure += compare(str("backward, leaf ", i), g, to_dense(gradient(one[i])), 1e-11, 0.1);
  }
  return agreed(failure);
}

void prove(const OpCase& c, const std::vector<Layout>& layouts) {
  report(check_layouts(c, layouts));
  report(check_backward(c, layouts));
}

TEST_CASE("data x domain") {
  const Mesh mesh = grid("data", "h");
  const OpCase c = {.inputs = {uniform({3, 7, 5}), uniform({5}), uniform({5}), uniform({4, 5})},
                    .f = [](const Tensors& in) -> Tensors {
                      const Tensor hidden = tanh(stencil(in[0], {}) * in[1] + in[2]);
                      const Tensor y = linear(stencil(hidden, {.edge = 1}), in[3]);
                      return {mean(square(y)) + mean(tanh(stencil(hidden, {.stride = 2})))};
                    }};
  const Placement fields = Placement(mesh).batch("data").domain(0, "h");
  const auto whole = [&](const Shape& s) { return Layout::replicated(mesh, s); };
  prove(c, {fields.resolve({3, 7, 5}), whole({5}), whole({5}), whole({4, 5})});
}

TEST_CASE("column and row linear on an axis of its own") {
  const Mesh mesh = grid("data", "tensor");
  const OpCase c = {
      .inputs = {uniform({5, 3}), uniform({7, 3}), uniform({7}), uniform({4, 7}), uniform({4})},
      .f = [](const Tensors& in) -> Tensors {
        return {linear(gelu(linear(in[0], in[1], in[2])), in[3]) + in[4]};
      }};
  const Placement on(mesh);
  const std::vector<Layout> layouts = {
      on.batch("data").resolve({5, 3}), on.shard(0, {"tensor"}).resolve({7, 3}),
      on.shard(0, {"tensor"}).resolve({7}), on.shard(1, {"tensor"}).resolve({4, 7}),
      Layout::replicated(mesh, {4})};
  prove(c, layouts);

  // Nothing moves up to the pending sum of the second product; its reduction is all there is.
  Tensors in;
  for (std::size_t i = 0; i < layouts.size(); ++i)
    in.push_back(to_tensor(random_array(layouts[i].shape(), i), layouts[i]));
  Tensor y;
  expect_traffic(0, 0, [&] { y = linear(gelu(linear(in[0], in[1], in[2])), in[3]); });
  CHECK(y.layout().partial_axes() == AxisMask{1} << mesh.axis("tensor"));
  const Traffic whole = traffic_of([&] { reduced(y); });
  CHECK(whole.bytes > 0);
  expect_traffic(whole.bytes, whole.messages, [&] { reduced(c.f(in)[0]); });
}

TEST_CASE("a weight split at rest and gathered in use") {
  const Mesh mesh = grid("data", "h");
  const OpCase c = {.inputs = {uniform({4, 6, 3}), uniform({5, 3}), uniform({5})},
                    .f = [](const Tensors& in) -> Tensors {
                      return {tanh(linear(in[0], replicate(in[1]), replicate(in[2])))};
                    }};
  const Layout x = Placement(mesh).batch("data").domain(0, "h").resolve({4, 6, 3});
  // Over one axis, and over both together.
  prove(c, {x, Placement(mesh).shard(0, {"data"}).resolve({5, 3}), Layout::replicated(mesh, {5})});
  prove(c, {x, Placement(mesh).shard(0, {"data", "h"}).resolve({5, 3}),
            Placement(mesh).shard(0, {"h"}).resolve({5})});
}

TEST_CASE("forces in a loss: the gradient of an energy through a routed gather") {
  // Atoms [n, 3] with weights [n], pairs given by index: E = sum_p w w exp(-r^2), F = -dE/dr.
  const std::int64_t n = 7;
  const std::int64_t pairs = 17;
  const OpCase c = {.inputs = {uniform({n, 3}), uniform({n}), integers({pairs}, 0, n - 1),
                               integers({pairs}, 0, n - 1), constant(uniform({n, 3}))},
                    .f = [](const Tensors& in) -> Tensors {
                      const Tensor positions =
                          requires_grad(in[0]) ? in[0] : require_grad(in[0].detach());
                      const Tensor difference = gather(positions, in[2]) - gather(positions, in[3]);
                      const Tensor weight = gather(in[1], in[2]) * gather(in[1], in[3]);
                      const Tensor energy = sum(weight * exp(-sum(square(difference), {1})));
                      const Tensor force = -grad({energy}, {positions}, {.create_graph = true})[0];
                      return {mean(square(force - in[4])) + square(energy)};
                    }};
  const Mesh mesh = grid("x", "y");
  const auto on = [&](std::vector<std::string_view> axes, const Shape& shape) {
    return axes.empty() ? Layout::replicated(mesh, shape)
                        : Placement(mesh).shard(0, axes).resolve(shape);
  };
  using Axes = std::vector<std::string_view>;
  // Atoms and pairs each over both axes, over one, over different ones, and whole.
  const std::pair<Axes, Axes> cuts[] = {{{"x", "y"}, {"x", "y"}},
                                        {{"x", "y"}, {"y", "x"}},
                                        {{"x"}, {"x"}},
                                        {{"x"}, {"y"}},
                                        {{"x"}, {}},
                                        {{}, {"y"}}};
  for (const auto& [atoms, edges] : cuts) {
    prove(c, {on(atoms, {n, 3}), on(atoms, {n}), on(edges, {pairs}), on(edges, {pairs}),
              on(atoms, {n, 3})});
  }
}

TEST_CASE("an algorithm of its own over two axes: all pairs by a ring") {
  const Mesh mesh = grid("h", "w");
  const OpCase c = {
      .inputs = {uniform({5, 3, 2}), uniform({4, 5, 2}), uniform({4, 5, 3})},
      .f = [](const Tensors& in) -> Tensors { return {all_pairs(in[0], in[1], in[2])}; },
      .reference = [](const std::vector<DenseArray>& in) -> std::vector<DenseArray> {
        return {all_pairs_reference(in[0], in[1], in[2])};
      }};
  report(compare(
      "value",
      to_dense(c.f({to_self(random_array({5, 3, 2}, 1)), to_self(random_array({4, 5, 2}, 2)),
                    to_self(random_array({4, 5, 3}, 3))})[0]),
      all_pairs_reference(random_array({5, 3, 2}, 1), random_array({4, 5, 2}, 2),
                          random_array({4, 5, 3}, 3)),
      1e-13));
  Rng rng(3);
  for (int variant = 0; variant < 6; ++variant) {
    const auto cut = [&](const Shape& s) { return draw_layout(mesh, s, {0, 1}, variant, rng); };
    const Layout keys = cut({4, 5, 2});
    const Layout values = keys.with_dim(2, 3, {});
    prove(c, {cut({5, 3, 2}), keys, values});
  }
  const auto cut = [&](const Shape& s) { return draw_layout(mesh, s, {0, 1}, 0, rng); };
  // One axis, and keys that have to be cut first.
  prove(c, {draw_layout(mesh, {5, 3, 2}, {0, -1}, 0, rng),
            draw_layout(mesh, {4, 5, 2}, {0, -1}, 0, rng),
            draw_layout(mesh, {4, 5, 3}, {-1, -1}, 0, rng)});

  // Keys and values go once around, P - 1 steps, and nothing else moves.
  const Tensors in = {to_tensor(random_array({4, 4, 2}, 1), cut({4, 4, 2})),
                      to_tensor(random_array({4, 4, 2}, 2), cut({4, 4, 2})),
                      to_tensor(random_array({4, 4, 3}, 3), cut({4, 4, 3}))};
  expect_traffic(4 * 3 * (4 * 2 + 4 * 3) * 8, 4 * 3 * 2, [&] { all_pairs(in[0], in[1], in[2]); });
}

}  // namespace
}  // namespace tessera::test
