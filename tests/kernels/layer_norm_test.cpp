// ranks: 1

#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/layer_norm.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("rows of any view against plain sums") {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    for (const Shape& shape :
         {Shape{1}, Shape{5, 7}, Shape{2, 3, 33}, Shape{70, 16}, Shape{0, 4}}) {
      for (const Lie lie : kAllLies) {
        for (const bool centred : {true, false}) {
          const int last = shape.size() - 1;
          const std::int64_t c = shape[last];
          const OwnedView x = filled_view(
              shape, dtype, [] { return uniform(1, 4); }, lie);
          const OwnedView dy = filled_view(shape, dtype, [] { return uniform(-1, 1); });
          const OwnedView gamma = filled_view({c}, dtype, [] { return uniform(0.5, 2); });
          const OwnedView beta = filled_view({c}, dtype, [] { return uniform(-1, 1); });
          OwnedView y = make_view(shape, dtype, lie), dx = make_view(shape, dtype, lie);
          OwnedView dgamma = make_view({c}, DType::kFloat64),
                    dbeta = make_view({c}, DType::kFloat64);
          const kernels::LayerNormOptions options{1e-2, centred};
          kernels::layer_norm(x.view, gamma.view, beta.view, options, y.view);
          kernels::layer_norm_grad(x.view, dy.view, gamma.view, options, dx.view, dgamma.view,
                                   dbeta.view);

          Shape lead = shape;
          lead.resize(last);
          std::vector<double> dg(static_cast<std::size_t>(c)), db(dg);
          const double n = static_cast<double>(c);
          const double tolerance = 60 * epsilon(dtype);
          for_each_index(Box::whole(lead), [&](const Index& row) {
            Index i = row;
            i.push_back(0);
            const auto sum = [&](auto&& f) {
              double total = 0;
              for (i[last] = 0; i[last] < c; ++i[last]) total += f();
              return total;
            };
            const double mean = centred ? sum([&] { return x.at(i); }) / n : 0;
            const double rstd =
                1 / std::sqrt(sum([&] { return std::pow(x.at(i) - mean, 2); }) / n + 1e-2);
            const auto xhat = [&] { return (x.at(i) - mean) * rstd; };
            const auto g = [&] { return dy.at(i) * gamma.at({i[last]}); };
            const double g0 = centred ? sum(g) / n : 0;
            const double g1 = sum([&] { return g() * xhat(); }) / n;
            for (i[last] = 0; i[last] < c; ++i[last]) {
              const auto j = static_cast<std::size_t>(i[last]);
              dg[j] += dy.at(i) * xhat();
              db[j] += dy.at(i);
              REQUIRE(y.at(i) ==
                      Approx(xhat() * gamma.at({i[last]}) + beta.at({i[last]})).margin(tolerance));
              REQUIRE(dx.at(i) == Approx(rstd * (g() - g0 - xhat() * g1)).margin(10 * tolerance));
            }
          });
          for (std::int64_t j = 0; j < c; ++j) {
            const double bound = static_cast<double>(lead.product()) * (tolerance + 1e-9);
            REQUIRE(dgamma.at({j}) == Approx(dg[static_cast<std::size_t>(j)]).margin(bound));
            REQUIRE(dbeta.at({j}) == Approx(db[static_cast<std::size_t>(j)]).margin(bound));
          }
        }
      }
    }
  }
}

TEST_CASE("any number of threads, absent parameters and outputs") {
  const OwnedView x = filled_view({2000, 24}, DType::kFloat32, [] { return uniform(-1, 1); });
  OwnedView one = make_view({24}, DType::kFloat64), many = make_view({24}, DType::kFloat64);
  const int threads = thread_count();
  set_thread_count(1);
  kernels::layer_norm_grad(x.view, x.view, {}, {}, {}, one.view, {});
  set_thread_count(3);
  kernels::layer_norm_grad(x.view, x.view, {}, {}, {}, many.view, {});
  set_thread_count(threads);
  REQUIRE(std::memcmp(one.view.data, many.view.data, 24 * 8) == 0);
  OwnedView wrong = make_view({2000, 23}, DType::kFloat32);
  REQUIRE_THROWS_AS(kernels::layer_norm(x.view, {}, {}, {}, wrong.view), ShapeError);
}
