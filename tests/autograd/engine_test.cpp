// ranks: 1 2 4
// The tape and the rules by which contributions to a gradient come together.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/grad_once.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

Mesh line() { return Mesh::world({{"x", process().count}}); }
Layout replicated(const Shape& shape) { return Layout::replicated(line(), shape); }
Layout rows(const Shape& shape, int dim = 0) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  splits[static_cast<std::size_t>(dim)].axes = {0};
  return Layout::make(line(), shape, splits);
}
Tensor leaf(const DenseArray& values, const Layout& layout, DType dtype = DType::kFloat64) {
  return require_grad(to_tensor(values, layout, dtype));
}
DenseArray numbers(const Shape& shape, std::uint64_t seed) { return random_array(shape, seed); }

void check_equal(const std::string& what,
                 const Tensor& actual,
                 const DenseArray& expected,
                 double tolerance = 1e-13) {
  report(agreed(compare(what, actual, expected, tolerance, 1.0)));
}
DenseArray map(const DenseArray& a, const std::function<double(double)>& f) {
  DenseArray result = a;
  for (double& v : result.values) v = f(v);
  return result;
}

/// Three uses of a replicated leaf [6]: one gives it a replicated gradient, one a split one, one a
/// pending sum.
struct Uses {
  DenseArray x = numbers({6}, 1);
  DenseArray c = numbers({6}, 2);
  DenseArray d = numbers({6}, 3);
  DenseArray s = numbers({5, 1}, 4);
  DenseArray k = numbers({5, 6}, 5);

  Tensor loss(const Tensor& t, int use) const {
    switch (use) {
      case 0:
        return sum(t * to_tensor(c, replicated({6})));
      case 1:
        return sum(square(t) * to_tensor(d, rows({6})));
      default:
        return sum(to_tensor(s, rows({5, 1})) * t * to_tensor(k, rows({5, 6})));
    }
  }
  DenseArray gradient() const {
    DenseArray g({6});
    for (int i = 0; i < 6; ++i) {
      g(i) = c(i) + 2.0 * x(i) * d(i);
      for (int n = 0; n < 5; ++n) g(i) += s(n, 0) * k(n, i);
    }
    return g;
  }
};

TEST_CASE("replicated, split and pending contributions add up, in any order") {
  const Uses uses;
  std::vector<int> order = {0, 1, 2};
  do {
    const Tensor x = leaf(uses.x, replicated({6}));
    Tensor total;
    for (const int use : order) {
      const Tensor part = uses.loss(x, use);
      total = total.defined() ? total + part : part;
    }
    const Tensor by_grad = grad({total}, {x})[0];
    CHECK(by_grad.layout() == x.layout());
    check_equal("grad", by_grad, uses.gradient());
    const Tensor recorded = grad({total}, {x}, {.create_graph = true})[0];
    check_equal("grad with graph", recorded, uses.gradient());
    check_equal("second", grad({sum(recorded)}, {x})[0],
                map(uses.d, [](double v) { return 2.0 * v; }));
    CHECK_FALSE(gradient(x).defined());  // grad() touches no leaf
    backward(total);
    CHECK(gradient(x).layout() == x.layout());
    check_equal("backward", gradient(x), uses.gradient());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("contributions to a value inside the graph") {
  const Uses uses;
  for (int twice = 0; twice < 3; ++twice) {
    const Tensor x = leaf(uses.x, replicated({6}));
    const Tensor y = exp(x);
    const Tensor total = uses.loss(y, twice) + uses.loss(y, 0) + uses.loss(y, twice);
    Uses at = uses;
    at.x = map(uses.x, [](double v) { return std::exp(v); });
    DenseArray expected({6});
    for (int i = 0; i < 6; ++i) {
      double g = uses.c(i);
      for (int copy = 0; copy < 2; ++copy) {
        if (twice == 0) g += uses.c(i);
        if (twice == 1) g += 2.0 * at.x(i) * uses.d(i);
        for (int n = 0; twice == 2 && n < 5; ++n) g += uses.s(n, 0) * uses.k(n, i);
      }
      expected(i) = g * at.x(i);
    }
    backward(total);
    check_equal("gradient", gradient(x), expected);
  }
}

TEST_CASE("micro-batches accumulate without communication and are reduced once") {
  const Uses uses;
  const Tensor x = leaf(uses.x, replicated({6}));
  const auto losses = [&] { return uses.loss(x, 2); };
  const std::vector<Tensor> micro = {losses(), losses(), losses()};
  const Traffic quiet = traffic_of([&] {
    backward(micro[0], {.reduce = false});
    backward(micro[1], {.reduce = false});
  });
  CHECK(quiet.messages == 0);
  const Traffic once = traffic_of([&] {
    backward(micro[2]);
    finish_gradients();
  });
  const Tensor alone = leaf(uses.x, replicated({6}));
  const Tensor loss = uses.loss(alone, 2);
  const Traffic single = traffic_of([&] {
    backward(loss);
    finish_gradients();
  });
  CHECK(once.bytes == single.bytes);
  CHECK(once.messages == single.messages);
  CHECK((single.messages > 0) == (process().count > 1));
  DenseArray expected({6});
  for (int i = 0; i < 6; ++i)
    for (int n = 0; n < 5; ++n) expected(i) += 3.0 * uses.s(n, 0) * uses.k(n, i);
  check_equal("gradient", gradient(x), expected);
}

TEST_CASE("accumulated gradients that nobody reduces are finished on access") {
  const Uses uses;
  const Tensor x = leaf(uses.x, replicated({6}));
  for (int use = 0; use < 3; ++use) backward(uses.loss(x, use), {.reduce = false});
  check_equal("gradient", gradient(x), uses.gradient());
}

TEST_CASE("a backward into a ready gradient adds the new part alone") {
  const Uses uses;
  const Tensor x = leaf(uses.x, replicated({6}));
  for (int round = 1; round <= 3; ++round) {
    backward(uses.loss(x, 0) + uses.loss(x, 1) + uses.loss(x, 2));
    if (round == 2) finish_gradients();
    if (round != 1) {
      check_equal("gradient", gradient(x),
                  map(uses.gradient(), [&](double v) { return round * v; }));
    }
  }
  clear_gradient(x);
  CHECK_FALSE(gradient(x).defined());
  set_gradient(x, to_tensor(uses.c, rows({6})));
  CHECK(gradient(x).layout() == x.layout());
  backward(uses.loss(x, 0));
  check_equal("set, then added", gradient(x), map(uses.c, [](double v) { return 2.0 * v; }));
}

TEST_CASE("a graph is used once unless it is kept") {
  const DenseArray v = numbers({4}, 9);
  const Tensor x = leaf(v, rows({4}));
  const Tensor loss = sum(x * x * x);
  backward(loss, {.retain_graph = true});
  backward(loss);
  check_equal("twice", gradient(x), map(v, [](double a) { return 6.0 * a * a; }));
  CHECK_THROWS_AS(backward(loss), UsageError);
  CHECK_THROWS_WITH(backward(loss), Catch::Contains("retain_graph"));
  const Tensor other = sum(x * x);
  check_equal("grad keeps the graph", grad({other}, {x})[0],
              map(v, [](double a) { return 2.0 * a; }));
  check_equal("and again", grad({other}, {x})[0], map(v, [](double a) { return 2.0 * a; }));
  const Tensor w = leaf(v, rows({4}));
  const Tensor third = sum(x * x * w);
  check_equal("once", grad_once({third}, {x})[0], map(v, [](double a) { return 2.0 * a * a; }));
  CHECK_THROWS_AS(grad_once({third}, {x}), UsageError);
  CHECK_FALSE(gradient(w).defined());
}

TEST_CASE("derivatives of any order") {
  const DenseArray v = numbers({5}, 10);
  const Tensor x = leaf(v, rows({5}));
  Tensor y = sum(x * x * x * x * x);
  const double factors[] = {5, 20, 60, 120, 120};
  for (int order = 0; order < 5; ++order) {
    const Tensor g = grad({y}, {x}, {.create_graph = true})[0];
    check_equal(str("order ", order + 1), g,
                map(v, [&](double a) { return factors[order] * std::pow(a, 4 - order); }));
    y = sum(g);
  }
  CHECK_THROWS_AS(grad({y}, {x}), UsageError);  // constant by now
  CHECK_FALSE(grad({y}, {x}, {.allow_unused = true})[0].defined());
}

TEST_CASE("a force in the loss: weights of both passes count together, reduced once") {
  // E = sum_n w_n x_n^2 / 2, force -w x; loss = E + sum (w x)^2
  const DenseArray vx = numbers({6}, 20);
  const DenseArray vw = numbers({6}, 21);
  const Tensor x = leaf(vx, rows({6}));
  const Tensor w = leaf(vw, replicated({6}));
  const Tensor energy = sum(w * square(x)) * 0.5;
  const Tensor force = -grad({energy}, {x}, {.create_graph = true})[0];
  CHECK(force.layout() == x.layout());
  CHECK_FALSE(gradient(w).defined());
  backward(energy + sum(square(force)));
  DenseArray dw({6});
  DenseArray dx({6});
  for (int i = 0; i < 6; ++i) {
    dw(i) = 0.5 * vx(i) * vx(i) + 2.0 * vw(i) * vx(i) * vx(i);
    dx(i) = vw(i) * vx(i) + 2.0 * vw(i) * vw(i) * vx(i);
  }
  check_equal("weight", gradient(w), dw);
  check_equal("position", gradient(x), dx);
}

TEST_CASE("nothing is recorded without gradients") {
  const Tensor x = leaf(numbers({3}, 11), replicated({3}));
  CHECK(requires_grad(x * 2.0));
  {
    const NoGrad off;
    CHECK_FALSE(grad_enabled());
    CHECK_FALSE(requires_grad(x * 2.0));
    {
      const EnableGrad on;
      CHECK(requires_grad(x * 2.0));
    }
    CHECK_FALSE(requires_grad(x * 2.0));
  }
  CHECK(grad_enabled());
  CHECK_FALSE(requires_grad(to_tensor(numbers({3}, 1), replicated({3})) * 2.0));
  CHECK_FALSE(requires_grad(x.detach()));
  CHECK(requires_grad(x));
  CHECK(is_leaf(x));
  CHECK_FALSE(is_leaf(x * 2.0));
  CHECK_FALSE(requires_grad(cast(x, DType::kInt32)));
  CHECK_FALSE(requires_grad(grad({sum(square(x))}, {x})[0]));
}

TEST_CASE("values changed in place after they were used") {
  const DenseArray v = numbers({3}, 12);
  const Tensor x = leaf(v, replicated({3}));
  const Tensor product = sum(square(x));
  const Tensor copy = sum(x * 3.0);  // saves nothing
  x.mutable_local();
  CHECK_THROWS_WITH(backward(product), Catch::Contains("changed in place"));
  backward(copy);
  check_equal("gradient", gradient(x), DenseArray({3}, 3.0));
}

TEST_CASE("anomaly mode names the op, on every rank, when one element is bad") {
  DenseArray v({6}, 1.0);
  v(5) = 0.0;
  const Tensor x = to_tensor(v, rows({6}));
  CHECK(std::isinf(to_dense(log(x))(5)));
  {
    const AnomalyMode on;
    CHECK_NOTHROW(x + x);
    CHECK_THROWS_WITH(log(x), Catch::StartsWith("log: made a NaN or infinity"));
    // In backward, too: d sqrt at 0.
    const Tensor y = leaf(v, rows({6}));
    const Tensor loss = sum(sqrt(y));
    CHECK_THROWS_WITH(backward(loss), Catch::Contains("made a NaN or infinity"));
  }
  Tensor bad = log(x);
  const AnomalyMode on;
  CHECK_NOTHROW(bad + bad);  // not the first
}

TEST_CASE("chains of 100,000 nodes neither overflow the stack nor leak") {
  const MemoryPool& pool = MemoryPool::of(Device{});
  const std::int64_t before = pool.stats().live_bytes;
  {
    const Tensor x = leaf(DenseArray({1}, 1.0), replicated({1}));
    Tensor y = x;
    for (int i = 0; i < 100000; ++i) y = y * 1.0;
    backward(sum(y));
    check_equal("gradient", gradient(x), DenseArray({1}, 1.0));
    Tensor unused = x;
    for (int i = 0; i < 100000; ++i) unused = square(unused);
  }
  CHECK(pool.stats().live_bytes == before);
}

TEST_CASE("a chain that keeps its inputs is freed while backward goes on") {
  const MemoryPool& pool = MemoryPool::of(Device{});
  const Layout layout = replicated({1000});
  const Tensor x = leaf(numbers({1000}, 13), layout);
  Tensor y = x;
  for (int i = 0; i < 50; ++i) y = sin(y);
  const Tensor loss = sum(y);
  y = Tensor();
  const std::int64_t full = pool.stats().live_bytes;
  backward(loss);
  finish_gradients();
  CHECK(full - pool.stats().live_bytes >= 45 * 8000);
}

TEST_CASE("gradients travel in buckets, one reduction per kind") {
  const int count = process().count;
  const auto reductions = [] {
    return parallel::comm_stats()[parallel::CallKind::kAllReduce].calls;
  };
  std::vector<Tensor> leaves;
  std::vector<DenseArray> values;
  const DenseArray s = numbers({7, 1}, 30);
  double factor = 0.0;
  for (const double v : s.values) factor += v;
  for (int i = 0; i < 12; ++i) {
    values.push_back(rounded_to(numbers({i + 1}, 31), DType::kFloat32));
    leaves.push_back(
        leaf(values.back(), replicated({i + 1}), i % 3 == 0 ? DType::kFloat32 : DType::kFloat64));
  }
  Tensor total;
  for (const Tensor& x : leaves) {
    // Each leaf is used once, through a linear view: its gradient stays pending down to the leaf.
    const Tensor part = sum(cast(x, DType::kFloat64) * to_tensor(s, rows({7, 1})));
    total = total.defined() ? total + part : part;
  }
  const std::int64_t before = reductions();
  backward(total);
  finish_gradients();
  if (count > 1) CHECK(reductions() - before == 2);  // fp32 and fp64
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    check_equal(str("leaf ", i), gradient(leaves[i]), DenseArray(values[i].shape, factor), 1e-6);
    CHECK(gradient(leaves[i]).layout() == leaves[i].layout());
  }
}

TEST_CASE("a full bucket leaves while backward goes on") {
  if (process().count == 1) return;
  const auto reductions = [] {
    return parallel::comm_stats()[parallel::CallKind::kAllReduce].calls;
  };
  // Three leaves of 0.75 MiB: the first two fill a bucket.
  const std::int64_t n = 3 << 15;
  const Tensor s = to_tensor(numbers({2, 1}, 1), rows({2, 1}));
  std::vector<Tensor> leaves;
  Tensor total;
  for (int i = 0; i < 3; ++i) {
    leaves.push_back(require_grad(Tensor::zeros(replicated({n}), DType::kFloat64)));
    const Tensor part = sum(leaves.back() * s);
    total = total.defined() ? total + part : part;
  }
  const std::int64_t before = reductions();
  backward(total);
  CHECK(reductions() - before == 2);
  CHECK(parallel::outstanding() > 0);  // nobody has waited yet
  const DenseArray v = numbers({2, 1}, 1);
  for (const Tensor& x : leaves) {
    CHECK(gradient(x).at({0}) == Approx(v(0, 0) + v(1, 0)));
    CHECK(gradient(x).at({n - 1}) == Approx(v(0, 0) + v(1, 0)));
  }
  CHECK(parallel::outstanding() == 0);
}

TEST_CASE("large gradients are summed where they are, but not where others look") {
  const std::int64_t n = 3 << 16;  // 1.5 MiB: a bucket of its own
  const DenseArray v = numbers({2, 1}, 1);
  const Tensor s = to_tensor(v, rows({2, 1}));
  const Tensor a = require_grad(Tensor::zeros(replicated({n}), DType::kFloat64));
  const Tensor b = require_grad(Tensor::zeros(replicated({n}), DType::kFloat64));
  const Tensor c = require_grad(Tensor::zeros(replicated({n}), DType::kFloat64));
  // One tensor is the gradient of a and of b; that of c comes alone, and twice.
  for (int pass = 1; pass <= 2; ++pass) {
    backward(sum((a + b) * s) + sum(c * s) * 3.0);
    const double one = pass * (v(0, 0) + v(1, 0));
    for (const std::int64_t i : {std::int64_t{0}, n / 2, n - 1}) {
      CHECK(gradient(a).at({i}) == Approx(one));
      CHECK(gradient(b).at({i}) == Approx(one));
      CHECK(gradient(c).at({i}) == Approx(3 * one));
    }
  }
}

TEST_CASE("through linear views a pending gradient reaches the leaf, whatever its layout") {
  const DenseArray v = numbers({24}, 40);
  const DenseArray a = numbers({4, 6}, 41);
  const DenseArray s = numbers({3, 1, 1}, 42);
  DenseArray expected({24});
  for (int i = 0; i < 24; ++i)
    for (int n = 0; n < 3; ++n) expected(i) += s(n, 0, 0) * a(i % 4, i / 4);
  // The gradient of the view arrives split along 0, along 1, as a pending sum, or whole.
  for (int way = 0; way < 4; ++way) {
    const Tensor x = leaf(v, replicated({24}));
    const Tensor w = permute(reshape(x, {6, 4}), {1, 0});
    const Tensor cut = to_tensor(a, way < 2 ? rows({4, 6}, way) : replicated({4, 6}));
    const Tensor outer = to_tensor(s, way == 2 ? rows({3, 1, 1}) : replicated({3, 1, 1}));
    const Tensor loss = sum(sum(w * cut) * outer);
    check_equal(str("grad, way ", way), grad({loss}, {x})[0], expected);
    backward(loss);
    check_equal(str("backward, way ", way), gradient(x), expected);
  }
}

TEST_CASE("split leaves take their part of a pending gradient") {
  const DenseArray v = numbers({6}, 50);
  const DenseArray s = numbers({5, 1}, 51);
  double factor = 0.0;
  for (const double a : s.values) factor += a;
  const Tensor x = leaf(v, rows({6}));
  const Tensor used = replicate(x);  // gathered in use
  const Tensor loss = sum(square(used) * to_tensor(s, rows({5, 1})));
  const DenseArray expected = map(v, [&](double a) { return 2.0 * a * factor; });
  check_equal("grad", grad({loss}, {x})[0], expected);
  backward(loss);
  CHECK(gradient(x).layout() == x.layout());
  check_equal("backward", gradient(x), expected);
}

TEST_CASE("pending values: linear ops pass them on, others take the sum first") {
  if (process().count == 1) return;
  const DenseArray v = numbers({4, 3}, 60);
  const Layout pending = replicated({4, 3}).with_partial(1);
  const Tensor x = to_tensor(v, pending);
  CHECK((x * 2.0).layout() == pending);
  CHECK((x + x).layout() == pending);
  CHECK(sum(x, {0}).layout().partial_axes() == 1u);
  CHECK(permute(x, {1, 0}).layout().partial_axes() == 1u);
  for (const Tensor& y : {exp(x), square(x), maximum(x, x)}) {
    CHECK(y.layout().partial_axes() == 0u);
  }
  check_equal("x + 1", x + 1.0, map(v, [](double a) { return a + 1.0; }));
  const Tensor b = to_tensor(DenseArray({3}, 2.0), replicated({3}));
  check_equal("x + b", x + b, map(v, [](double a) { return a + 2.0; }));
  check_equal("x * x", x * x, map(v, [](double a) { return a * a; }));
  check_equal("exp", exp(x), map(v, [](double a) { return std::exp(a); }));
  CHECK_THROWS_AS(sum(x).item(), LayoutError);
  CHECK(reduced(sum(x)).item() == Approx(dot(v, DenseArray({4, 3}, 1.0))));
}

TEST_CASE("mistakes are said before anything is sent") {
  const Tensor x = leaf(numbers({3}, 70), rows({3}));
  const Tensor constant = to_tensor(numbers({3}, 71), rows({3}));
  CHECK_THROWS_AS(backward(x * 2.0), ShapeError);
  CHECK_THROWS_AS(backward(sum(constant)), UsageError);
  CHECK_THROWS_AS(grad({x * 2.0}, {x}), ShapeError);
  CHECK_THROWS_AS(grad({sum(x)}, {constant}), UsageError);
  CHECK_THROWS_AS(grad({sum(x)}, {x}, {}, {constant, constant}), UsageError);
  CHECK_THROWS_AS(grad({x * 2.0}, {x}, {}, {to_tensor(numbers({2}, 1), rows({2}))}), ShapeError);
  CHECK_THROWS_AS(gradient(x * 2.0), UsageError);
  CHECK_THROWS_AS(gradient(constant), UsageError);
  CHECK_THROWS_AS(set_gradient(x, to_tensor(numbers({2}, 1), rows({2}))), ShapeError);
  CHECK_THROWS_AS(require_grad(Tensor()), UsageError);
  CHECK_THROWS_AS(require_grad(Tensor::zeros(rows({3}), DType::kInt32)), DTypeError);
  CHECK_THROWS_WITH(x + to_self(numbers({3}, 1)),
                    Catch::Contains("add: tensors live on different meshes"));
  CHECK_THROWS_AS(redistribute(x, rows({4})), LayoutError);
}

}  // namespace
}  // namespace tessera::test
