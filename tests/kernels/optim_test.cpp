// ranks: 1

#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/optim_methods.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;
using kernels::OptimSegment;

namespace {

/// Parameters of several sizes with gradients and two states, and copies of them in double.
struct Problem {
  std::vector<OwnedView> p, g, m, v;
  std::vector<OptimSegment> segments;

  Problem(DType dtype, bool velocity) {
    for (const std::int64_t n : {1, 17, 0, 700, 40000}) {
      const auto random = [&](double low) {
        return filled_view({n}, dtype, [=] { return uniform(low, 1); });
      };
      p.push_back(random(-1));
      g.push_back(random(-1));
      m.push_back(random(-1));
      v.push_back(random(0));
      const double rate = 0.1 / static_cast<double>(p.size());
      segments.push_back({p.back().view, g.back().view, velocity ? m.back().view : View{},
                          v.back().view, rate, 0.01});
    }
  }
  template <class F>
  void check(const Problem& before, double tolerance, const F& f) const {
    for (std::size_t k = 0; k < p.size(); ++k) {
      for (std::int64_t i = 0; i < p[k].view.size(); i += 1 + i / 50) {
        double pi = before.p[k].at({i}), mi = before.m[k].at({i}), vi = before.v[k].at({i});
        f(segments[k], pi, before.g[k].at({i}), mi, vi);
        REQUIRE(p[k].at({i}) == Approx(pi).margin(tolerance));
        REQUIRE(m[k].at({i}) == Approx(mi).margin(tolerance));
        REQUIRE(v[k].at({i}) == Approx(vi).margin(tolerance));
      }
    }
  }
};

/// The same values in another memory.
Problem copy_of(const Problem& from, DType dtype, bool velocity) {
  Problem to(dtype, velocity);
  for (std::size_t k = 0; k < from.p.size(); ++k) {
    kernels::copy(from.p[k].view, to.p[k].view);
    kernels::copy(from.g[k].view, to.g[k].view);
    kernels::copy(from.m[k].view, to.m[k].view);
    kernels::copy(from.v[k].view, to.v[k].view);
  }
  return to;
}

}  // namespace

TEST_CASE("steps of AdamW, SGD and averages") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const double tolerance = 30 * epsilon(dtype);
    {
      Problem problem(dtype, true);
      const Problem before = copy_of(problem, dtype, true);
      kernels::adamw_step(problem.segments, {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .step = 3});
      problem.check(before, tolerance,
                    [](const OptimSegment& s, double& p, double g, double& m, double& v) {
                      m = 0.8 * m + 0.2 * g;
                      v = 0.9 * v + 0.1 * g * g;
                      p *= 1 - s.rate * 0.01;
                      p -= s.rate * (m / (1 - 0.512)) / (std::sqrt(v / (1 - 0.729)) + 1e-3);
                    });
    }
    for (const bool velocity : {false, true}) {
      for (const bool nesterov : {false, true}) {
        Problem problem(dtype, velocity);
        const Problem before = copy_of(problem, dtype, velocity);
        kernels::sgd_step(problem.segments, 0.7, nesterov);
        problem.check(before, tolerance,
                      [&](const OptimSegment& s, double& p, double g, double& m, double&) {
                        double d = g + 0.01 * p;
                        if (velocity) {
                          m = 0.7 * m + d;
                          d = nesterov ? d + 0.7 * m : m;
                        }
                        p -= s.rate * d;
                      });
      }
    }
    Problem problem(dtype, true);
    const Problem before = copy_of(problem, dtype, true);
    kernels::ema_step(problem.segments, 0.9);
    problem.check(
        before, tolerance,
        [](const OptimSegment&, double& p, double g, double&, double&) { p = 0.9 * p + 0.1 * g; });
  }
}

TEST_CASE("steps of RMSprop, Adagrad and Lion, and the direction of LAMB") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const double tolerance = 60 * epsilon(dtype);
    const auto check = [&](const auto& step, const auto& rule) {
      Problem problem(dtype, true);
      const Problem before = copy_of(problem, dtype, true);
      step(problem.segments);
      problem.check(before, tolerance, rule);
    };
    // m: the squares, v: the velocity (RMSprop).
    for (const bool velocity : {false, true}) {
      check(
          [&](std::vector<OptimSegment>& segments) {
            for (OptimSegment& s : segments) {
              kernels::binary(kernels::BinaryKind::kMul, s.first, s.first, s.first);
              if (!velocity) s.second = {};
            }
            kernels::rmsprop_step(segments, {.alpha = 0.8, .eps = 0.1, .momentum = 0.5});
          },
          [&](const OptimSegment& s, double& p, double g, double& m, double& v) {
            g += 0.01 * p;
            m = 0.8 * m * m + 0.2 * g * g;
            const double u = g / (std::sqrt(m) + 0.1);
            if (velocity) v = 0.5 * v + u;
            p -= s.rate * (velocity ? v : u);
          });
    }
    check(
        [](std::vector<OptimSegment>& segments) {
          for (OptimSegment& s : segments) std::swap(s.first, s.second);
          kernels::adagrad_step(segments, 0.5, 1e-3);
        },
        [](const OptimSegment& s, double& p, double g, double&, double& v) {
          g += 0.01 * p;
          v += g * g;
          p -= s.rate * g / (std::sqrt(0.5 + v) + 1e-3);
        });
    check([](const auto& segments) { kernels::lion_step(segments, 0.7, 0.9); },
          [](const OptimSegment& s, double& p, double g, double& m, double&) {
            p *= 1 - s.rate * 0.01;
            p -= s.rate * (0.7 * m + 0.3 * g > 0 ? 1 : -1);
            m = 0.9 * m + 0.1 * g;
          });
    Problem problem(dtype, true);
    const Problem before = copy_of(problem, dtype, true);
    std::vector<OwnedView> directions;
    for (OptimSegment& s : problem.segments) {
      directions.push_back(make_view({s.parameter.size()}, dtype));
      s.third = directions.back().view;
    }
    kernels::lamb_direction(problem.segments, {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .step = 3});
    for (std::size_t k = 0; k < directions.size(); ++k) {
      for (std::int64_t i = 0; i < directions[k].view.size(); i += 1 + i / 50) {
        const double g = before.g[k].at({i});
        const double m = 0.8 * before.m[k].at({i}) + 0.2 * g;
        const double v = 0.9 * before.v[k].at({i}) + 0.1 * g * g;
        const double u =
            m / (1 - 0.512) / (std::sqrt(v / (1 - 0.729)) + 1e-3) + 0.01 * before.p[k].at({i});
        REQUIRE(problem.m[k].at({i}) == Approx(m).margin(tolerance));
        REQUIRE(problem.v[k].at({i}) == Approx(v).margin(tolerance));
        REQUIRE(problem.p[k].at({i}) == before.p[k].at({i}));
        REQUIRE(directions[k].at({i}) == Approx(u).epsilon(tolerance).margin(tolerance));
      }
    }
  }
}

TEST_CASE("sum of squares in double, for any number of threads") {
  Problem problem(DType::kFloat32, true);
  std::vector<View> views;
  double expected = 0;
  for (const OwnedView& g : problem.g) {
    views.push_back(g.view);
    for (std::int64_t i = 0; i < g.view.size(); ++i) expected += g.at({i}) * g.at({i});
  }
  const int threads = thread_count();
  set_thread_count(1);
  const double one = kernels::sum_of_squares(views);
  set_thread_count(3);
  REQUIRE(kernels::sum_of_squares(views) == one);
  set_thread_count(threads);
  REQUIRE(one == Approx(expected).epsilon(1e-12));
}

TEST_CASE("segments that do not fit throw") {
  OwnedView a = make_view({4}, DType::kFloat32), b = make_view({5}, DType::kFloat32);
  const OptimSegment wrong{a.view, b.view, a.view, a.view, 0.1, 0};
  REQUIRE_THROWS_AS(kernels::adamw_step({&wrong, 1}, {}), ShapeError);
}
