// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/models/solvers.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using namespace solvers;

Layout whole(const Shape& shape) { return Layout::replicated(Mesh::self(), shape); }

/// The answers on one rank and on several cuts, uneven and empty ones too: the same bits.
template <class Make>
void same_on_any_cut(const Shape& shape, const Make& make) {
  Rng rng(from_process_0(run_seed()));
  const auto advanced = [&](const Layout& layout) {
    const std::unique_ptr<Solver> solver = make(layout);
    solver->advance(7);
    return std::pair(to_dense(solver->state()), to_dense(solver->fields()));
  };
  const auto one = advanced(whole(shape));
  bool changed = false;
  const DenseArray start = to_dense(make(whole(shape))->state());
  for (std::size_t i = 0; i < start.values.size(); ++i)
    changed = changed || start.values[i] != one.first.values[i];
  CHECK(changed);
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < 3; ++variant) {
      std::vector<int> dims;
      for (int a = 0; a < mesh.axis_count(); ++a)
        dims.push_back(static_cast<int>(rng.integer(0, shape.size() - 2)));
      const Layout layout = draw_layout(mesh, shape, dims, variant, rng);
      INFO(layout.str());
      const auto many = advanced(layout);
      CHECK(many.first.values == one.first.values);
      CHECK(many.second.values == one.second.values);
    }
  }
}

double largest_error(const DenseArray& a, const DenseArray& b) {
  double error = 0.0;
  for (std::size_t i = 0; i < a.values.size(); ++i)
    error = std::max(error, std::abs(a.values[i] - b.values[i]));
  return error;
}

/// One cut over all ranks.
Layout cut(const Shape& shape) {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  return Placement(mesh).domain(0, "h").resolve(shape);
}

/// log2 of the ratio of errors at n and 2 n points.
double order(double coarse, double fine) { return std::log2(coarse / fine); }

}  // namespace

TEST_CASE("heat: second order against the exact answer in 1-D to 3-D") {
  for (int dims = 1; dims <= 3; ++dims) {
    double previous = 0.0;
    for (const std::int64_t n : {12, 24, 48}) {
      if (dims == 3 && n == 48) continue;
      Shape shape = {2};
      for (int d = 0; d < dims; ++d) shape.push_back(n);
      shape.push_back(1);
      Heat heat({.diffusivity = 0.05, .largest = 1, .interval = 0.25, .seed = 3}, cut(shape));
      heat.advance(std::llround(0.25 / heat.dt()));
      CHECK(heat.time() == Approx(0.25).epsilon(1e-12));
      const double error = largest_error(to_dense(heat.state()), to_dense(heat.exact()));
      INFO(dims << "-D, " << n << " points: error " << error << ", before " << previous);
      CHECK(error > 1e-7);
      if (previous > 0.0) CHECK(order(previous, error) == Approx(2.0).margin(0.25));
      previous = error;
    }
    CHECK(previous < 0.01);
  }
}

TEST_CASE("heat: the sum does not change") {
  Heat heat({.seed = 1}, cut({1, 13, 9, 1}));
  const double before = reduced(sum(heat.state())).item();
  heat.advance(50);
  CHECK(reduced(sum(heat.state())).item() == Approx(before).margin(1e-11));
}

TEST_CASE("gray_scott: without feed and kill nothing is lost; with them it is the formula") {
  GrayScottOptions closed = {.feed = 0.0, .kill = 0.0, .seed = 2};
  GrayScott sealed(closed, cut({1, 11, 10, 9, 2}), DType::kFloat64);
  const double before = reduced(sum(sealed.state())).item();
  sealed.advance(40);
  CHECK(reduced(sum(sealed.state())).item() == Approx(before).epsilon(1e-13));

  const Shape shape = {1, 5, 7, 2};
  GrayScott one({.seeds = 1, .seed = 5}, cut(shape), DType::kFloat64);
  const DenseArray x = to_dense(one.state());
  one.advance(1);
  const DenseArray y = to_dense(one.state());
  double spread = 0.0;
  const auto at = [&](std::int64_t i, std::int64_t j, std::size_t c) {
    return x.values[static_cast<std::size_t>(((i + 5) % 5 * 7 + (j + 7) % 7) * 2) + c];
  };
  for (std::int64_t i = 0; i < 5; ++i) {
    for (std::int64_t j = 0; j < 7; ++j) {
      const auto laplacian = [&](std::size_t c) {
        return at(i - 1, j, c) + at(i + 1, j, c) + at(i, j - 1, c) + at(i, j + 1, c) -
               4 * at(i, j, c);
      };
      const double u = at(i, j, 0);
      const double v = at(i, j, 1);
      const std::size_t k = static_cast<std::size_t>((i * 7 + j) * 2);
      CHECK(y.values[k] ==
            Approx(u + 0.5 * (0.16 * laplacian(0) - u * v * v + 0.035 * (1 - u))).epsilon(1e-13));
      CHECK(y.values[k + 1] ==
            Approx(v + 0.5 * (0.08 * laplacian(1) + u * v * v - 0.095 * v)).margin(1e-14));
      spread += std::abs(u - x.values[0]);
    }
  }
  CHECK(spread > 0.0);
}

TEST_CASE("flow: Taylor-Green vortices decay as they should, in second order") {
  const double viscosity = 0.05;
  for (const std::int64_t rows : {1, 2}) {  // a square, and a box twice as high
    double previous = 0.0;
    for (const std::int64_t n : {16, 32, 64}) {
      Flow flow({.viscosity = viscosity,
                 .start = FlowOptions::Start::kTaylorGreen,
                 .fastest = 1.0,
                 .courant = 1.6 / static_cast<double>(n),
                 .interval = 1.0},
                cut({1, rows * n, n, 1}));
      flow.advance(std::llround(1.0 / flow.dt()));
      const double ky = 1.0 / static_cast<double>(rows);
      const double decay = std::exp(-viscosity * (1.0 + ky * ky));
      const DenseArray fields = to_dense(flow.fields());
      double error = 0.0;
      double vorticity = 0.0;
      for (std::int64_t j = 0; j < rows * n; ++j) {
        for (std::int64_t i = 0; i < n; ++i) {
          const double h = 2.0 * std::numbers::pi / static_cast<double>(n);
          const double x = h * (static_cast<double>(i) + 0.5);
          const double y = ky * h * (static_cast<double>(j) + 0.5);
          const double* const f = fields.values.data() + (j * n + i) * 3;
          error = std::max(error, std::abs(f[0] - decay * std::cos(x) * std::sin(y)));
          error = std::max(error, std::abs(f[1] + decay / ky * std::sin(x) * std::cos(y)));
          vorticity = std::max(
              vorticity, std::abs(f[2] + decay * (1.0 / ky + ky) * std::cos(x) * std::cos(y)));
        }
      }
      INFO(rows << " x " << n << " points: error " << error << ", before " << previous
                << ", vorticity " << vorticity);
      if (previous > 0.0) CHECK(order(previous, error) > 1.8);
      previous = error;
      if (n == 64) CHECK(vorticity < 0.01);
    }
    CHECK(previous < 0.003);
  }
}

TEST_CASE("flow: driven from rest it reaches the laminar profile, 2-D and 3-D") {
  const double viscosity = 0.4;
  const double drag = 0.2;
  for (const Shape& shape : {Shape{1, 32, 8, 1}, Shape{1, 3, 32, 8, 1}}) {
    Flow flow({.viscosity = viscosity,
               .forcing = 0.5,
               .waves = 1,
               .drag = drag,
               .start = FlowOptions::Start::kRest,
               .fastest = 1.0,
               .courant = 0.05},
              cut(shape));
    const double ky =
        2.0 * std::numbers::pi / flow.lengths()[static_cast<std::size_t>(shape.size() - 4)];
    const double end = 12.0 / (viscosity * ky * ky + drag);
    flow.advance(std::llround(end / flow.dt()));
    const DenseArray fields = to_dense(flow.fields());
    const double amplitude = 0.5 / (viscosity * ky * ky + drag);
    double error = 0.0;
    for (std::int64_t j = 0; j < 32; ++j) {
      const double y = (static_cast<double>(j) + 0.5) * 2.0 * std::numbers::pi / 32.0;
      const double* const f = fields.values.data() + j * 8 * 3;
      error = std::max(error, std::abs(f[0] - amplitude * std::sin(y)));
      error = std::max(error, std::abs(f[1]));
    }
    INFO(shape.str() << ": amplitude " << amplitude << ", error " << error);
    CHECK(error < 0.01 * amplitude);
  }
}

TEST_CASE("flow: mass and momentum stay; energy only falls") {
  Flow flow({.viscosity = 0.02, .peak = 2, .fastest = 3.0, .seed = 4}, cut({1, 9, 10, 12, 1}));
  const auto moments = [&] {
    const DenseArray f = to_dense(flow.fields());
    std::array<double, 4> m{};
    for (std::size_t i = 0; i < f.values.size(); ++i) {
      m[i % 3] += f.values[i];
      m[3] += f.values[i] * f.values[i];
    }
    return m;
  };
  const double mass = reduced(sum(flow.state())).item();
  const auto before = moments();
  CHECK(before[3] == Approx(9 * 10 * 12).epsilon(0.4));  // waves of equal k may add up
  flow.advance(60);
  const auto after = moments();
  CHECK(reduced(sum(flow.state())).item() == Approx(mass).margin(1e-10));
  for (std::size_t d = 0; d < 3; ++d) CHECK(after[d] == Approx(before[d]).margin(1e-8));
  CHECK(after[3] < 0.99 * before[3]);
  CHECK(after[3] > 0.3 * before[3]);
}

TEST_CASE("solvers: the same bits on any cut") {
  same_on_any_cut({2, 17, 1},
                  [](const Layout& l) { return std::make_unique<Heat>(HeatOptions{}, l); });
  same_on_any_cut({1, 5, 4, 7, 1}, [](const Layout& l) {
    return std::make_unique<Heat>(HeatOptions{.seed = 1}, l, DType::kFloat32);
  });
  same_on_any_cut({2, 13, 6, 2}, [](const Layout& l) {
    return std::make_unique<GrayScott>(GrayScottOptions{.seeds = 2}, l);
  });
  same_on_any_cut({1, 5, 11, 3, 2}, [](const Layout& l) {
    return std::make_unique<GrayScott>(GrayScottOptions{.seeds = 1}, l, DType::kFloat64);
  });
  same_on_any_cut({2, 11, 6, 9}, [](const Layout& l) {
    return std::make_unique<Flow>(FlowOptions{.forcing = 1.0, .waves = 2, .drag = 0.1}, l);
  });
  same_on_any_cut({1, 6, 5, 7, 1}, [](const Layout& l) {
    return std::make_unique<Flow>(FlowOptions{.viscosity = 0.1, .peak = 1, .seed = 7}, l,
                                  DType::kFloat32);
  });
}

TEST_CASE("solvers: a step sends one message with both faces") {
  if (process().count != 2) return;
  GrayScott solver({}, cut({1, 16, 6, 5, 2}), DType::kFloat32);
  const std::int64_t face = 6 * 5 * 2 * 4;
  expect_traffic(4 * face, 2, [&] { solver.advance(1); });  // one message from each rank
}

TEST_CASE("solvers: options that cannot work are refused") {
  CHECK_THROWS_AS(Heat({.courant = 0.6}, whole({1, 8, 1})), UsageError);
  CHECK_THROWS_AS(GrayScott({.largest_step = 2.0}, whole({1, 8, 8, 8, 2})), UsageError);
  CHECK_THROWS_AS(Flow({.viscosity = 0.0}, whole({1, 8, 8, 1})), UsageError);
  CHECK_THROWS_AS(Flow({}, whole({1, 8, 1})), UsageError);
  CHECK_THROWS_AS(Heat({}, whole({1, 0, 1})), ShapeError);
  CHECK(fitting_step(1.0, 0.3) == Approx(0.25));
  CHECK(fitting_step(1.0, 0.25) == Approx(0.25));
  CHECK(fitting_step(0.0, 0.3) == 0.3);
}

}  // namespace tessera::test
