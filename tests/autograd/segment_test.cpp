// ranks: 1 2 3

#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/segment.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Five segments of 3, 0, 4, 1 and 0 rows.
const std::vector<std::int64_t> kBegin = {0, 3, 3, 7, 8};
constexpr std::int64_t kRows = 8;

std::int64_t end_of(std::size_t s) { return s + 1 < kBegin.size() ? kBegin[s + 1] : kRows; }

InputSpec whole(InputSpec spec) {
  spec.cuttable = Dims{};
  return spec;
}

InputSpec columns_only(InputSpec spec) {
  spec.cuttable = Dims{1};
  return spec;
}

std::vector<InputSpec> indices() {
  DenseArray begin(Shape{static_cast<std::int64_t>(kBegin.size())});
  DenseArray of(Shape{kRows});
  for (std::size_t s = 0; s < kBegin.size(); ++s) {
    begin.values[s] = static_cast<double>(kBegin[s]);
    for (std::int64_t i = kBegin[s]; i < end_of(s); ++i)
      of.values[static_cast<std::size_t>(i)] = static_cast<double>(s);
  }
  return {whole(given(of, DType::kInt64)), whole(given(begin, DType::kInt64))};
}

using Op = Tensor (*)(const Tensor&, const Segments&);

/// `reference(values of one column of a segment)` for each segment.
OpCase reduction(Op op,
                 double (*reference)(const std::vector<double>&),
                 bool linear,
                 std::int64_t width = 3) {
  std::vector<InputSpec> inputs = {columns_only(distinct({kRows, width}))};
  for (const InputSpec& i : indices()) inputs.push_back(i);
  OpCase c{.inputs = inputs,
           .f =
               [op](const auto& x) {
                 return std::vector{op(x[0], {x[1], x[2]})};
               },
           .reference = [reference, width](const auto& x) -> std::vector<DenseArray> {
             DenseArray y(Shape{static_cast<std::int64_t>(kBegin.size()), width});
             for (std::size_t s = 0; s < kBegin.size(); ++s) {
               for (std::int64_t k = 0; k < width; ++k) {
                 std::vector<double> column;
                 for (std::int64_t i = kBegin[s]; i < end_of(s); ++i) column.push_back(x[0](i, k));
                 y(static_cast<std::int64_t>(s), k) = column.empty() ? 0.0 : reference(column);
               }
             }
             return {y};
           }};
  if (linear) c.linear = {{0}};
  return c;
}

double total(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double v : x) sum += v;
  return sum;
}

}  // namespace

OP_TEST("sums over segments") { return reduction(segment_sum, total, true); }

OP_TEST("means over segments") {
  return reduction(
      segment_mean,
      [](const std::vector<double>& x) { return total(x) / static_cast<double>(x.size()); }, true);
}

OP_TEST("maxima over segments") {
  return reduction(
      segment_max,
      [](const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }, false);
}

namespace {

OpCase softmax_case(std::int64_t width) {
  std::vector<InputSpec> inputs = {columns_only(uniform({kRows, width}))};
  for (const InputSpec& i : indices()) inputs.push_back(i);
  return {.inputs = inputs,
          .f =
              [](const auto& x) {
                return std::vector{segment_softmax(x[0], {x[1], x[2]})};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray y(x[0].shape);
            for (std::size_t s = 0; s < kBegin.size(); ++s) {
              for (std::int64_t c = 0; c < x[0].shape[1]; ++c) {
                double sum = 0.0;
                for (std::int64_t i = kBegin[s]; i < end_of(s); ++i) sum += std::exp(x[0](i, c));
                for (std::int64_t i = kBegin[s]; i < end_of(s); ++i)
                  y(i, c) = std::exp(x[0](i, c)) / sum;
              }
            }
            return {y};
          }};
}

DenseArray rows_of(const DenseArray& x, const DenseArray& index) {
  DenseArray y(Shape{index.shape[0], x.shape[1]});
  for_each(y.shape, [&](const Index& i) { y[i] = x(index(i[0]), i[1]); });
  return y;
}

/// f of a value per segment [segments, width], the segments, and an index of six of them.
OpCase rows_case(std::int64_t width,
                 const TensorFunction& f,
                 DenseArray (*reference)(const DenseArray& x,
                                         const DenseArray& of,
                                         const DenseArray& index)) {
  const auto segments = static_cast<std::int64_t>(kBegin.size());
  std::vector<InputSpec> inputs = {columns_only(uniform({segments, width}))};
  for (const InputSpec& i : indices()) inputs.push_back(i);
  inputs.push_back(whole(integers({6}, 0, segments - 1)));
  return {.inputs = inputs,
          .f = f,
          .reference = [reference](const auto& x) -> std::vector<DenseArray> {
            return {reference(x[0], x[1], x[3])};
          },
          .linear = {{0}}};
}

}  // namespace

OP_TEST("softmax over segments") { return softmax_case(2); }

OP_TEST("values of segments at their rows, and rows of the own part by an index") {
  std::vector<InputSpec> inputs = {
      columns_only(uniform({static_cast<std::int64_t>(kBegin.size()), 3}))};
  for (const InputSpec& i : indices()) inputs.push_back(i);
  inputs.push_back(whole(integers({6}, 0, static_cast<std::int64_t>(kBegin.size()) - 1)));
  return {.inputs = inputs,
          .f =
              [](const auto& x) {
                const Tensor taken = gather_own(x[0], x[3], x[2]);
                return std::vector{segment_spread(x[0], {x[1], x[2]}), taken,
                                   scatter_own(square(taken), x[3], x[2])};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            DenseArray spread(Shape{kRows, 3});
            DenseArray taken(Shape{6, 3});
            DenseArray added(x[0].shape);
            for (std::int64_t c = 0; c < 3; ++c) {
              for (std::int64_t i = 0; i < kRows; ++i)
                spread(i, c) = x[0](static_cast<std::int64_t>(x[1](i)), c);
              for (std::int64_t i = 0; i < 6; ++i) {
                const auto row = static_cast<std::int64_t>(x[3](i));
                taken(i, c) = x[0](row, c);
                added(row, c) += taken(i, c) * taken(i, c);
              }
            }
            return {spread, taken, added};
          }};
}

TEST_CASE("segments that do not fit are refused") {
  const Mesh mesh = Mesh::self();
  const auto list = [&](const std::vector<double>& values) {
    return Tensor::from_function(
        Layout::replicated(mesh, {static_cast<std::int64_t>(values.size())}),
        [&](const Index& i) { return values[static_cast<std::size_t>(i[0])]; }, DType::kInt64);
  };
  const Tensor x = Tensor::full(Layout::replicated(mesh, {3, 2}), 1.0);
  REQUIRE_THROWS_AS(segment_sum(x, {list({0, 0}), list({0})}), ShapeError);
  REQUIRE_THROWS_AS(segment_sum(x, {list({0, 0, 1}), list({1, 2})}), ShapeError);
  REQUIRE_THROWS_AS(segment_sum(x, {list({0, 0, 1}), list({0, 4})}), ShapeError);
  REQUIRE_THROWS_AS(segment_max(x, {list({0, 0, 1}), list({0, -1})}), ShapeError);
  REQUIRE_THROWS_AS(segment_sum(list({1, 2, 3}), {list({0, 0, 1}), list({0, 2})}), DTypeError);
  REQUIRE_THROWS_AS(gather_own(x, list({0, 3}), list({0, 0, 0})), ShapeError);
  REQUIRE_THROWS_AS(scatter_own(x, list({0, 1, -1}), list({0, 0})), ShapeError);
}

TEST_CASE("a NaN is the maximum of its segment") {
  const Mesh mesh = Mesh::self();
  const Layout three = Layout::replicated(mesh, {3});
  const Tensor x = Tensor::from_function(three, [](const Index& i) {
    return i[0] == 1 ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(i[0]);
  });
  const Tensor of = Tensor::zeros(three, DType::kInt64);
  const Tensor begin = Tensor::zeros(Layout::replicated(mesh, {1}), DType::kInt64);
  REQUIRE(std::isnan(segment_max(x, {of, begin}).at({0})));
}

OP_TABLE("segment_sum") { return reduction(segment_sum, total, true, n); }
OP_TABLE("segment_mean") {
  return reduction(
      segment_mean,
      [](const std::vector<double>& x) { return total(x) / static_cast<double>(x.size()); }, true,
      n);
}
OP_TABLE("segment_max") {
  return reduction(
      segment_max,
      [](const std::vector<double>& x) { return *std::max_element(x.begin(), x.end()); }, false, n);
}
OP_TABLE("segment_softmax") { return softmax_case(n); }
OP_TABLE("segment_spread") {
  return rows_case(
      n,
      [](const auto& x) {
        return std::vector{segment_spread(x[0], {x[1], x[2]})};
      },
      [](const DenseArray& x, const DenseArray& of, const DenseArray&) { return rows_of(x, of); });
}
OP_TABLE("gather_own") {
  return rows_case(
      n, [](const auto& x) { return std::vector{gather_own(x[0], x[3], x[2])}; },
      [](const DenseArray& x, const DenseArray&, const DenseArray& index) {
        return rows_of(x, index);
      });
}
OP_TABLE("scatter_own") {
  return rows_case(
      n,
      [](const auto& x) {
        return std::vector{scatter_own(gather_own(x[0], x[3], x[2]), x[3], x[2])};
      },
      [](const DenseArray& x, const DenseArray&, const DenseArray& index) {
        DenseArray added(x.shape);
        for (const double row : index.values)
          for (std::int64_t c = 0; c < x.shape[1]; ++c) added(row, c) += x(row, c);
        return added;
      });
}
