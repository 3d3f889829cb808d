// ranks: 1 2 3 4
// Ops registered from outside the library go through the same test as those inside.
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/autograd/pairs.hpp"
#include "support/autograd/small_ops.hpp"

namespace tessera::test {
namespace {

OP_TEST("all pairs, by a ring") {
  OpCase c = {.inputs = {uniform({3, 4, 2}), uniform({4, 3, 2}), uniform({4, 3, 3})},
              .f = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                return {all_pairs(in[0], in[1], in[2])};
              },
              .reference = [](const std::vector<DenseArray>& in) -> std::vector<DenseArray> {
                return {all_pairs_reference(in[0], in[1], in[2])};
              },
              .linear = {{2}}};
  // Channels cannot be split, unless another input says how the grid is to be cut.
  const auto channels = [](const std::vector<Layout>& in) {
    return in[0].is_split(2) || in[1].is_split(2) || in[2].is_split(2);
  };
  c.unsupported = [channels](const std::vector<Layout>& in) {
    bool grid = false;
    for (const Layout& l : in) grid = grid || l.is_split(0) || l.is_split(1);
    return channels(in) && !grid;
  };
  // On a 2-D mesh, inputs that split one dimension over different axes do not go together.
  c.may_throw = [channels](const std::vector<Layout>& in) {
    return channels(in) || in[0].mesh().axis_count() > 1;
  };
  return c;
}

/// y = exp(x), whose gradient is made from y: the saved output must be part of the graph again.
const OpDef exp_op = {
    .name = "exp_of_its_own",
    .infer = cube_op.infer,
    .signatures = cube_signatures,
    .local =
        [](const LocalCall& call) { each_element(call, [](double x) { return std::exp(x); }); },
    .vjp = [](VjpContext& c) { c.set(0, c.output(0) * c.grad()); },
    .saved_outputs = 1};
Tensor exp_of_its_own(const Tensor& x) { return call<NoArgs>(exp_op, {x}); }

OP_TEST("a gradient made from a saved output") {
  return {.inputs = {uniform({5, 6})},
          .f = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {exp_of_its_own(in[0])};
          },
          .reference = [](const std::vector<DenseArray>& in) -> std::vector<DenseArray> {
            DenseArray y = in[0];
            for (double& v : y.values) v = std::exp(v);
            return {y};
          },
          .exact = true};
}

TEST_CASE("saved values form no cycles, and a graph that is dropped gives back its memory") {
  const MemoryPool& pool = MemoryPool::of(Device{});
  const auto x = [] { return require_grad(to_self(random_array({40, 50}, 1))); };
  const std::int64_t before = pool.stats().live_bytes;
  {
    Tensor y = x();
    for (int i = 0; i < 5; ++i) y = exp_of_its_own(affine(y, 0.1));
  }
  CHECK(pool.stats().live_bytes == before);
  {
    const Tensor leaf = x();
    const Tensor g = grad({sum(exp_of_its_own(leaf))}, {leaf}, {.create_graph = true})[0];
    const Tensor h = grad({sum(square(g))}, {leaf}, {.create_graph = true})[0];
    CHECK(h.defined());
  }
  CHECK(pool.stats().live_bytes == before);
}

TEST_CASE("mistakes in a record are named, on every rank") {
  static OpDef wrong = cube_op;
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const Tensor x =
      require_grad(to_tensor(random_array({4, 3}, 1), Layout::make(mesh, {4, 3}, {{{0}, {}}})));
  wrong.vjp = [](VjpContext& c) { c.set(0, sum(c.grad())); };
  const Tensor y = sum(cube(x, wrong));
  CHECK_THROWS_WITH(backward(y), Catch::StartsWith("cube: the gradient of input 0") &&
                                     Catch::Contains("error in the op's vjp"));
  const std::vector<Tensor> many(kMaxInputs + 1, x);
  const NoArgs none;
  CHECK_THROWS_AS(dispatch(wrong, many, {&none, sizeof none, nullptr, 0}), UsageError);
}

}  // namespace
}  // namespace tessera::test
