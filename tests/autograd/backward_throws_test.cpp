// ranks: 1 2 3
// A backward() that ends with an error midway: what it leaves, and that work goes on after it.
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/autograd/small_ops.hpp"

namespace tessera::test {
namespace {

bool broken = false;

/// y = x, with a gradient that may fail, on all ranks alike.
const OpDef fragile_op = {
    .name = "fragile",
    .infer = cube_op.infer,
    .signatures = cube_signatures,
    .local = [](const LocalCall& call) { each_element(call, [](double x) { return x; }); },
    .vjp =
        [](VjpContext& c) {
          if (broken) throw NotSupported("fragile: no gradient today.");
          c.set(0, c.grad());
        }};

struct Chain {
  Tensor x;
  Tensor early;  // used before the fragile op: its gradient comes after it
  Tensor late;   // used behind it: its gradient is complete when it fails
  explicit Chain(const Mesh& mesh) {
    const Layout rows = Placement(mesh).shard(0, {"x"}).resolve({7, 3}, {});
    const Layout whole = Layout::replicated(mesh, {7, 3});
    x = to_tensor(random_array({7, 3}, 1), rows);
    early = require_grad(to_tensor(random_array({7, 3}, 2), whole));
    late = require_grad(to_tensor(random_array({7, 3}, 3), whole));
  }
  Tensor loss() const { return sum(call<NoArgs>(fragile_op, {x * early}) * late); }
};

}  // namespace

TEST_CASE("a backward that throws leaves complete gradients or none, and clearing mends it") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Chain chain(mesh);
  broken = false;
  backward(chain.loss());
  const DenseArray early = to_dense(gradient(chain.early));
  const DenseArray late = to_dense(gradient(chain.late));
  for (const Tensor& leaf : {chain.early, chain.late}) clear_gradient(leaf);

  const std::int64_t live = MemoryPool::of({}).stats().live_bytes;
  for (int i = 0; i < 3; ++i) {
    broken = true;
    {
      const Tensor loss = chain.loss();
      CHECK_THROWS_AS(backward(loss), NotSupported);
      // What the walk had finished is there, whole and reduced; the rest is as before.
      CHECK(compare("late", gradient(chain.late), late, 0.0) == "");
      CHECK_FALSE(gradient(chain.early).defined());
      broken = false;
      CHECK_THROWS_AS(backward(loss), UsageError);  // its graph is used up
    }
    for (const Tensor& leaf : {chain.early, chain.late}) clear_gradient(leaf);
    CHECK(MemoryPool::of({}).stats().live_bytes == live);

    backward(chain.loss());
    CHECK(compare("early", gradient(chain.early), early, 0.0) == "");
    CHECK(compare("late", gradient(chain.late), late, 0.0) == "");
    for (const Tensor& leaf : {chain.early, chain.late}) clear_gradient(leaf);
  }
}

}  // namespace tessera::test
