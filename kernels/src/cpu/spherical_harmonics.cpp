#include <array>
#include <cmath>
#include <tessera/kernels/equivariant.hpp>
#include <vector>

#include "cpu/jet.hpp"
#include "cpu/padded_rows.hpp"
#include "cpu/tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

constexpr int kMaxHarmonicL = 10;
constexpr int kMaxDirections = 3;

/// Factors of Y_lm, [l][|m|]: sqrt((2 l + 1) (2 - delta_m0) (l - m)! / (l + m)!).
std::vector<double> norms(int lmax) {
  std::vector<double> result;
  for (int l = 0; l <= lmax; ++l)
    for (int m = 0; m <= l; ++m) {
      double x = (2.0 * l + 1.0) * (m == 0 ? 1.0 : 2.0);
      for (int i = l - m + 1; i <= l + m; ++i) x /= i;
      result.push_back(std::sqrt(x));
    }
  return result;
}

/// 1 / sqrt(x): the series around part 0, which ends because the rest is nilpotent.
template <int kOrder>
Jet<double, kOrder> inverse_root(const Jet<double, kOrder>& x) {
  using J = Jet<double, kOrder>;
  const double root = 1.0 / std::sqrt(x.part[0]);
  J rest = scaled(1.0 / x.part[0], x);
  rest.part[0] = 0.0;
  J sum = J::constant(1.0);
  J power = J::constant(1.0);
  double factor = 1.0;
  for (int n = 1; n <= kOrder; ++n) {
    factor *= -(2.0 * n - 1.0) / (2.0 * n);
    power = power * rest;
    sum = sum + scaled(factor, power);
  }
  return scaled(root, sum);
}

/// Y_lm of v / |v| for all l <= lmax, given to f(lm, value). With y as the pole, Y_lm is a norm
/// times a polynomial in y (the derivative of a Legendre polynomial) times the real or imaginary
/// part of (z + i x)^m.
template <int kOrder, class F>
void harmonics(int lmax,
               const double* norm,
               const std::array<Jet<double, kOrder>, 3>& v,
               const F& f) {
  using J = Jet<double, kOrder>;
  const J scale = inverse_root(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
  const J x = v[0] * scale, y = v[1] * scale, z = v[2] * scale;
  J cosine = J::constant(1.0), sine = J::constant(0.0);
  double start = 1.0;
  for (int m = 0; m <= lmax; ++m) {
    J previous = J::constant(0.0), p = J::constant(start);
    for (int l = m; l <= lmax; ++l) {
      const double n = norm[l * (l + 1) / 2 + m];
      f(l * l + l + m, scaled(n, p * cosine));
      if (m > 0) f(l * l + l - m, scaled(n, p * sine));
      // (l + 1 - m) P_{l+1} = (2 l + 1) y P_l - (l + m) P_{l-1}
      const J next = scaled(1.0 / (l + 1 - m),
                            scaled(2.0 * l + 1.0, y * p) - scaled<double, kOrder>(l + m, previous));
      previous = p;
      p = next;
    }
    const J turned = cosine * z - sine * x;
    sine = cosine * x + sine * z;
    cosine = turned;
    start *= 2.0 * m + 1.0;
  }
}

/// Rows [E, columns] in double, by any strides and type.
class Rows {
 public:
  explicit Rows(const View& view) : view_(view) {}
  double at(std::int64_t e, std::int64_t c) const {
    const std::int64_t i = e * view_.strides[0] + c * view_.strides[1];
    return view_.dtype == DType::kFloat64 ? view_.as<double>()[i]
                                          : static_cast<double>(view_.as<float>()[i]);
  }
  void set(std::int64_t e, std::int64_t c, double x) const {
    const std::int64_t i = e * view_.strides[0] + c * view_.strides[1];
    if (view_.dtype == DType::kFloat64) {
      view_.as<double>()[i] = x;
    } else {
      view_.as<float>()[i] = static_cast<float>(x);
    }
  }

 private:
  View view_;
};

/// Jets along `given` directions, and with kOrder above that along axis `axis`, too.
template <int kOrder>
std::array<Jet<double, kOrder>, 3> position(const Rows& v,
                                            std::span<const View> given,
                                            std::int64_t e,
                                            int axis) {
  std::array<Jet<double, kOrder>, 3> x{};
  for (std::size_t c = 0; c < 3; ++c) {
    x[c].part[0] = v.at(e, static_cast<std::int64_t>(c));
    for (std::size_t d = 0; d < given.size() && d < kOrder; ++d)
      x[c].part[1u << d] = Rows(given[d]).at(e, static_cast<std::int64_t>(c));
  }
  // The last direction.
  if (axis >= 0) x[static_cast<std::size_t>(axis)].part[Jet<double, kOrder>::kParts / 2] = 1.0;
  return x;
}

template <int kDirections>
void run(
    int lmax, const View& g, const View& v, std::span<const View> directions, const View& out) {
  const std::vector<double> norm = norms(lmax);
  const Rows from(v), to(out);
  parallel_chunks(v.shape[0], irreps_rows(lmax) * 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t e = begin; e < end; ++e) {
      if (g.data == nullptr) {
        harmonics<kDirections>(
            lmax, norm.data(), position<kDirections>(from, directions, e, -1),
            [&](int lm, const Jet<double, kDirections>& y) { to.set(e, lm, y.part[y.kTop]); });
        continue;
      }
      for (int axis = 0; axis < 3; ++axis) {
        double sum = 0.0;
        harmonics<kDirections + 1>(lmax, norm.data(),
                                   position<kDirections + 1>(from, directions, e, axis),
                                   [&](int lm, const Jet<double, kDirections + 1>& y) {
                                     sum += Rows(g).at(e, lm) * y.part[y.kTop];
                                   });
        to.set(e, axis, sum);
      }
    }
  });
}

}  // namespace

void spherical_harmonics(
    int lmax, const View& g, const View& v, std::span<const View> directions, const View& out) {
  if (lmax < 0 || lmax > kMaxHarmonicL || directions.size() > kMaxDirections) {
    throw NotSupported(str("spherical_harmonics: lmax ", lmax, " with ", directions.size(),
                           " directions (known are lmax 0 to ", kMaxHarmonicL, ", at most ",
                           kMaxDirections, " directions)."));
  }
  for (const View* view : {&v, &out}) {
    if (view->dtype != DType::kFloat64 && view->dtype != DType::kFloat32)
      throw DTypeError(str("spherical_harmonics: ", name(view->dtype), " is neither f32 nor f64."));
  }
  if (dry_run() || out.empty()) return;
  switch (directions.size()) {
    case 0:
      return run<0>(lmax, g, v, directions, out);
    case 1:
      return run<1>(lmax, g, v, directions, out);
    case 2:
      return run<2>(lmax, g, v, directions, out);
    default:
      return run<3>(lmax, g, v, directions, out);
  }
}

}  // namespace tessera::kernels
