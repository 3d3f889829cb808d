// ranks: 1

#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/group_norm.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;
using kernels::GroupNormOptions;
using kernels::NormActivation;

namespace {

double act(NormActivation a, double z) {
  switch (a) {
    case NormActivation::kRelu:
      return z > 0 ? z : 0;
    case NormActivation::kSilu:
      return z / (1 + std::exp(-z));
    case NormActivation::kGelu:
      return z * 0.5 * std::erfc(-z / std::sqrt(2.0));
    default:
      return z;
  }
}

double act_slope(NormActivation a, double z) {
  if (a == NormActivation::kRelu) return z > 0 ? 1 : 0;
  const double h = 1e-6;
  return (act(a, z + h) - act(a, z - h)) / (2 * h);
}

struct Case {
  Shape shape;
  GroupNormOptions options;
};

const Case kCases[] = {
    {{2, 5, 7, 12},
     {.groups = 3, .eps = 1e-5, .centred = true, .activation = NormActivation::kSilu}},
    {{1, 50, 40, 16},
     {.groups = 4, .eps = 1e-3, .centred = true, .activation = NormActivation::kRelu}},
    {{9, 33}, {.groups = 1, .eps = 1e-5, .centred = true, .activation = NormActivation::kNone}},
    {{3, 2, 3, 4, 5},
     {.groups = 5, .eps = 1e-5, .centred = true, .activation = NormActivation::kGelu}},
    {{7, 20}, {.groups = 1, .eps = 1e-6, .centred = false, .activation = NormActivation::kNone}},
};

/// f(n, g, index) for every element.
template <class F>
void each(const Case& c, F&& f) {
  const int last = c.shape.size() - 1;
  const std::int64_t width = c.shape[last] / c.options.groups;
  for_each_index(Box::whole(c.shape), [&](const Index& i) { f(i[0], i[last] / width, i); });
}

}  // namespace

TEST_CASE("moments, values and gradients agree with plain sums") {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
      for (const Lie lie : kAllLies) {
        const int last = c.shape.size() - 1;
        const std::int64_t channels = c.shape[last], groups = c.options.groups,
                           samples = c.shape[0];
        const OwnedView x = filled_view(
            c.shape, dtype, [] { return uniform(1, 4); }, lie);
        const OwnedView dy = filled_view(c.shape, dtype, [] { return uniform(-1, 1); });
        const OwnedView gamma = filled_view({channels}, dtype, [] { return uniform(0.5, 2); });
        const OwnedView beta = filled_view({channels}, dtype, [] { return uniform(-1, 1); });
        OwnedView moments = make_view({samples, groups, 3}, DType::kFloat64);
        OwnedView y = make_view(c.shape, dtype, lie);
        OwnedView dx = make_view(c.shape, dtype, lie);
        OwnedView sums = make_view({samples, groups, 2}, DType::kFloat64);
        OwnedView dgamma = make_view({channels}, DType::kFloat64);
        OwnedView dbeta = make_view({channels}, DType::kFloat64);
        kernels::group_moments(x.view, c.options, moments.view);
        kernels::group_norm(x.view, moments.view, gamma.view, beta.view, c.options, y.view);
        kernels::group_norm_sums(x.view, dy.view, moments.view, gamma.view, beta.view, c.options,
                                 sums.view, dgamma.view, dbeta.view);
        kernels::group_norm_input_grad(x.view, dy.view, moments.view, gamma.view, beta.view,
                                       sums.view, c.options, dx.view);

        const auto slots = static_cast<std::size_t>(samples * groups);
        std::vector<double> count(slots), mean(slots), m2(slots), s0(slots), s1(slots);
        std::vector<double> dg(static_cast<std::size_t>(channels)), db(dg);
        const auto slot = [&](std::int64_t n, std::int64_t g) {
          return static_cast<std::size_t>(n * groups + g);
        };
        each(c, [&](std::int64_t n, std::int64_t g, const Index& i) {
          count[slot(n, g)] += 1;
          if (c.options.centred) mean[slot(n, g)] += x.at(i);
        });
        for (std::size_t s = 0; s < slots; ++s) mean[s] /= count[s];
        each(c, [&](std::int64_t n, std::int64_t g, const Index& i) {
          const double d = x.at(i) - mean[slot(n, g)];
          m2[slot(n, g)] += d * d;
        });
        const auto rstd = [&](std::size_t s) {
          return 1 / std::sqrt(m2[s] / count[s] + c.options.eps);
        };
        // Rounding may put an element on the other side of the kink of relu: such a case says
        // nothing.
        bool at_kink = false;
        each(c, [&](std::int64_t n, std::int64_t g, const Index& i) {
          const double xhat = (x.at(i) - mean[slot(n, g)]) * rstd(slot(n, g));
          at_kink |= c.options.activation == NormActivation::kRelu &&
                     std::fabs(xhat * gamma.at({i[last]}) + beta.at({i[last]})) < 1e-5;
        });
        if (at_kink) continue;
        const double tolerance = 40 * epsilon(dtype) + 1e-8;
        each(c, [&](std::int64_t n, std::int64_t g, const Index& i) {
          const std::size_t s = slot(n, g);
          const double xhat = (x.at(i) - mean[s]) * rstd(s);
          const double z = xhat * gamma.at({i[last]}) + beta.at({i[last]});
          REQUIRE(y.at(i) == Approx(act(c.options.activation, z)).margin(tolerance));
          const double gz = dy.at(i) * act_slope(c.options.activation, z);
          s0[s] += gz * gamma.at({i[last]});
          s1[s] += gz * gamma.at({i[last]}) * xhat;
          dg[static_cast<std::size_t>(i[last])] += gz * xhat;
          db[static_cast<std::size_t>(i[last])] += gz;
        });
        const double sum_tolerance = tolerance * static_cast<double>(c.shape.product());
        for (std::int64_t n = 0; n < samples; ++n) {
          for (std::int64_t g = 0; g < groups; ++g) {
            const std::size_t s = slot(n, g);
            REQUIRE(moments.at({n, g, 0}) == count[s]);
            REQUIRE(moments.at({n, g, 1}) == Approx(mean[s]).epsilon(1e-12));
            REQUIRE(moments.at({n, g, 2}) == Approx(m2[s]).epsilon(1e-11));
            if (dtype != DType::kBFloat16) {
              REQUIRE(sums.at({n, g, 0}) == Approx(s0[s]).margin(sum_tolerance));
              REQUIRE(sums.at({n, g, 1}) == Approx(s1[s]).margin(sum_tolerance));
            }
          }
        }
        for (std::int64_t j = 0; j < channels && dtype != DType::kBFloat16; ++j) {
          REQUIRE(dgamma.at({j}) == Approx(dg[static_cast<std::size_t>(j)]).margin(sum_tolerance));
          REQUIRE(dbeta.at({j}) == Approx(db[static_cast<std::size_t>(j)]).margin(sum_tolerance));
        }
        each(c, [&](std::int64_t n, std::int64_t g, const Index& i) {
          const std::size_t s = slot(n, g);
          const double xhat = (x.at(i) - mean[s]) * rstd(s);
          const double z = xhat * gamma.at({i[last]}) + beta.at({i[last]});
          const double gz = dy.at(i) * act_slope(c.options.activation, z) * gamma.at({i[last]});
          const double expected =
              rstd(s) * (gz - (c.options.centred ? s0[s] / count[s] : 0) - xhat * s1[s] / count[s]);
          if (dtype != DType::kBFloat16 || c.options.activation != NormActivation::kRelu)
            REQUIRE(dx.at(i) == Approx(expected).margin(4 * tolerance));
        });
      }
    }
  }
}

TEST_CASE("moments of parts merge to those of the whole, also far from zero") {
  // A mean of 1e4 with deviations of 1e-2 leaves nothing of E[x^2] - E[x]^2 in fp32.
  const GroupNormOptions options{.groups = 2};
  OwnedView x =
      filled_view({2, 1000, 4}, DType::kFloat32, [] { return 1e4 + uniform(-1e-2, 1e-2); });
  OwnedView whole = make_view({2, 2, 3}, DType::kFloat64);
  kernels::group_moments(x.view, options, whole.view);
  const std::int64_t cuts[] = {0, 0, 17, 17, 600, 1000};
  OwnedView parts = make_view({5, 2, 2, 3}, DType::kFloat64);
  for (int p = 0; p < 5; ++p) {
    View part = parts.view;
    part.shape.erase(0);
    part.strides.erase(0);
    part.data = parts.view.as<double>() + p * 12;
    kernels::group_moments(x.view.slice(Box({0, cuts[p], 0}, {2, cuts[p + 1], 4})), options, part);
  }
  OwnedView merged = make_view({2, 2, 3}, DType::kFloat64);
  kernels::merge_moments(parts.view, merged.view);
  for (std::int64_t n = 0; n < 2; ++n)
    for (std::int64_t g = 0; g < 2; ++g) {
      double mean = 0, m2 = 0;
      for (std::int64_t r = 0; r < 1000; ++r)
        for (std::int64_t j = 0; j < 2; ++j) mean += x.at({n, r, 2 * g + j}) / 2000;
      for (std::int64_t r = 0; r < 1000; ++r)
        for (std::int64_t j = 0; j < 2; ++j) m2 += std::pow(x.at({n, r, 2 * g + j}) - mean, 2);
      for (const OwnedView* m : {&whole, &merged}) {
        REQUIRE(m->at({n, g, 0}) == 2000);
        REQUIRE(m->at({n, g, 1}) == Approx(mean).epsilon(1e-13));
        REQUIRE(m->at({n, g, 2}) == Approx(m2).epsilon(1e-8));
      }
    }
}

TEST_CASE("any number of threads, absent parameters, empty parts, wrong groups") {
  const GroupNormOptions options{.groups = 4, .activation = NormActivation::kSilu};
  const OwnedView x = filled_view({2, 3000, 8}, DType::kFloat32, [] { return uniform(-1, 1); });
  OwnedView m1 = make_view({2, 4, 3}, DType::kFloat64), m3 = make_view({2, 4, 3}, DType::kFloat64);
  OwnedView y1 = make_view(x.view.shape, DType::kFloat32),
            y3 = make_view(x.view.shape, DType::kFloat32);
  const int threads = thread_count();
  set_thread_count(1);
  kernels::group_moments(x.view, options, m1.view);
  kernels::group_norm(x.view, m1.view, {}, {}, options, y1.view);
  set_thread_count(3);
  kernels::group_moments(x.view, options, m3.view);
  kernels::group_norm(x.view, m3.view, {}, {}, options, y3.view);
  set_thread_count(threads);
  REQUIRE(std::memcmp(m1.view.data, m3.view.data, 24 * 8) == 0);
  REQUIRE(std::memcmp(y1.view.data, y3.view.data, 48000 * 4) == 0);
  const double mean = m1.at({1, 2, 1}), var = m1.at({1, 2, 2}) / m1.at({1, 2, 0});
  const double z = (x.at({1, 77, 5}) - mean) / std::sqrt(var + 1e-5);
  REQUIRE(y1.at({1, 77, 5}) == Approx(z / (1 + std::exp(-z))).margin(1e-6));

  OwnedView empty = make_view({2, 0, 8}, DType::kFloat32);
  kernels::group_moments(empty.view, options, m1.view);
  REQUIRE(m1.at({1, 3, 0}) == 0);
  kernels::group_norm(empty.view, m1.view, {}, {}, options, empty.view);
  REQUIRE_THROWS_AS(kernels::group_moments(x.view, {.groups = 3}, m1.view), ShapeError);
}
