// ranks: 1

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;
using kernels::UnaryKind;

namespace {

double reference(UnaryKind kind, double a, double x) {
  const double pi = 3.14159265358979323846;
  switch (kind) {
    case UnaryKind::kNeg:
      return -x;
    case UnaryKind::kAbs:
      return std::fabs(x);
    case UnaryKind::kExp:
      return std::exp(x);
    case UnaryKind::kExpm1:
      return std::expm1(x);
    case UnaryKind::kLog:
      return std::log(x);
    case UnaryKind::kLog1p:
      return std::log1p(x);
    case UnaryKind::kSqrt:
      return std::sqrt(x);
    case UnaryKind::kRsqrt:
      return 1 / std::sqrt(x);
    case UnaryKind::kSquare:
      return x * x;
    case UnaryKind::kReciprocal:
      return 1 / x;
    case UnaryKind::kPower:
      return std::pow(x, a);
    case UnaryKind::kSin:
      return std::sin(x);
    case UnaryKind::kCos:
      return std::cos(x);
    case UnaryKind::kTanh:
      return std::tanh(x);
    case UnaryKind::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case UnaryKind::kRelu:
      return std::max(x, 0.0);
    case UnaryKind::kLeakyRelu:
      return x > 0 ? x : a * x;
    case UnaryKind::kElu:
      return x > 0 ? x : a * (std::exp(x) - 1);
    case UnaryKind::kSilu:
      return x / (1 + std::exp(-x));
    case UnaryKind::kGelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case UnaryKind::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    case UnaryKind::kSoftplus:
      return std::log(1 + std::exp(x));
    case UnaryKind::kErf:
      return std::erf(x);
    case UnaryKind::kSign:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case UnaryKind::kFloor:
      return std::floor(x);
    case UnaryKind::kCeil:
      return std::ceil(x);
    case UnaryKind::kRound:
      return std::nearbyint(x);
  }
  return 0;
}

constexpr int kKinds = static_cast<int>(UnaryKind::kRound) + 1;

bool positive_only(UnaryKind kind) {
  return kind == UnaryKind::kLog || kind == UnaryKind::kLog1p || kind == UnaryKind::kSqrt ||
         kind == UnaryKind::kRsqrt || kind == UnaryKind::kPower || kind == UnaryKind::kReciprocal;
}

double run_one(UnaryKind kind, int order, double alpha, double x) {
  double y = 0;
  kernels::unary(kind, order, alpha, View::dense(&x, DType::kFloat64, {1}),
                 View::dense(&y, DType::kFloat64, {1}));
  return y;
}

}  // namespace

TEST_CASE("unary functions agree with the mathematical library") {
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<UnaryKind>(k);
    const double low = positive_only(kind) ? 0.05 : -4.0;
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      for (const Lie lie : kAllLies) {
        const OwnedView x = filled_view(
            {3, 5, 7}, dtype, [&] { return uniform(low, 4.0); }, lie);
        OwnedView y =
            make_view({3, 5, 7}, dtype, lie == Lie::kDense ? Lie::kPermuted : Lie::kDense);
        kernels::unary(kind, 0, 1.7, x.view, y.view);
        for_each_index(Box::whole(x.view.shape), [&](const Index& i) {
          INFO(name(kind) << " " << name(dtype) << " x=" << x.at(i));
          const double expected = reference(kind, 1.7, x.at(i));
          REQUIRE(y.at(i) ==
                  Approx(expected).epsilon(20 * epsilon(dtype)).margin(5 * epsilon(dtype)));
        });
      }
    }
  }
}

TEST_CASE("each derivative is the slope of the one below") {
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<UnaryKind>(k);
    for (int order = 1; order <= kernels::kMaxUnaryOrder; ++order) {
      for (int trial = 0; trial < 40; ++trial) {
        double x = uniform(positive_only(kind) ? 0.2 : -3.0, 3.0);
        if (std::fabs(x - std::round(x)) < 0.01 ||
            std::fabs(std::fabs(x - std::floor(x)) - 0.5) < 0.01)
          continue;  // kinks and steps
        const double h = 1e-5;
        const double slope =
            (run_one(kind, order - 1, 0.7, x + h) - run_one(kind, order - 1, 0.7, x - h)) / (2 * h);
        INFO(name(kind) << " order " << order << " x=" << x);
        REQUIRE(run_one(kind, order, 0.7, x) == Approx(slope).epsilon(1e-5).margin(1e-5));
      }
    }
  }
  REQUIRE(run_one(UnaryKind::kRelu, 1, 0, 0.0) == 0.0);
  REQUIRE(run_one(UnaryKind::kAbs, 1, 0, 0.0) == 0.0);
  REQUIRE(run_one(UnaryKind::kPower, 3, 2.0, 0.0) == 0.0);
}

TEST_CASE("a fused gradient is the product") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const OwnedView x = filled_view({2, 45}, dtype, [] { return uniform(-3, 3); });
    const OwnedView g = filled_view(
        {2, 45}, dtype, [] { return uniform(-3, 3); }, Lie::kPadded);
    OwnedView f = make_view({2, 45}, DType::kFloat64);
    OwnedView y = make_view({2, 45}, dtype);
    OwnedView wide = make_view({2, 45}, DType::kFloat64);
    kernels::copy(x.view, wide.view);
    kernels::unary(UnaryKind::kSilu, 2, 0, wide.view, f.view);
    kernels::mul_unary(UnaryKind::kSilu, 2, 0, g.view, x.view, y.view);
    for_each_index(Box::whole(x.view.shape), [&](const Index& i) {
      REQUIRE(y.at(i) ==
              Approx(g.at(i) * f.at(i)).epsilon(20 * epsilon(dtype)).margin(20 * epsilon(dtype)));
    });
  }
}

TEST_CASE("NaN, infinity and overflow keep their meaning") {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const UnaryKind kind :
       {UnaryKind::kExp, UnaryKind::kTanh, UnaryKind::kRelu, UnaryKind::kSigmoid,
        UnaryKind::kSoftplus, UnaryKind::kSqrt, UnaryKind::kErf, UnaryKind::kFloor,
        UnaryKind::kSign, UnaryKind::kLog}) {
    INFO(name(kind));
    REQUIRE(std::isnan(run_one(kind, 0, 1, nan)));
  }
  REQUIRE(run_one(UnaryKind::kExp, 0, 0, inf) == inf);
  REQUIRE(run_one(UnaryKind::kExp, 0, 0, -inf) == 0.0);
  REQUIRE(run_one(UnaryKind::kExp, 0, 0, 1000.0) == inf);
  REQUIRE(run_one(UnaryKind::kTanh, 0, 0, inf) == 1.0);
  REQUIRE(run_one(UnaryKind::kSigmoid, 0, 0, -1e4) == 0.0);
  REQUIRE(run_one(UnaryKind::kSoftplus, 0, 0, 1e4) == 1e4);
  REQUIRE(std::isnan(run_one(UnaryKind::kLog, 0, 0, -1.0)));
  REQUIRE(run_one(UnaryKind::kLog, 0, 0, 0.0) == -inf);
  REQUIRE(std::isnan(run_one(UnaryKind::kSqrt, 0, 0, -1.0)));
}

TEST_CASE("the bits of an element depend on its inputs alone") {
  // One value at every position, alignment and row length must give one result; also among threads.
  for (int k = 0; k < kKinds; ++k) {
    const auto kind = static_cast<UnaryKind>(k);
    for (int order = 0; order <= 3; ++order) {
      const float value = static_cast<float>(uniform(0.1, 3.0));
      std::vector<float> x(700, value);
      std::vector<float> y(700);
      float expected = 0;
      kernels::unary(kind, order, 0.3, View::dense(x.data(), DType::kFloat32, {1}),
                     View::dense(&expected, DType::kFloat32, {1}));
      for (int offset = 0; offset < 5; ++offset) {
        for (const std::int64_t n : {1, 15, 16, 17, 63, 64, 65, 511, 513, 600}) {
          std::fill(y.begin(), y.end(), -7.f);
          kernels::unary(kind, order, 0.3, View::dense(x.data() + offset, DType::kFloat32, {n}),
                         View::dense(y.data() + offset + 1, DType::kFloat32, {n}));
          for (std::int64_t i = 0; i < n; ++i) {
            const float got = y[static_cast<std::size_t>(offset + 1 + i)];
            REQUIRE(std::memcmp(&got, &expected, sizeof got) == 0);
          }
          REQUIRE(y[static_cast<std::size_t>(offset + 1 + n)] == -7.f);
          REQUIRE(y[static_cast<std::size_t>(offset)] == -7.f);
        }
      }
    }
  }
  const OwnedView x = filled_view({70001}, DType::kFloat32, [] { return uniform(-3, 3); });
  OwnedView one = make_view({70001}, DType::kFloat32);
  OwnedView many = make_view({70001}, DType::kFloat32);
  const int before = thread_count();
  set_thread_count(1);
  kernels::unary(UnaryKind::kGelu, 1, 0, x.view, one.view);
  set_thread_count(3);
  kernels::unary(UnaryKind::kGelu, 1, 0, x.view, many.view);
  set_thread_count(before);
  REQUIRE(std::memcmp(one.view.data, many.view.data, 70001 * sizeof(float)) == 0);
}

TEST_CASE("binary functions, broadcasts and every lie of memory") {
  using kernels::BinaryKind;
  const auto reference2 = [](BinaryKind kind, double a, double b) {
    switch (kind) {
      case BinaryKind::kAdd:
        return a + b;
      case BinaryKind::kSub:
        return a - b;
      case BinaryKind::kMul:
        return a * b;
      case BinaryKind::kDiv:
        return a / b;
      case BinaryKind::kPow:
        return std::pow(a, b);
      case BinaryKind::kMaximum:
        return std::max(a, b);
      case BinaryKind::kMinimum:
        return std::min(a, b);
      default:
        return std::atan2(a, b);
    }
  };
  const Shape shapes[] = {{}, {1}, {0}, {4, 0, 3}, {5, 3}, {2, 3, 100}, {3, 1, 70, 2}, {7, 66}};
  for (const Shape& shape : shapes) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32, DType::kInt64}) {
      for (int k = 0; k <= static_cast<int>(BinaryKind::kAtan2); ++k) {
        const auto kind = static_cast<BinaryKind>(k);
        const bool floating_only =
            kind == BinaryKind::kDiv || kind == BinaryKind::kPow || kind == BinaryKind::kAtan2;
        if (floating_only && !is_floating(dtype)) continue;
        const auto value = [&] {
          return is_floating(dtype) ? uniform(0.5, 2.0) : static_cast<double>(uniform_int(-9, 9));
        };
        const OwnedView a = filled_view(shape, dtype, value, kAllLies[k % 4]);
        Shape narrow = shape;
        for (int d = 0; d < narrow.size(); ++d)
          if ((d + k) % 2 == 0 && narrow[d] > 0) narrow[d] = 1;
        const OwnedView b = filled_view(narrow, dtype, value, kAllLies[(k + 1) % 4]);
        OwnedView y = make_view(shape, dtype, kAllLies[(k / 2) % 4]);
        kernels::binary(kind, a.view, kernels::broadcast_to(b.view, shape), y.view);
        for_each_index(Box::whole(shape), [&](const Index& i) {
          Index j = i;
          for (int d = 0; d < j.size(); ++d)
            if (narrow[d] == 1) j[d] = 0;
          INFO(name(kind) << " " << name(dtype));
          REQUIRE(
              y.at(i) ==
              Approx(reference2(kind, a.at(i), b.at(j))).epsilon(4 * epsilon(dtype)).margin(1e-12));
        });
      }
    }
  }
  OwnedView i = make_view({3}, DType::kInt32);
  OwnedView f = make_view({3}, DType::kFloat32);
  OwnedView wrong = make_view({4}, DType::kFloat32);
  REQUIRE_THROWS_AS(kernels::binary(BinaryKind::kDiv, i.view, i.view, i.view), DTypeError);
  REQUIRE_THROWS_AS(kernels::binary(BinaryKind::kAdd, i.view, f.view, f.view), DTypeError);
  REQUIRE_THROWS_AS(kernels::binary(BinaryKind::kAdd, wrong.view, f.view, f.view), ShapeError);
  REQUIRE_THROWS_AS(kernels::unary(UnaryKind::kExp, 4, 0, f.view, f.view), UsageError);
  REQUIRE_THROWS_AS(kernels::broadcast_to(wrong.view, Shape{3}), ShapeError);
}

TEST_CASE("comparisons, logic, where, clamp and the linear ones") {
  using kernels::CompareKind;
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kInt64, DType::kUInt8}) {
    const Shape shape{4, 37};
    const auto value = [] { return static_cast<double>(uniform_int(0, 4)); };
    const OwnedView a = filled_view(shape, dtype, value);
    const OwnedView b = filled_view(shape, dtype, value, Lie::kPermuted);
    OwnedView y = make_view(shape, DType::kBool);
    const std::function<bool(double, double)> tests[] = {std::equal_to<>(), std::not_equal_to<>(),
                                                         std::less<>(),     std::less_equal<>(),
                                                         std::greater<>(),  std::greater_equal<>()};
    for (int k = 0; k < 6; ++k) {
      kernels::compare(static_cast<CompareKind>(k), a.view, b.view, y.view);
      for_each_index(Box::whole(shape), [&](const Index& i) {
        REQUIRE(y.at(i) == (tests[k](a.at(i), b.at(i)) ? 1.0 : 0.0));
      });
    }
    OwnedView n = make_view(shape, DType::kBool);
    OwnedView both = make_view(shape, DType::kBool);
    kernels::logical_not(y.view, n.view);
    kernels::logical(kernels::LogicalKind::kXor, y.view, n.view, both.view);
    for_each_index(Box::whole(shape), [&](const Index& i) { REQUIRE(both.at(i) == 1.0); });
    OwnedView w = make_view(shape, dtype, Lie::kPadded);
    kernels::where(y.view, a.view, b.view, w.view);
    for_each_index(Box::whole(shape),
                   [&](const Index& i) { REQUIRE(w.at(i) == (y.at(i) != 0 ? a.at(i) : b.at(i))); });
    kernels::axpby(2, a.view, -3, b.view, w.view);
    if (dtype != DType::kUInt8) {
      for_each_index(Box::whole(shape),
                     [&](const Index& i) { REQUIRE(w.at(i) == 2 * a.at(i) - 3 * b.at(i)); });
    }
    kernels::affine(3, a.view, 1, w.view);
    for_each_index(Box::whole(shape), [&](const Index& i) { REQUIRE(w.at(i) == 3 * a.at(i) + 1); });
    kernels::mul_add(a.view, b.view, a.view, w.view);
    for_each_index(Box::whole(shape),
                   [&](const Index& i) { REQUIRE(w.at(i) == a.at(i) * b.at(i) + a.at(i)); });
    kernels::fill(w.view, 5);
    for_each_index(Box::whole(shape), [&](const Index& i) { REQUIRE(w.at(i) == 5); });
  }
  const OwnedView x = filled_view({3, 50}, DType::kFloat32, [] { return uniform(-2, 2); });
  const OwnedView g = filled_view({3, 50}, DType::kFloat32, [] { return uniform(-2, 2); });
  OwnedView y = make_view({3, 50}, DType::kFloat32);
  OwnedView dx = make_view({3, 50}, DType::kFloat32);
  kernels::clamp(x.view, -1, 0.5, y.view);
  kernels::clamp_grad(g.view, x.view, -1, 0.5, dx.view);
  for_each_index(Box::whole(x.view.shape), [&](const Index& i) {
    REQUIRE(y.at(i) == std::min(std::max(x.at(i), -1.0), 0.5));
    REQUIRE(dx.at(i) == (x.at(i) >= -1 && x.at(i) <= 0.5 ? g.at(i) : 0.0));
  });
}

TEST_CASE("copy between all element types and lies") {
  const DType types[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                         DType::kInt64,   DType::kUInt8,   DType::kBool};
  const Shape shapes[] = {{}, {3, 0}, {17}, {5, 70}, {2, 33, 65}, {1, 4, 3, 40, 2}};
  for (const DType from : types) {
    for (const DType to : types) {
      for (const Shape& shape : shapes) {
        for (const Lie lie : kAllLies) {
          const OwnedView x = filled_view(
              shape, from,
              [&] { return static_cast<double>(uniform_int(0, from == DType::kBool ? 1 : 200)); },
              lie);
          OwnedView y = make_view(shape, to, lie == Lie::kDense ? Lie::kPermuted : Lie::kDense);
          kernels::copy(x.view, y.view);
          bool same = true;
          for_each_index(Box::whole(shape), [&](const Index& i) {
            const double expected = to == DType::kBool ? (x.at(i) != 0 ? 1.0 : 0.0) : x.at(i);
            same = same && y.at(i) == expected;
          });
          REQUIRE(same);
        }
      }
    }
  }
  // Large enough for threads and tiles.
  const OwnedView x = filled_view(
      {300, 210}, DType::kFloat32, [] { return uniform(-1, 1); }, Lie::kPermuted);
  OwnedView y = make_view({300, 210}, DType::kFloat32);
  const int before = thread_count();
  set_thread_count(2);
  kernels::copy(x.view, y.view);
  set_thread_count(before);
  bool same = true;
  for_each_index(Box::whole(x.view.shape),
                 [&](const Index& i) { same = same && x.at(i) == y.at(i); });
  REQUIRE(same);
}
