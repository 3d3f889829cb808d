// ranks: 2
// Which placement the dispatcher chooses, and what it moves for it: named cases, exactly.
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/scope.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

Layout on(const Shape& shape, int dim, Bounds bounds = {}) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  if (dim >= 0) splits[static_cast<std::size_t>(dim)] = {{0}, std::move(bounds)};
  return Layout::make(Mesh::world({{"a", 2}}), shape, splits);
}
Tensor made(const Layout& layout) { return to_tensor(random_array(layout.shape(), 1), layout); }
Tensor made(const Shape& shape, int dim) { return made(on(shape, dim)); }
constexpr int kWhole = -1;

/// f() has this layout and both ranks together send this much.
void expect(const std::string& layout, std::int64_t bytes, const std::function<Tensor()>& f) {
  std::string got;
  const Traffic sent = traffic_of([&] {
    try {
      got = f().layout().str();
    } catch (const LayoutError& e) {
      got = str("error: ", e.what());
    }
  });
  if (layout == "error") {
    CHECK_THAT(got, Catch::StartsWith("error: ") && Catch::Contains("replicate(x)"));
  } else {
    CHECK(got == layout);
  }
  CHECK(sent.bytes == bytes);
}

TEST_CASE("elementwise: the larger operand stays") {
  const Tensor x = made({100, 8}, 0);
  // A bias split otherwise is gathered; the activation does not move to it.
  expect("[100/a, 8]", 64, [&] { return x + made({8}, 0); });
  expect("[100/a, 8]", 64, [&] { return made({8}, 0) * x; });
  expect("[100/a, 8]", 0, [&] { return x + made({8}, kWhole); });
  expect("[100/a, 8]", 0, [&] { return x + made({100, 8}, kWhole); });
  expect("[100/a, 8]", 0, [&] { return made({100, 8}, kWhole) + x; });
  // Of equals the one split in the outermost dimension stays: half of the other changes hands.
  expect("[100/a, 8]", 3200, [&] { return x + made({100, 8}, 1); });
  expect("[100/a, 8]", 3200, [&] { return made({100, 8}, 1) + x; });
  // Other boundaries: the rows between them move.
  const Tensor uneven = made(on({100, 8}, 0, {0, 30, 100}));
  expect("[100/a, 8]", 20 * 8 * 8, [&] { return x + uneven; });
  expect("[100/a(0 30 100), 8]", 20 * 8 * 8, [&] { return uneven + x; });
  // A column meets its rows without a message.
  expect("[100/a, 8]", 0, [&] { return made({100, 1}, 0) * made({1, 8}, kWhole); });
}

TEST_CASE("linear: columns, rows, and no gather behind the user's back") {
  expect("[100/a, 6]", 0, [] { return linear(made({100, 8}, 0), made({6, 8}, kWhole)); });
  expect("[100, 6/a]", 0, [] { return linear(made({100, 8}, kWhole), made({6, 8}, 0)); });
  expect("[100, 6] partial(a)", 0, [] { return linear(made({100, 8}, kWhole), made({6, 8}, 1)); });
  expect("[100, 6] partial(a)", 0, [] { return linear(made({100, 8}, 1), made({6, 8}, kWhole)); });
  expect("[100, 6] partial(a)", 0, [] { return linear(made({100, 8}, 1), made({6, 8}, 1)); });
  expect("error", 0, [] { return linear(made({100, 8}, 0), made({6, 8}, 0)); });
}

TEST_CASE("convolution: faces, channels, and no gather") {
  const ConvOptions same = {.pad_lo = {1}};
  expect("[2, 40/a, 6]", 2 * 2 * 8 * 8, [&] {
    return conv(made({2, 40, 8}, 1), made({6, 3, 8}, kWhole), {}, same);
  });
  expect("[2, 20/a, 6]", 2 * 8 * 8, [&] {
    return conv(made({2, 40, 8}, 1), made({6, 3, 8}, kWhole), {}, {.stride = {2}, .pad_lo = {1}});
  });
  expect("[2/a, 40, 6]", 0, [&] {
    return conv(made({2, 40, 8}, 0), made({6, 3, 8}, kWhole), {}, same);
  });
  expect("[2, 40, 6] partial(a)", 0, [&] {
    return conv(made({2, 40, 8}, 2), made({6, 3, 8}, kWhole), {}, same);
  });
  expect("[2, 40, 6/a]", 0, [&] {
    return conv(made({2, 40, 8}, kWhole), made({6, 3, 8}, 0), {}, same);
  });
  expect("error", 0, [&] { return conv(made({2, 40, 8}, 1), made({6, 3, 8}, 0), {}, same); });
}

TEST_CASE("reductions, norms and views") {
  expect("[] partial(a)", 0, [] { return sum(made({2, 40, 8}, 1)); });
  expect("[2, 8] partial(a)", 0, [] { return sum(made({2, 40, 8}, 1), {1}); });
  expect("[2, 40/a]", 0, [] { return sum(made({2, 40, 8}, 1), {2}); });
  expect("[2, 8] partial-max(a)", 0, [] { return amax(made({2, 40, 8}, 1), {1}); });
  expect("[2, 40, 8/a]", 0, [] { return group_norm(made({2, 40, 8}, 2), {}, {}, 2); });
  expect("[24/a]", 0, [] { return reshape(made({4, 6}, 0), {24}); });
  expect("error", 0, [] { return reshape(made({4, 6}, 1), {24}); });
  expect("[6/a, 4]", 0, [] { return permute(made({4, 6}, 1), {1, 0}); });
}

TEST_CASE("in backward what fits no placement is gathered") {
  const Tensor x = made({100, 8}, 0), w = made({6, 8}, 0);
  for (int again = 0; again < 2; ++again) {
    expect("error", 0, [&] { return linear(x, w); });
    const PhaseScope phase(Phase::kBackward);
    expect("[100, 6]", (100 + 6) * 8 * 8, [&] { return linear(x, w); });
    expect("[24]", 24 * 8, [] { return reshape(made({4, 6}, 1), {24}); });
    expect("[24/a]", 0, [] { return reshape(made({4, 6}, 0), {24}); });
  }
}

}  // namespace
}  // namespace tessera::test
