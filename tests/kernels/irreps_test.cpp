// ranks: 1

#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/kernels/irreps.hpp>

using namespace tessera;
using namespace tessera::kernels;

namespace {

double at(const std::vector<double>& c, int l2, int l3, int i, int j, int k) {
  return c[static_cast<std::size_t>((i * (2 * l2 + 1) + j) * (2 * l3 + 1) + k)];
}

double sum(const std::vector<double>& values) {
  double s = 0.0;
  for (const double v : values) s += v;
  return s;
}

double squares(const std::vector<double>& values) {
  double s = 0.0;
  for (const double v : values) s += v * v;
  return s;
}

double difference(const std::vector<double>& a, const std::vector<double>& b, double sign) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - sign * b[i]));
  return most;
}

}  // namespace

TEST_CASE("3j symbols have the published values") {
  const auto value = [](int l1, int l2, int l3, int i, int j, int k) {
    return at(wigner_3j(l1, l2, l3), l2, l3, i, j, k);
  };
  const auto near = [](double x) { return Approx(x).epsilon(1e-9); };
  CHECK(value(1, 1, 1, 0, 1, 2) == near(0.408248290464));
  CHECK(value(1, 1, 1, 1, 0, 2) == near(-0.408248290464));
  CHECK(value(1, 1, 2, 0, 0, 2) == near(-0.182574185835));
  CHECK(value(1, 1, 2, 2, 2, 2) == near(-0.182574185835));
  CHECK(value(1, 1, 2, 1, 1, 2) == near(0.36514837167));
  CHECK(value(1, 1, 2, 0, 0, 4) == near(-0.316227766017));
  CHECK(value(1, 1, 2, 2, 2, 4) == near(0.316227766017));
  for (const auto& [i, j, k] :
       {std::array{0, 1, 1}, {1, 0, 1}, {0, 2, 0}, {2, 0, 0}, {1, 2, 3}, {2, 1, 3}})
    CHECK(value(1, 1, 2, i, j, k) == near(0.316227766017));
  CHECK(value(1, 2, 3, 0, 0, 4) == near(-0.0690065559));
  CHECK(value(1, 2, 3, 0, 0, 6) == near(-0.2672612419));
  CHECK(value(1, 2, 3, 0, 1, 3) == near(-0.1690308509));
  CHECK(value(1, 2, 3, 0, 1, 5) == near(-0.2182178902));
  CHECK(value(1, 2, 3, 0, 2, 2) == near(0.2390457219));
  CHECK(value(1, 2, 3, 1, 1, 2) == near(0.2760262237));
  CHECK(value(1, 2, 3, 1, 2, 3) == near(0.2927700219));
  CHECK(value(1, 2, 3, 1, 3, 4) == near(0.2760262237));
}

TEST_CASE("3j symbols are unit tensors with the symmetries of the formula") {
  for (int l1 = 0; l1 <= 6; ++l1)
    for (int l2 = 0; l2 <= 6; ++l2)
      for (int l3 = std::abs(l1 - l2); l3 <= std::min(6, l1 + l2); ++l3) {
        const auto& c = wigner_3j(l1, l2, l3);
        const double sign = (l1 + l2 + l3) % 2 == 0 ? 1.0 : -1.0;
        REQUIRE(squares(c) == Approx(1.0).epsilon(1e-14));
        double worst = 0.0;
        for (int i = 0; i <= 2 * l1; ++i)
          for (int j = 0; j <= 2 * l2; ++j)
            for (int k = 0; k <= 2 * l3; ++k) {
              const double x = at(c, l2, l3, i, j, k);
              worst =
                  std::max({worst, std::abs(x - sign * at(wigner_3j(l2, l1, l3), l1, l3, j, i, k)),
                            std::abs(x - sign * at(wigner_3j(l1, l3, l2), l3, l2, i, k, j)),
                            std::abs(x - at(wigner_3j(l3, l1, l2), l1, l2, k, i, j))});
            }
        CHECK(worst < 1e-14);
        if (sign > 0) CHECK(at(c, l2, l3, l1, l2, l3) > 0.0);
        // Orthogonal: the contraction over two indices is a multiple of the identity.
        for (int k = 0; k <= 2 * l3; ++k)
          for (int n = 0; n <= 2 * l3; ++n) {
            double s = 0.0;
            for (int i = 0; i <= 2 * l1; ++i)
              for (int j = 0; j <= 2 * l2; ++j)
                s += at(c, l2, l3, i, j, k) * at(c, l2, l3, i, j, n);
            worst = std::max(worst, std::abs(s - (k == n ? 1.0 / (2 * l3 + 1) : 0.0)));
          }
        CHECK(worst < 1e-14);
      }
  for (int l = 0; l <= 6; ++l)
    for (int m = 0; m <= 2 * l; ++m) {
      CHECK(at(wigner_3j(l, 0, l), 0, l, m, 0, m) == Approx(1.0 / std::sqrt(2 * l + 1)));
      CHECK(at(wigner_3j(0, l, l), l, l, 0, m, m) == Approx(1.0 / std::sqrt(2 * l + 1)));
      CHECK(at(wigner_3j(l, l, 0), l, 0, m, m, 0) == Approx(1.0 / std::sqrt(2 * l + 1)));
    }
  CHECK(sum(wigner_3j(1, 1, 3)) == 0.0);
  CHECK_THROWS_AS(wigner_3j(1, -1, 0), UsageError);
  CHECK_THROWS_AS(wigner_3j(11, 11, 0), UsageError);
}

TEST_CASE("tabulated 3j symbols differ from the formula by the sign of some odd sums") {
  const auto sign = [](int l1, int l2, int l3) {
    const auto &a = wigner_3j(l1, l2, l3), &b = wigner_3j_tabulated(l1, l2, l3);
    if (difference(a, b, 1.0) == 0.0) return 1;
    return difference(a, b, -1.0) == 0.0 ? -1 : 0;
  };
  for (const auto& [l1, l2, l3] :
       {std::array{1, 2, 2}, {1, 3, 3}, {2, 1, 2}, {2, 2, 1}, {3, 1, 3}, {3, 3, 1}, {3, 4, 6}})
    CHECK(sign(l1, l2, l3) == -1);
  CHECK(sign(1, 1, 1) == 1);
  for (int l1 = 0; l1 <= 4; ++l1)
    for (int l2 = 0; l2 <= 4; ++l2)
      for (int l3 = std::abs(l1 - l2); l3 <= l1 + l2; ++l3)
        CHECK((sign(l1, l2, l3) == 1 || (l1 + l2 + l3) % 2 != 0));
}

TEST_CASE("paths of the channel-wise product") {
  struct Case {
    int l_in, paths, rows, nonzeros;
  };
  for (const Case& c : {Case{0, 4, 16, 16}, {1, 10, 40, 86}, {2, 17, 71, 215}}) {
    const TensorPaths& p = tensor_paths(c.l_in, 3, 3);
    CHECK(p.count() == c.paths);
    CHECK(p.rows == c.rows);
    int nonzeros = 0;
    int row = 0;
    for (const TensorPath& path : p.paths) {
      CHECK(path.row == row);
      row += 2 * path.l3 + 1;
      for (const double x : wigner_3j(path.l1, path.l2, path.l3)) nonzeros += x != 0.0;
    }
    CHECK(nonzeros == c.nonzeros);
  }
  // By l3, then by the order of l1 and l2.
  const TensorPaths& p = tensor_paths(1, 3, 3);
  CHECK(p.into(0) == 2);
  CHECK(p.into(1) == 3);
  CHECK(p.into(2) == 3);
  CHECK(p.into(3) == 2);
  CHECK((p.paths[3].l1 == 1 && p.paths[3].l2 == 0 && p.paths[3].l3 == 1));
  CHECK((p.paths[4].l1 == 1 && p.paths[4].l2 == 2 && p.paths[4].l3 == 1));
}

TEST_CASE("couplings have the published counts and checksums") {
  struct Case {
    int lmax, l, order;
    std::int64_t full, reduced;
    double sum;
  };
  for (const Case& c : {Case{3, 0, 2, 4, 4, 7.6138700961},
                        {3, 1, 2, 6, 3, 20.3815633654},
                        {3, 2, 2, 7, 5, 27.2159973495},
                        {3, 0, 3, 23, 8, 42.4112413865},
                        {3, 1, 3, 51, 12, 155.8669849578},
                        {3, 2, 3, 65, 14, 263.905802075}}) {
    const Couplings u = couplings(c.lmax, c.l, c.order, CouplingBasis::kFull);
    CHECK(u.count == c.full);
    CHECK(sum(u.values) == Approx(c.sum).epsilon(1e-11));
    CHECK(squares(u.values) ==
          Approx((2.0 * c.l + 1.0) * static_cast<double>(c.full)).epsilon(1e-13));
    const Couplings r = couplings(c.lmax, c.l, c.order, CouplingBasis::kReduced);
    CHECK(r.count == c.reduced);
    CHECK(squares(r.values) ==
          Approx((2.0 * c.l + 1.0) * static_cast<double>(c.reduced)).epsilon(1e-12));
  }
  const std::int64_t counts[][4] = {
      {2, 0, 3, 11}, {2, 1, 4, 21}, {2, 2, 4, 23}, {1, 0, 2, 4}, {1, 1, 2, 6}};
  for (const auto& [lmax, l, two, three] : counts) {
    CHECK(couplings(static_cast<int>(lmax), static_cast<int>(l), 2, CouplingBasis::kFull).count ==
          two);
    CHECK(couplings(static_cast<int>(lmax), static_cast<int>(l), 3, CouplingBasis::kFull).count ==
          three);
  }
  int nonzeros[3] = {};
  for (int l = 0; l < 3; ++l)
    for (const double x : couplings(3, l, 3, CouplingBasis::kFull).values) nonzeros[l] += x != 0.0;
  CHECK(nonzeros[0] == 353);
  CHECK(nonzeros[1] == 2838);
  CHECK(nonzeros[2] == 5782);
  const auto blocks = contraction_blocks(3, 1, 3, CouplingBasis::kFull);
  REQUIRE(blocks.size() == 6);
  CHECK(
      (blocks[0].l == 0 && blocks[0].order == 3 && blocks[0].first == 0 && blocks[0].count == 23));
  CHECK(
      (blocks[3].l == 1 && blocks[3].order == 3 && blocks[3].first == 28 && blocks[3].count == 51));
  CHECK(contraction_weights(3, 1, 3, CouplingBasis::kFull) == 23 + 4 + 1 + 51 + 6 + 1);
  CHECK_THROWS_AS(couplings(3, 4, 2, CouplingBasis::kFull), UsageError);
  CHECK_THROWS_AS(couplings(3, 0, 4, CouplingBasis::kFull), UsageError);
}
