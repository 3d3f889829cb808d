// ranks: 1 2 3 4
// deep: 1 4

#include <cmath>
#include <numbers>
#include <tessera/autograd/ops/rotary.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Channels c and c + D/2 turned by the angle of pair c, dimension after dimension.
DenseArray reference(const DenseArray& x, const RotaryOptions& o) {
  const int dims = x.shape.size() - 3;
  const std::int64_t half = x.shape.back() / 2;
  DenseArray y = x;
  for_each(x.shape, [&](const Index& i) {
    const std::int64_t pair = i.back() % half;
    std::int64_t before = 0;
    for (int d = 0; d < dims; ++d) {
      const std::int64_t share = half / dims + (d < half % dims ? 1 : 0);
      if (pair >= before && pair < before + share) {
        const double n = static_cast<double>(x.shape[1 + d]);
        double step = o.scale / std::pow(o.base, static_cast<double>(pair - before) /
                                                     static_cast<double>(share));
        const bool circular = !o.circular.empty() &&
                              o.circular[o.circular.size() == 1 ? 0 : static_cast<std::size_t>(d)];
        if (circular) {
          const double waves = std::max(1.0, std::round(step * n / 2 / std::numbers::pi));
          step = waves * 2 * std::numbers::pi / n;
        }
        const double angle = step * static_cast<double>(i[1 + d]);
        Index other = i;
        const bool first = i.back() < half;
        other.back() += first ? half : -half;
        y[i] = x[i] * std::cos(angle) + (first ? -1.0 : 1.0) * x[other] * std::sin(angle);
      }
      before += share;
    }
  });
  return y;
}

OpCase rotary_case(const Shape& shape, const RotaryOptions& options) {
  InputSpec x = uniform(shape);
  x.cuttable = {};
  for (int d = 0; d + 1 < shape.size(); ++d) x.cuttable.push_back(d);
  return {.inputs = {x},
          .f = [=](const auto& in) { return std::vector{rotary(in[0], options)}; },
          .reference = [=](const auto& in) { return std::vector{reference(in[0], options)}; },
          .linear = {{0}},
          .exact = true};
}

}  // namespace

OP_TEST("rotary, 1-D") { return rotary_case({2, 9, 3, 6}, {}); }

OP_TEST("rotary, 2-D, circular in one dimension") {
  return rotary_case({1, 5, 7, 2, 10}, {.base = 100.0, .circular = {false, true}});
}

OP_TEST("rotary, 3-D, fewer pairs than dimensions") {
  return rotary_case({1, 3, 4, 5, 2, 4}, {.scale = 0.5});
}

OP_TABLE("rotary") { return rotary_case({1, n, 3, 2, 10}, {.base = 100.0}); }

RANDOM_OP_TEST("rotary, any size") {
  Shape shape{rng.integer(1, 2)};
  const std::int64_t dims = rng.integer(1, 3);
  for (std::int64_t d = 0; d < dims; ++d) shape.push_back(rng.integer(1, 6));
  shape.push_back(rng.integer(1, 3));
  shape.push_back(2 * rng.integer(1, 5));
  return rotary_case(
      shape, {.base = rng.real(2.0, 1e4), .scale = rng.real(0.1, 2.0), .circular = {rng.coin()}});
}

TEST_CASE("positions beyond one block of angles") {
  const DenseArray x = random_array({1, 300, 1, 4}, 1);
  const Layout layout =
      Placement(Mesh::world({{"x", process().count}})).shard(1, {"x"}).resolve(x.shape);
  CHECK(compare("rotary", rotary(to_tensor(x, layout)), reference(x, {}), 1e-12) == "");
}

TEST_CASE("a circular dimension closes") {
  const std::int64_t n = 24;
  for (const PositionWave& wave : position_waves({n}, 8, {.circular = {true}})) {
    const double turns = wave.step * static_cast<double>(n) / (2 * std::numbers::pi);
    CHECK(turns == Approx(std::round(turns)));
    CHECK(turns > 0.5);
  }
  CHECK(position_waves({4, 4}, 3, {}).size() == 3);
  CHECK(position_waves({4, 4}, 3, {})[2].dim == 1);
}

TEST_CASE("what rotary refuses") {
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  CHECK_THROWS_AS(rotary(zeros({1, 4, 2, 3})), ShapeError);
  CHECK_THROWS_AS(rotary(zeros({1, 4, 2})), ShapeError);
  CHECK_THROWS_AS(rotary(zeros({1, 4, 2, 4}), {.base = 0.0}), UsageError);
  CHECK_THROWS_AS(rotary(zeros({1, 4, 2, 4}), {.circular = {true, false}}), UsageError);
}
