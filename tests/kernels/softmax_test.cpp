// ranks: 1

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <tessera/kernels/softmax.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("softmax of rows of any view against plain sums") {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    for (const Shape& shape :
         {Shape{1}, Shape{5, 7}, Shape{2, 3, 33}, Shape{70, 16}, Shape{0, 4}, Shape{3, 0}}) {
      for (const Lie lie : kAllLies) {
        const int last = shape.size() - 1;
        const std::int64_t c = shape[last];
        const OwnedView x = filled_view(
            shape, dtype, [] { return uniform(-4, 4); }, lie);
        const OwnedView dy = filled_view(shape, dtype, [] { return uniform(-1, 1); });
        OwnedView y = make_view(shape, dtype, lie), dx = make_view(shape, dtype, lie);
        kernels::softmax(x.view, y.view);
        kernels::softmax_grad(y.view, dy.view, dx.view);

        Shape lead = shape;
        lead.resize(last);
        const double tolerance = 20 * epsilon(dtype);
        for_each_index(Box::whole(lead), [&](const Index& row) {
          Index i = row;
          i.push_back(0);
          double total = 0.0, slope = 0.0;
          for (i[last] = 0; i[last] < c; ++i[last]) {
            total += std::exp(x.at(i));
            slope += y.at(i) * dy.at(i);
          }
          for (i[last] = 0; i[last] < c; ++i[last]) {
            REQUIRE(std::abs(y.at(i) - std::exp(x.at(i)) / total) <= tolerance);
            REQUIRE(std::abs(dx.at(i) - y.at(i) * (dy.at(i) - slope)) <= tolerance);
          }
        });
      }
    }
  }
}

TEST_CASE("softmax of large, infinite and missing numbers") {
  const double inf = std::numeric_limits<double>::infinity();
  double x[] = {1e4, -inf, 1e4, -1e4, 1.0, inf, 2.0, std::nan(""), 3.0};
  double y[9];
  kernels::softmax(View::dense(x, DType::kFloat64, {1, 4}),
                   View::dense(y, DType::kFloat64, {1, 4}));
  CHECK(y[0] == 0.5);
  CHECK(y[1] == 0.0);
  CHECK(y[3] == 0.0);
  kernels::softmax(View::dense(x + 4, DType::kFloat64, {1, 3}),
                   View::dense(y, DType::kFloat64, {1, 3}));
  CHECK(std::isnan(y[1]));
  kernels::softmax(View::dense(x + 6, DType::kFloat64, {1, 3}),
                   View::dense(y, DType::kFloat64, {1, 3}));
  CHECK(std::isnan(y[0]));
  CHECK(std::isnan(y[2]));
}
