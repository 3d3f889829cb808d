// ranks: 1

#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/index.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("rows by index, absent ones zero") {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt64, DType::kUInt8}) {
    for (const Shape& tail : {Shape{}, Shape{5}, Shape{2, 3}, Shape{600}, Shape{3, 0}}) {
      for (const Lie lie : kAllLies) {
        const std::int64_t n = 7, m = 20, first = 3;
        Shape xs = tail, ys = tail;
        xs.insert(0, n);
        ys.insert(0, m);
        const auto value = [] { return static_cast<double>(uniform_int(0, 100)); };
        const OwnedView x = filled_view(xs, dtype, value, lie);
        const OwnedView index = filled_view(
            {m}, m % 2 ? DType::kInt32 : DType::kInt64,
            [] { return static_cast<double>(uniform_int(0, 12)); }, lie);
        OwnedView y = make_view(ys, dtype, lie == Lie::kDense ? Lie::kPermuted : Lie::kDense);
        kernels::take_rows(x.view, index.view, first, y.view);
        for_each_index(Box::whole(ys), [&](const Index& i) {
          Index j = i;
          j[0] = static_cast<std::int64_t>(index.at({i[0]})) - first;
          REQUIRE(y.at(i) == (j[0] >= 0 && j[0] < n ? x.at(j) : 0.0));
        });

        for (const bool accumulate : {false, true}) {
          if (dtype == DType::kUInt8) continue;
          const OwnedView source = filled_view(ys, dtype, value, lie);
          OwnedView sum = filled_view(
              xs, dtype, [] { return 1.0; }, lie);
          kernels::scatter_add_rows(source.view, index.view, first, accumulate, sum.view);
          for_each_index(Box::whole(xs), [&](const Index& i) {
            double expected = accumulate ? 1.0 : 0.0;
            for (std::int64_t k = 0; k < m; ++k) {
              if (static_cast<std::int64_t>(index.at({k})) - first != i[0]) continue;
              Index j = i;
              j[0] = k;
              expected += source.at(j);
            }
            REQUIRE(sum.at(i) == Approx(expected).epsilon(epsilon(dtype)));
          });
        }
      }
    }
  }
}

TEST_CASE("sums of rows do not depend on the number of threads") {
  const OwnedView x = filled_view({3000, 33}, DType::kFloat32, [] { return uniform(-1, 1); });
  const OwnedView index =
      filled_view({3000}, DType::kInt32, [] { return static_cast<double>(uniform_int(0, 99)); });
  OwnedView one = make_view({100, 33}, DType::kFloat32),
            many = make_view({100, 33}, DType::kFloat32);
  const int threads = thread_count();
  set_thread_count(1);
  kernels::scatter_add_rows(x.view, index.view, 0, false, one.view);
  set_thread_count(3);
  kernels::scatter_add_rows(x.view, index.view, 0, false, many.view);
  set_thread_count(threads);
  REQUIRE(std::memcmp(one.view.data, many.view.data, 3300 * 4) == 0);
  OwnedView wrong = make_view({3000}, DType::kFloat32);
  REQUIRE_THROWS_AS(kernels::take_rows(x.view, wrong.view, 0, x.view), DTypeError);
  REQUIRE_THROWS_AS(kernels::take_rows(x.view, index.view, 0, one.view), ShapeError);
}
