// ranks: 1 2 3 4

#include <map>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/einsum.hpp>

#include "support/op_table.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

using Names = std::vector<std::string>;

/// Loops over all indices of all letters.
DenseArray summed(const std::vector<DenseArray>& x, const Names& in, const std::string& out) {
  std::string letters;
  Shape sizes;
  for (std::size_t k = 0; k < in.size(); ++k)
    for (std::size_t d = 0; d < in[k].size(); ++d)
      if (letters.find(in[k][d]) == std::string::npos) {
        letters.push_back(in[k][d]);
        sizes.push_back(x[k].shape[static_cast<int>(d)]);
      }
  const auto picked = [&](const std::string& names, const Index& i) {
    Index j;
    for (const char c : names) j.push_back(i[static_cast<int>(letters.find(c))]);
    return j;
  };
  DenseArray y(picked(out, sizes));
  for_each(sizes, [&](const Index& i) {
    double product = 1.0;
    for (std::size_t k = 0; k < in.size(); ++k) product *= x[k][picked(in[k], i)];
    y[picked(out, i)] += product;
  });
  return y;
}

/// Whether a letter is split over different axes in two operands, or one axis splits two letters:
/// that may need a decision which the user has to take.
bool disagree(const std::vector<Layout>& layouts, const Names& in) {
  for (std::size_t a = 0; a < in.size(); ++a)
    for (std::size_t b = 0; b < in.size(); ++b)
      for (std::size_t i = 0; i < in[a].size(); ++i)
        for (std::size_t j = 0; j < in[b].size(); ++j) {
          const AxisMask p = layouts[a].axes_of(static_cast<int>(i));
          const AxisMask q = layouts[b].axes_of(static_cast<int>(j));
          const bool same = in[a][i] == in[b][j];
          if (p != 0 && q != 0 && (same ? p != q : (p & q) != 0)) return true;
        }
  return false;
}

OpCase einsum_case(const std::string& equation,
                   const Names& in,
                   const std::string& out,
                   std::vector<InputSpec> inputs) {
  std::vector<std::vector<int>> linear;
  for (int i = 0; i < static_cast<int>(in.size()); ++i) linear.push_back({i});
  return {
      .inputs = std::move(inputs),
      .f = [=](const auto& x) { return std::vector{einsum(equation, x)}; },
      .reference = [=](const auto& x) -> std::vector<DenseArray> { return {summed(x, in, out)}; },
      .may_throw = [=](const auto& l) { return disagree(l, in); },
      .linear = linear,
      .bf16_tolerance = 8e-2,
      .random_cuts = 8};
}

}  // namespace

OP_TEST("a batch of matrix products") {
  return einsum_case("bij,bjk->bik", {"bij", "bjk"}, "bik",
                     {uniform({3, 4, 6}), uniform({3, 6, 5})});
}
OP_TEST("scores of attention, channels last") {
  return einsum_case("nihd,njhd->nhij", {"nihd", "njhd"}, "nhij",
                     {uniform({2, 5, 3, 4}), uniform({2, 6, 3, 4})});
}
OP_TEST("sums over a split domain: the gradient of a linear layer") {
  return einsum_case("nhwc, nhwd -> cd", {"nhwc", "nhwd"}, "cd",
                     {uniform({2, 4, 5, 3}), uniform({2, 4, 5, 2})});
}
OP_TEST("a linear layer") {
  return einsum_case("nhwc,dc->nhwd", {"nhwc", "dc"}, "nhwd",
                     {uniform({2, 4, 3, 5}), uniform({4, 5})});
}
OP_TEST("a chain of three") {
  return einsum_case("ab,bc,cd->da", {"ab", "bc", "cd"}, "da",
                     {uniform({4, 5}), uniform({5, 3}), uniform({3, 6})});
}
OP_TEST("outer products and products element by element") {
  return einsum_case("ab,c,cb->abc", {"ab", "c", "cb"}, "abc",
                     {uniform({3, 4}), uniform({5}), uniform({5, 4})});
}
OP_TEST("two free dimensions beside a batch") {
  return einsum_case("gabk,gkcd->gacbd", {"gabk", "gkcd"}, "gacbd",
                     {uniform({2, 3, 4, 5}), uniform({2, 5, 3, 4})});
}
OP_TEST("what one operand alone has is summed") {
  return einsum_case("ij,jkl->k", {"ij", "jkl"}, "k", {uniform({4, 5}), uniform({5, 3, 2})});
}
OP_TEST("integers") {
  return einsum_case("ij,jk->ki", {"ij", "jk"}, "ki",
                     {integers({4, 6}, -5, 5), integers({6, 3}, -5, 5)});
}

OP_TEST("one operand: permutation, sums, diagonal, trace") {
  return {.inputs = {uniform({6, 6, 2})},
          .f =
              [](const auto& x) {
                return std::vector{einsum("ijk->kij", x), einsum("ijk->k", x), einsum("ijk->", x),
                                   einsum("iik->ki", x), einsum("iik", x)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {summed(x, {"ijk"}, "kij"), summed(x, {"ijk"}, "k"), summed(x, {"ijk"}, ""),
                    summed(x, {"iik"}, "ki"), summed(x, {"iik"}, "k")};
          },
          .linear = {{0}}};
}

OP_TEST("dimensions without names, and a result that is not given") {
  return {.inputs = {uniform({2, 3, 4, 5}), uniform({3, 5, 2})},
          .f =
              [](const auto& x) {
                return std::vector{einsum("a...ij,...jk", x), einsum("...ij,...jk->k...", x)};
              },
          .reference = [](const auto& x) -> std::vector<DenseArray> {
            return {summed(x, {"axij", "xjk"}, "xaik"), summed(x, {"axij", "xjk"}, "kax")};
          },
          .may_throw =
              [](const auto& l) {
                return disagree(l, {"axij", "xjk"});
              },
          .linear = {{0}, {1}}};
}

TEST_CASE("what two operands split alike is never refused") {
  Rng rng(3);
  const std::vector<OpCase> cases = {einsum_case("nhwc,nhwd->cd", {"nhwc", "nhwd"}, "cd",
                                                 {uniform({2, 6, 5, 3}), uniform({2, 6, 5, 2})}),
                                     einsum_case("nhwc,nhwd->nwcd", {"nhwc", "nhwd"}, "nwcd",
                                                 {uniform({2, 6, 5, 3}), uniform({2, 6, 5, 2})}),
                                     einsum_case("nhwc,nhwc->nhw", {"nhwc", "nhwc"}, "nhw",
                                                 {uniform({2, 6, 5, 3}), uniform({2, 6, 5, 3})})};
  for (const Mesh& mesh : test_meshes()) {
    std::vector<int> dims;
    for (int a = 0; a < mesh.axis_count(); ++a) dims.push_back(2 - a % 3);
    for (OpCase c : cases) {
      c.may_throw = {};
      for (const int variant : {0, 1}) {
        const Layout first = draw_layout(mesh, c.inputs[0].shape, dims, variant, rng);
        Layout second = first.with_dim(3, c.inputs[1].shape[3], {});
        report(check_layouts(c, {first, second}));
        // Boundaries may differ.
        second = draw_layout(mesh, c.inputs[1].shape, dims, 1, rng);
        report(check_layouts(c, {first, second}));
      }
    }
  }
}

TEST_CASE("equations that do not fit throw") {
  const Mesh mesh = Mesh::world({{"a", process().count}});
  const Tensor a = Tensor::zeros(Layout::replicated(mesh, {2, 3}));
  const Tensor b = Tensor::zeros(Layout::replicated(mesh, {3, 4}));
  for (const char* const wrong : {"ij", "ij,jk,kl->il", "i,jk->ijk", "ij,ik->jk", "ij,jk->iz",
                                  "ij,jk->ii", "i1,1k->ik", "......ij,jk->ik", "ijk...,jk->ik"}) {
    CAPTURE(wrong);
    REQUIRE_THROWS_AS(einsum(wrong, {a, b}), ShapeError);
  }
  REQUIRE_THROWS_AS(einsum("", {}), UsageError);
}

OP_TABLE("einsum") {
  return einsum_case("bij,bjk->bik", {"bij", "bjk"}, "bik",
                     {uniform({2, 3, n}), uniform({2, n, 4})});
}
