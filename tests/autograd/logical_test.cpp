// ranks: 1 2 3 4

#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/cuts.hpp"
#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

DenseArray each(const DenseArray& a, const std::function<bool(double)>& f) {
  DenseArray y = a;
  for (double& v : y.values) v = f(v) ? 1.0 : 0.0;
  return y;
}

/// b stretched along the first dimension of a.
DenseArray both(const DenseArray& a,
                const DenseArray& b,
                const std::function<bool(bool, bool)>& f) {
  DenseArray y(a.shape);
  for (std::size_t i = 0; i < a.values.size(); ++i)
    y.values[i] = f(a.values[i] != 0, b.values[i % b.values.size()] != 0) ? 1.0 : 0.0;
  return y;
}

/// Some numbers, NaN and infinities.
InputSpec odd_values(const Shape& shape) {
  InputSpec spec = constant(uniform(shape));
  spec.partial = false;
  spec.values = [](const Shape& s, std::uint64_t seed) {
    DenseArray a = random_array(s, seed);
    Rng rng(seed);
    for (double& v : a.values) {
      const std::int64_t kind = rng.integer(0, 5);
      if (kind == 0) v = std::nan("");
      if (kind == 1) v = kInf;
      if (kind == 2) v = -kInf;
    }
    return a;
  };
  return spec;
}

}  // namespace

OP_TEST("and, or, xor, not; one operand stretched") {
  return {
      .inputs = {flags({4, 5, 3}), flags({5, 3})},
      .f =
          [](const auto& x) {
            return std::vector{logical_and(x[0], x[1]), logical_or(x[0], x[1]),
                               logical_xor(x[0], x[1]), logical_not(x[0])};
          },
      .reference = [](const auto& x) -> std::vector<DenseArray> {
        return {both(x[0], x[1], [](bool a, bool b) { return a && b; }),
                both(x[0], x[1], [](bool a, bool b) { return a || b; }),
                both(x[0], x[1], [](bool a, bool b) { return a != b; }),
                each(x[0], [](double a) { return a == 0; })};
      },
      .may_throw =
          [](const auto& l) {
            return (l[0].axes_of(0) & l[1].split_axes()) != 0 ||
                   (l[0].axes_of(1) & l[1].axes_of(1)) != 0 ||
                   (l[0].axes_of(2) & l[1].axes_of(0)) != 0 ||
                   (l[0].is_split(1) && l[1].is_split(0) && l[0].axes_of(1) != l[1].axes_of(0)) ||
                   (l[0].is_split(2) && l[1].is_split(1) && l[0].axes_of(2) != l[1].axes_of(1));
          },
      .exact = true};
}

OP_TEST("comparisons with a number") {
  return {.inputs = {constant(uniform({5, 7})), integers({6, 3}, -2, 2)},
          .f =
              [](const auto& x) {
                return std::vector{less(x[0], 0.25),       greater_equal(x[0], 0.25),
                                   equal(x[1], 1.0),       not_equal(x[1], 1.0),
                                   less_equal(x[1], -1.0), greater(x[1], 0.0)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {each(x[0], [](double v) { return v < 0.25; }),
                    each(x[0], [](double v) { return v >= 0.25; }),
                    each(x[1], [](double v) { return v == 1; }),
                    each(x[1], [](double v) { return v != 1; }),
                    each(x[1], [](double v) { return v <= -1; }),
                    each(x[1], [](double v) { return v > 0; })};
          },
          .first = false};
}

OP_TEST("isnan, isinf, isfinite") {
  return {.inputs = {odd_values({6, 5})},
          .f =
              [](const auto& x) {
                return std::vector{isnan(x[0]), isinf(x[0]), isfinite(x[0])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {each(x[0], [](double v) { return std::isnan(v); }),
                    each(x[0], [](double v) { return std::isinf(v); }),
                    each(x[0], [](double v) { return std::isfinite(v); })};
          },
          .exact = true};
}

OP_TEST("all and any") {
  return {.inputs = {flags({4, 5, 3}, 0.8), flags({4, 5, 3}, 0.2)},
          .f =
              [](const auto& x) {
                return std::vector{all(x[0], {1}), any(x[1], {0, -1}, true), all(x[0]), any(x[1])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray rows({4, 3}, 1.0), columns({1, 5, 1}), every({}, 1.0), some({}, 0.0);
            for_each(x[0].shape, [&](const Index& i) {
              if (x[0][i] == 0) rows(i[0], i[2]) = every.values[0] = 0.0;
              if (x[1][i] != 0) columns(0, i[1], 0) = some.values[0] = 1.0;
            });
            return {rows, columns, every, some};
          }};
}

TEST_CASE("nothing is all and not any; other types throw") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Layout split = Placement(mesh).shard(0, {"a"}).resolve({6, 0});
  const Tensor nothing = Tensor::zeros(split, DType::kBool);
  report(compare("all", all(nothing, {1}), DenseArray({6}, 1.0), 0.0));
  report(compare("any", any(nothing, {1}), DenseArray({6}, 0.0), 0.0));
  const Tensor numbers = Tensor::zeros(Layout::replicated(mesh, {3}), DType::kInt32);
  REQUIRE_THROWS_AS(all(numbers), DTypeError);
  REQUIRE_THROWS_AS(logical_not(numbers), DTypeError);
  REQUIRE_THROWS_AS(logical_and(numbers, numbers), DTypeError);
  REQUIRE_THROWS_AS(less(numbers, 0.5), DTypeError);
  report(compare("finite", isfinite(numbers), DenseArray({3}, 1.0), 0.0));
  report(compare("nan", isnan(numbers), DenseArray({3}, 0.0), 0.0));
  report(compare("inf", isinf(numbers), DenseArray({3}, 0.0), 0.0));
}

TEST_CASE("table of logical operators", "[table]") {
  struct Row {
    const char* name;
    Tensor (*op)(const Tensor&, const Tensor&);
    bool (*f)(bool, bool);
  };
  const Row rows[] = {{"logical_and", logical_and, [](bool a, bool b) { return a && b; }},
                      {"logical_or", logical_or, [](bool a, bool b) { return a || b; }},
                      {"logical_xor", logical_xor, [](bool a, bool b) { return a != b; }}};
  for (const Row& row : rows) {
    report(check_table(row.name, [row](std::int64_t n) -> OpCase {
      return {.inputs = {flags({2, n, 3}), flags({2, n, 3})},
              .f = [row](const auto& x) { return std::vector{row.op(x[0], x[1])}; },
              .reference = [row](const auto& x) -> std::vector<DenseArray> {
                return {both(x[0], x[1], row.f)};
              },
              .may_throw = several_split};
    }));
  }
}

TEST_CASE("table of tests of elements", "[table]") {
  struct Row {
    const char* name;
    Tensor (*op)(const Tensor&);
    bool (*f)(double);
    InputSpec input;
  };
  for (int i = 0; i < 4; ++i) {
    const auto row = [i](const Shape& shape) {
      const Row rows[] = {
          {"logical_not", logical_not, [](double a) { return a == 0; }, flags(shape)},
          {"isnan", isnan, [](double a) { return std::isnan(a); }, odd_values(shape)},
          {"isinf", isinf, [](double a) { return std::isinf(a); }, odd_values(shape)},
          {"isfinite", isfinite, [](double a) { return std::isfinite(a); }, odd_values(shape)}};
      return rows[i];
    };
    report(check_table(row({1}).name, [row](std::int64_t n) -> OpCase {
      return {.inputs = {row({2, n, 3}).input},
              .f = [row](const auto& x) { return std::vector{row({1}).op(x[0])}; },
              .reference = [row](const auto& x) -> std::vector<DenseArray> {
                return {each(x[0], row({1}).f)};
              }};
    }));
  }
}

TEST_CASE("table of reductions of truth values", "[table]") {
  for (const bool every : {true, false}) {
    report(check_table(every ? "all" : "any", [every](std::int64_t n) -> OpCase {
      return {
          .inputs = {flags({2, n, 3}, every ? 0.8 : 0.2)},
          .f = [every](
                   const auto& x) { return std::vector{every ? all(x[0], {1}) : any(x[0], {1})}; },
          .reference = [every](const auto& x) -> std::vector<DenseArray> {
            DenseArray y({2, 3}, every ? 1.0 : 0.0);
            for_each(x[0].shape, [&](const Index& i) {
              if ((x[0][i] != 0) != every) y(i[0], i[2]) = every ? 0.0 : 1.0;
            });
            return {y};
          }};
    }));
  }
}
