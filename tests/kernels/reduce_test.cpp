// ranks: 1

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/reduce.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;
using kernels::ReduceKind;

namespace {

struct Expected {
  double value;
  double terms = 0;
};

void check(ReduceKind kind, const OwnedView& x, const OwnedView& y) {
  const Shape& out = y.view.shape;
  std::map<std::int64_t, Expected> expected;
  const double inf = std::numeric_limits<double>::infinity();
  const DType t = y.view.dtype;
  const double lowest = t == DType::kInt32 ? -0x1p31 : t == DType::kInt64 ? -0x1p63 : -inf;
  const double highest = t == DType::kInt32 ? 0x1p31 - 1 : t == DType::kInt64 ? 0x1p63 : inf;
  const auto linear = [&](const Index& i) {
    std::int64_t l = 0;
    for (int d = 0; d < i.size(); ++d) l = l * out[d] + (out[d] == 1 ? 0 : i[d]);
    return l;
  };
  for_each_index(Box::whole(out), [&](const Index& i) {
    expected[linear(i)] = {kind == ReduceKind::kSum   ? 0
                           : kind == ReduceKind::kMax ? std::max(-inf, lowest)
                           : kind == ReduceKind::kMin ? std::min(inf, highest)
                           : kind == ReduceKind::kAll ? 1.0
                                                      : 0.0};
  });
  for_each_index(Box::whole(x.view.shape), [&](const Index& i) {
    Expected& e = expected[linear(i)];
    const double v = x.at(i);
    e.terms += std::fabs(v);
    switch (kind) {
      case ReduceKind::kSum:
        e.value += v;
        break;
      case ReduceKind::kMax:
      case ReduceKind::kAny:
        e.value = std::max(e.value, v);
        break;
      default:
        e.value = std::min(e.value, v);
        break;
    }
  });
  for_each_index(Box::whole(out), [&](const Index& i) {
    const Expected& e = expected[linear(i)];
    if (kind == ReduceKind::kSum) {
      const double bound = epsilon(y.view.dtype) * std::fabs(e.value) + 1e-13 * e.terms;
      if (!(std::fabs(y.at(i) - e.value) <= bound)) FAIL(y.at(i) << " instead of " << e.value);
    } else if (y.at(i) != e.value) {
      FAIL(y.at(i) << " instead of " << e.value);
    }
  });
  SUCCEED();
}

}  // namespace

TEST_CASE("reductions over any dimensions of any view") {
  const Shape shapes[] = {
      {},       {1},      {37},      {5, 40},        {40, 5},   {3, 4, 5, 6},     {2, 1, 3},
      {600, 3}, {3, 700}, {9, 0, 2}, {2, 20, 30, 4}, {70, 530}, {1, 2, 1, 40000}, {33000, 2}};
  for (const Shape& shape : shapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                              DType::kInt64, DType::kBool}) {
      for (int trial = 0; trial < 6; ++trial) {
        const auto kind = dtype == DType::kBool ? static_cast<ReduceKind>(3 + trial % 2)
                                                : static_cast<ReduceKind>(trial % 3);
        const auto value = [&] {
          return dtype == DType::kBool ? static_cast<double>(uniform_int(0, 20) > 0)
                 : is_floating(dtype)  ? uniform(-1, 1)
                                       : static_cast<double>(uniform_int(-99, 99));
        };
        Shape out = shape;
        for (int d = 0; d < out.size(); ++d)
          if (uniform_int(0, 1) == 1) out[d] = 1;
        const OwnedView x = filled_view(shape, dtype, value, kAllLies[uniform_int(0, 3)]);
        OwnedView y = make_view(out, dtype, kAllLies[uniform_int(0, 3)]);
        INFO(shape << " -> " << out << " " << name(dtype) << " " << name(kind));
        kernels::reduce(kind, x.view, y.view);
        check(kind, x, y);
      }
    }
  }
}

TEST_CASE("sums keep what fp32 would lose, for any number of threads") {
  // 3 million halves beside one 1e8: an fp32 accumulator would stop growing.
  const std::int64_t n = 300000;
  OwnedView x = filled_view({n, 3}, DType::kFloat32, [] { return 0.5; });
  x.set({0, 0}, 1e8);
  OwnedView total = make_view({1, 1}, DType::kFloat64);
  OwnedView columns = make_view({1, 3}, DType::kFloat32);
  OwnedView again = make_view({1, 3}, DType::kFloat32);
  OwnedView total_again = make_view({1, 1}, DType::kFloat64);
  const int threads = thread_count();
  set_thread_count(1);
  kernels::reduce(ReduceKind::kSum, x.view, total.view);
  kernels::reduce(ReduceKind::kSum, x.view, columns.view);
  set_thread_count(3);
  kernels::reduce(ReduceKind::kSum, x.view, total_again.view);
  kernels::reduce(ReduceKind::kSum, x.view, again.view);
  set_thread_count(threads);
  REQUIRE(total.at({0, 0}) == 1e8 + 0.5 * (3 * static_cast<double>(n) - 1));
  REQUIRE(total_again.at({0, 0}) == total.at({0, 0}));
  REQUIRE(columns.at({0, 1}) == 0.5 * static_cast<double>(n));
  REQUIRE(std::memcmp(columns.view.data, again.view.data, 12) == 0);
}

TEST_CASE("NaN wins and wrong calls throw") {
  OwnedView x = filled_view({5, 50}, DType::kFloat32, [] { return uniform(-1, 1); });
  x.set({2, 47}, std::numeric_limits<double>::quiet_NaN());
  for (const Shape& out : {Shape{5, 1}, Shape{1, 50}}) {
    OwnedView y = make_view(out, DType::kFloat32);
    for (const ReduceKind kind : {ReduceKind::kMax, ReduceKind::kMin, ReduceKind::kSum}) {
      kernels::reduce(kind, x.view, y.view);
      int nans = 0;
      for_each_index(Box::whole(out), [&](const Index& i) { nans += std::isnan(y.at(i)) ? 1 : 0; });
      REQUIRE(nans == 1);
    }
  }
  OwnedView wrong = make_view({4, 1}, DType::kFloat32);
  OwnedView integers = make_view({5, 1}, DType::kInt32);
  REQUIRE_THROWS_AS(kernels::reduce(ReduceKind::kSum, x.view, wrong.view), ShapeError);
  REQUIRE_THROWS_AS(kernels::reduce(ReduceKind::kSum, x.view, integers.view), DTypeError);
  REQUIRE_THROWS_AS(kernels::reduce(ReduceKind::kAll, x.view, wrong.view), DTypeError);
}
