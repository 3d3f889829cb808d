// ranks: 1 2 3 4

#include <cmath>
#include <tessera/autograd/ops/elementwise.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// f of two arrays stretched to a common shape.
DenseArray stretched(const DenseArray& a,
                     const DenseArray& b,
                     const std::function<double(double, double)>& f) {
  DenseArray y(broadcast_shape("reference", a.shape, b.shape));
  const auto at = [&](const DenseArray& x, const Index& i) {
    Index j;
    for (int d = 0; d < x.shape.size(); ++d)
      j.push_back(x.shape[d] == 1 ? 0 : i[d + y.shape.size() - x.shape.size()]);
    return x[j];
  };
  for_each(y.shape, [&](const Index& i) { y[i] = f(at(a, i), at(b, i)); });
  return y;
}

DenseArray each(const DenseArray& a, const std::function<double(double)>& f) {
  DenseArray y = a;
  for (double& v : y.values) v = f(v);
  return y;
}

/// Whether operands split one dimension of the result over different axes, or one axis splits
/// different dimensions of it: that may need a decision which the user has to take.
bool disagree(const std::vector<Layout>& layouts) {
  int dims = 0;
  for (const Layout& layout : layouts) dims = std::max(dims, layout.dims());
  for (const Layout& a : layouts) {
    for (const Layout& b : layouts) {
      for (int i = 0; i < a.dims(); ++i) {
        for (int j = 0; j < b.dims(); ++j) {
          const bool same_dim = dims - a.dims() + i == dims - b.dims() + j;
          const AxisMask p = a.axes_of(i), q = b.axes_of(j);
          if (p != 0 && q != 0 && (same_dim ? p != q : (p & q) != 0)) return true;
        }
      }
    }
  }
  return false;
}

/// The input without cuts as a pending sum, whose pieces add up to rounding only.
InputSpec whole(InputSpec spec) {
  spec.partial = false;
  return spec;
}

/// The input may be cut where it is not stretched.
InputSpec uncut_ones(InputSpec spec) {
  spec.cuttable = {};
  for (int d = 0; d < spec.shape.size(); ++d)
    if (spec.shape[d] != 1) spec.cuttable.push_back(d);
  return spec;
}

using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

OpCase unary_case(Unary op, double (*f)(double), InputSpec input) {
  return {.inputs = {whole(std::move(input))},
          .f = [op](const auto& x) { return std::vector{op(x[0])}; },
          .reference = [f](const auto& x) -> std::vector<DenseArray> { return {each(x[0], f)}; },
          .exact = true,
          .difference_tolerance = 2e-5,
          .bf16_tolerance = 8e-2,
          .random_cuts = 3,
          .variants = 1,
          .all_cuts = false};
}

/// Operands of equal shape, a stretched second one, and both stretched.
std::string binary_cases(Binary op,
                         double (*f)(double, double),
                         InputSpec (*make)(const Shape&),
                         std::vector<std::vector<int>> linear = {}) {
  std::string failure;
  const std::pair<Shape, Shape> shapes[] = {
      {{4, 6, 3}, {4, 6, 3}}, {{2, 5, 3}, {3}}, {{5, 1, 2}, {4, 1}}, {{3}, {2, 4, 3}}};
  const bool exact = linear.empty();
  for (const auto& [a, b] : shapes) {
    InputSpec left = uncut_ones(make(a));
    InputSpec right = uncut_ones(make(b));
    left.partial = right.partial = !exact;
    failure += check_op({.inputs = {left, right},
                         .f = [op](const auto& x) { return std::vector{op(x[0], x[1])}; },
                         .reference = [f](const auto& x) -> std::vector<DenseArray> {
                           return {stretched(x[0], x[1], f)};
                         },
                         .may_throw = disagree,
                         .linear = linear,
                         .exact = exact,
                         .difference_tolerance = 2e-5,
                         .bf16_tolerance = 8e-2,
                         .random_cuts = 8,
                         .variants = 1});
  }
  return failure;
}

InputSpec any_sign(const Shape& shape) { return uniform(shape); }
InputSpec far_from_zero(const Shape& shape) { return away_from(shape, {0.0}, 0.3); }
InputSpec positive(const Shape& shape) { return uniform(shape, 0.5, 2.0); }

}  // namespace

TEST_CASE("add, sub, mul") {
  report(binary_cases(add, [](double a, double b) { return a + b; }, any_sign, {{0, 1}}));
  report(binary_cases(sub, [](double a, double b) { return a - b; }, any_sign, {{0, 1}}));
  report(binary_cases(mul, [](double a, double b) { return a * b; }, any_sign, {{0}, {1}}));
}

TEST_CASE("div, pow, atan2") {
  report(binary_cases(
      div, [](double a, double b) { return a / b; }, far_from_zero));
  report(binary_cases(
      static_cast<Binary>(pow), [](double a, double b) { return std::pow(a, b); }, positive));
  report(binary_cases(
      atan2, [](double a, double b) { return std::atan2(a, b); }, positive));
}

OP_TEST("maximum and minimum") {
  const auto a = distinct({4, 6, 2});
  InputSpec b = distinct({6, 2});
  // Between the values of a, so that no two are equal.
  b.values = [](const Shape& shape, std::uint64_t seed) {
    DenseArray x = random_array(shape, seed, -1.0, 1.0);
    for (double& v : x.values) v = std::floor(v * 24) / 24 + 0.021;
    return x;
  };
  return {.inputs = {whole(a), whole(b)},
          .f =
              [](const auto& x) {
                return std::vector{maximum(x[0], x[1]), minimum(x[0], x[1])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {stretched(x[0], x[1], [](double p, double q) { return std::max(p, q); }),
                    stretched(x[0], x[1], [](double p, double q) { return std::min(p, q); })};
          },
          .may_throw = disagree,
          .exact = true,
          .bf16_tolerance = 0.1};
}

OP_TEST("affine and scalars") {
  return {
      .inputs = {whole(uniform({3, 5, 2}))},
      .f =
          [](const auto& x) {
            return std::vector{affine(x[0], 2.5, -1.0), x[0] * 3.0, x[0] + 0.5, -x[0], x[0] / 4.0};
          },
      .reference = [](const auto& x) -> std::vector<DenseArray> {
        return {each(x[0], [](double v) { return 2.5 * v - 1.0; }),
                each(x[0], [](double v) { return 3.0 * v; }),
                each(x[0], [](double v) { return v + 0.5; }),
                each(x[0], [](double v) { return -v; }),
                each(x[0], [](double v) { return v / 4.0; })};
      },
      .exact = true};
}

OP_TEST("a scale passes a pending sum on") {
  return {.inputs = {whole(uniform({3, 5, 2}))},
          .f = [](const auto& x) { return std::vector{x[0] * 3.0}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {each(x[0], [](double v) { return 3.0 * v; })};
          },
          .linear = {{0}}};
}

OP_TEST("nonlinear functions take a pending sum first") {
  return {.inputs = {uniform({3, 4}), uniform({4}, 0.5, 2.0)},
          .f =
              [](const auto& x) {
                return std::vector{exp(x[0]) / x[1], clamp(x[1], 0.0, 1.0)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {stretched(x[0], x[1], [](double a, double b) { return std::exp(a) / b; }),
                    each(x[1], [](double v) { return std::min(v, 1.0); })};
          },
          .may_throw = disagree,
          .second = false};
}

OP_TEST("clamp") {
  return {.inputs = {whole(away_from({4, 7}, {-0.5, 0.8}))},
          .f = [](const auto& x) { return std::vector{clamp(x[0], -0.5, 0.8)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {each(x[0], [](double v) { return std::min(std::max(v, -0.5), 0.8); })};
          },
          .exact = true};
}

OP_TEST("where") {
  return {.inputs = {uncut_ones(flags({4, 1, 3})), uniform({4, 5, 3}), uncut_ones(uniform({5, 1}))},
          .f = [](const auto& x) { return std::vector{where(x[0], x[1], x[2])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const DenseArray yes = stretched(x[0], x[1], [](double c, double a) { return c * a; });
            const DenseArray no =
                stretched(x[0], x[2], [](double c, double b) { return (1 - c) * b; });
            return {stretched(yes, no, [](double a, double b) { return a + b; })};
          },
          .may_throw = disagree,
          .linear = {{1, 2}}};
}

OP_TEST("comparisons") {
  return {.inputs = {integers({4, 6}, 0, 3), integers({6}, 0, 3)},
          .f =
              [](const auto& x) {
                return std::vector{equal(x[0], x[1]),   not_equal(x[0], x[1]),
                                   less(x[0], x[1]),    less_equal(x[0], x[1]),
                                   greater(x[0], x[1]), greater_equal(x[0], x[1])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {stretched(x[0], x[1], [](double a, double b) { return double(a == b); }),
                    stretched(x[0], x[1], [](double a, double b) { return double(a != b); }),
                    stretched(x[0], x[1], [](double a, double b) { return double(a < b); }),
                    stretched(x[0], x[1], [](double a, double b) { return double(a <= b); }),
                    stretched(x[0], x[1], [](double a, double b) { return double(a > b); }),
                    stretched(x[0], x[1], [](double a, double b) { return double(a >= b); })};
          },
          .may_throw = disagree,
          .exact = true,
          .first = false};
}

namespace {

struct Function {
  const char* name;
  Unary op;
  double (*f)(double);
  InputSpec input;
};

std::vector<Function> functions(const Shape& shape) {
  return {
      {"abs", abs, [](double x) { return std::fabs(x); }, away_from(shape, {0.0})},
      {"exp", exp, [](double x) { return std::exp(x); }, uniform(shape)},
      {"expm1", expm1, [](double x) { return std::expm1(x); }, uniform(shape)},
      {"log", log, [](double x) { return std::log(x); }, positive(shape)},
      {"log1p", log1p, [](double x) { return std::log1p(x); }, positive(shape)},
      {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, positive(shape)},
      {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, positive(shape)},
      {"square", square, [](double x) { return x * x; }, uniform(shape)},
      {"reciprocal", reciprocal, [](double x) { return 1 / x; }, positive(shape)},
      {"sin", sin, [](double x) { return std::sin(x); }, uniform(shape)},
      {"cos", cos, [](double x) { return std::cos(x); }, uniform(shape)},
      {"erf", erf, [](double x) { return std::erf(x); }, uniform(shape)},
      {"sign", sign, [](double x) { return x > 0 ? 1.0 : -1.0; }, away_from(shape, {0.0})},
      {"floor", floor, [](double x) { return std::floor(x); }, away_from(shape, {-1, 0, 1})},
      {"ceil", ceil, [](double x) { return std::ceil(x); }, away_from(shape, {-1, 0, 1})},
      {"round", round, [](double x) { return std::nearbyint(x); },
       away_from(shape, {-1.5, -.5, .5, 1.5})},
      {"relu", relu, [](double x) { return x > 0 ? x : 0.0; }, away_from(shape, {0.0})},
      {"sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, uniform(shape)},
      {"tanh", tanh, [](double x) { return std::tanh(x); }, uniform(shape)},
      {"silu", silu, [](double x) { return x / (1 + std::exp(-x)); }, uniform(shape)},
      {"softplus", softplus, [](double x) { return std::log1p(std::exp(x)); }, uniform(shape)},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); },
       [](double x) { return x > 0 ? x : 0.1 * x; }, away_from(shape, {0.0})},
      {"elu", [](const Tensor& x) { return elu(x, 0.7); },
       [](double x) { return x > 0 ? x : 0.7 * std::expm1(x); }, away_from(shape, {0.0})},
      {"gelu", [](const Tensor& x) { return gelu(x); },
       [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }, uniform(shape)},
      {"gelu", [](const Tensor& x) { return gelu(x, true); },
       [](double x) {
         return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
       },
       uniform(shape)},
      {"pow", [](const Tensor& x) { return pow(x, 2.5); },
       [](double x) { return std::pow(x, 2.5); }, positive(shape)},
  };
}

struct Operator {
  const char* name;
  Binary op;
  double (*f)(double, double);
  InputSpec (*make)(const Shape&);
};

/// Operands of one shape, and a second one that is stretched.
OpCase operator_case(const Operator& o, const Shape& a, const Shape& b) {
  return {.inputs = {uncut_ones(o.make(a)), uncut_ones(o.make(b))},
          .f = [o](const auto& x) { return std::vector{o.op(x[0], x[1])}; },
          .reference = [o](const auto& x) -> std::vector<DenseArray> {
            return {stretched(x[0], x[1], o.f)};
          },
          .may_throw = disagree};
}

}  // namespace

TEST_CASE("functions of one variable") {
  for (const Function& function : functions({3, 7})) {
    INFO(function.name);
    report(check_op(unary_case(function.op, function.f, function.input)));
  }
}

TEST_CASE("table of functions of one variable", "[table]") {
  const std::vector<Function> all = functions({});
  for (std::size_t i = 0; i < all.size(); ++i) {
    report(check_table(all[i].name, [i](std::int64_t n) {
      const Function function = functions({2, n, 3})[i];
      return unary_case(function.op, function.f, function.input);
    }));
  }
}

TEST_CASE("table of operators", "[table]") {
  const Operator all[] = {
      {"add", add, [](double a, double b) { return a + b; }, any_sign},
      {"sub", sub, [](double a, double b) { return a - b; }, any_sign},
      {"mul", mul, [](double a, double b) { return a * b; }, any_sign},
      {"div", div, [](double a, double b) { return a / b; }, far_from_zero},
      {"pow", static_cast<Binary>(pow), [](double a, double b) { return std::pow(a, b); },
       positive},
      {"atan2", atan2, [](double a, double b) { return std::atan2(a, b); }, positive},
      {"maximum", maximum, [](double a, double b) { return std::max(a, b); }, any_sign},
      {"minimum", minimum, [](double a, double b) { return std::min(a, b); }, any_sign}};
  for (const Operator& o : all) {
    report(check_table(o.name, [o](std::int64_t n) {
      OpCase c = operator_case(o, {2, n, 3}, {n, 3});
      c.terms = 1;  // what is stretched has sums of both signs for its gradient
      return c;
    }));
  }
}

TEST_CASE("table of comparisons", "[table]") {
  const Operator all[] = {
      {"equal", equal, [](double a, double b) { return double(a == b); }, any_sign},
      {"not_equal", not_equal, [](double a, double b) { return double(a != b); }, any_sign},
      {"less", less, [](double a, double b) { return double(a < b); }, any_sign},
      {"less_equal", less_equal, [](double a, double b) { return double(a <= b); }, any_sign},
      {"greater", greater, [](double a, double b) { return double(a > b); }, any_sign},
      {"greater_equal", greater_equal, [](double a, double b) { return double(a >= b); },
       any_sign}};
  for (const Operator& o : all) {
    report(check_table(o.name, [o](std::int64_t n) {
      OpCase c = operator_case(o, {2, n, 3}, {n, 3});
      c.first = false;
      return c;
    }));
  }
}

OP_TABLE("affine") {
  return {.inputs = {uniform({2, n, 3})},
          .f = [](const auto& x) { return std::vector{affine(x[0], 2.5, -1.0)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {each(x[0], [](double v) { return 2.5 * v - 1.0; })};
          }};
}
OP_TABLE("clamp") {
  return {.inputs = {away_from({2, n, 3}, {-0.5, 0.8})},
          .f = [](const auto& x) { return std::vector{clamp(x[0], -0.5, 0.8)}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {each(x[0], [](double v) { return std::min(std::max(v, -0.5), 0.8); })};
          }};
}
OP_TABLE("where") {
  return {.inputs = {flags({2, n, 3}), uniform({2, n, 3}), uniform({n, 3})},
          .f = [](const auto& x) { return std::vector{where(x[0], x[1], x[2])}; },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            const DenseArray yes = stretched(x[0], x[1], [](double c, double a) { return c * a; });
            const DenseArray no =
                stretched(x[0], x[2], [](double c, double b) { return (1 - c) * b; });
            return {stretched(yes, no, [](double a, double b) { return a + b; })};
          },
          .may_throw = disagree};
}

TEST_CASE("mixed types, shapes and limits throw on every rank") {
  const Layout layout = Layout::replicated(Mesh::world({{"a", process().count}}), {4, 3});
  const Tensor f = Tensor::zeros(layout);
  const Tensor d = Tensor::zeros(layout, DType::kFloat64);
  const Tensor i = Tensor::zeros(layout, DType::kInt32);
  const Tensor other = Tensor::zeros(Layout::replicated(layout.mesh(), {4, 2}));
  REQUIRE_THROWS_AS(f + d, DTypeError);
  REQUIRE_THROWS_AS(i / i, DTypeError);
  REQUIRE_THROWS_AS(exp(i), DTypeError);
  REQUIRE_THROWS_AS(f + other, ShapeError);
  REQUIRE_THROWS_AS(where(f, f, f), DTypeError);
  REQUIRE_THROWS_AS(clamp(f, 1.0, 0.0), UsageError);
}
