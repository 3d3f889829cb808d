#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <map>
#include <mutex>
#include <tessera/core/error.hpp>
#include <tessera/kernels/irreps.hpp>

namespace tessera::kernels {

namespace {

constexpr int kMaxL = 10;

std::int64_t binomial(int n, int k) {
  if (k < 0 || k > n) return 0;
  std::int64_t value = 1;
  for (int i = 1; i <= k; ++i) value = value * (n - k + i) / i;
  return value;
}

/// <l1 m1 l2 m2 | l3 m3> by Racah's formula; the alternating sum is exact in integers.
long double clebsch_gordan(int l1, int m1, int l2, int m2, int l3, int m3) {
  if (m1 + m2 != m3) return 0.0L;
  std::int64_t sum = 0;
  for (int k = 0; k <= l1 + l2 - l3; ++k) {
    const std::int64_t term = binomial(l1 + l2 - l3, k) * binomial(l1 - l2 + l3, l1 - m1 - k) *
                              binomial(-l1 + l2 + l3, l2 + m2 - k);
    sum += k % 2 == 0 ? term : -term;
  }
  const auto b = [](int n, int k) { return static_cast<long double>(binomial(n, k)); };
  const long double up = b(2 * l1, l1 + l2 - l3) * b(2 * l2, l1 + l2 - l3);
  const long double down = b(l1 + l2 + l3 + 1, l1 + l2 - l3) * b(2 * l1, l1 - m1) *
                           b(2 * l2, l2 - m2) * b(2 * l3, l3 - m3);
  return static_cast<long double>(sum) * std::sqrt(up / down);
}

using Complex = std::complex<long double>;

/// Columns are real harmonics in terms of complex ones (rows).
std::vector<Complex> change_of_basis(int l) {
  const int n = 2 * l + 1;
  std::vector<Complex> q(static_cast<std::size_t>(n * n));
  const auto at = [&](int row, int column) -> Complex& {
    return q[static_cast<std::size_t>(row * n + column)];
  };
  const long double half = std::sqrt(0.5L);
  for (int m = 1; m <= l; ++m) {
    const long double sign = m % 2 == 0 ? half : -half;
    at(l - m, l + m) = half;
    at(l - m, l - m) = Complex(0, -half);
    at(l + m, l + m) = sign;
    at(l + m, l - m) = Complex(0, sign);
  }
  at(l, l) = 1;
  Complex phase = 1;
  for (int i = 0; i < l; ++i) phase *= Complex(0, -1);
  for (Complex& x : q) x *= phase;
  return q;
}

std::vector<double> compute_3j(int l1, int l2, int l3) {
  const int n1 = 2 * l1 + 1, n2 = 2 * l2 + 1, n3 = 2 * l3 + 1;
  std::vector<double> result(static_cast<std::size_t>(n1 * n2 * n3));
  if (l3 < std::abs(l1 - l2) || l3 > l1 + l2) return result;
  const auto q1 = change_of_basis(l1), q2 = change_of_basis(l2), q3 = change_of_basis(l3);
  const auto entry = [](const std::vector<Complex>& q, int n, int row, int column) {
    return q[static_cast<std::size_t>(row * n + column)];
  };
  std::vector<long double> real(result.size());
  long double norm = 0;
  for (int a = 0; a < n1; ++a)
    for (int b = 0; b < n2; ++b)
      for (int c = 0; c < n3; ++c) {
        // A real harmonic mixes m and -m only.
        Complex sum = 0;
        for (const int i : {a, n1 - 1 - a})
          for (const int k : {b, n2 - 1 - b}) {
            const int n = (i - l1) + (k - l2) + l3;
            if ((n == c || n == n3 - 1 - c) && n >= 0 && n < n3) {
              const Complex term = entry(q1, n1, i, a) * entry(q2, n2, k, b) *
                                   std::conj(entry(q3, n3, n, c)) *
                                   clebsch_gordan(l1, i - l1, l2, k - l2, l3, n - l3);
              const long double twice = (a == l1 ? 0.5L : 1.0L) * (b == l2 ? 0.5L : 1.0L);
              sum += twice * term;
            }
          }
        const long double x = sum.real();
        real[static_cast<std::size_t>((a * n2 + b) * n3 + c)] = x;
        norm += x * x;
      }
  for (std::size_t i = 0; i < real.size(); ++i) {
    const long double x = real[i] / std::sqrt(norm);
    result[i] = std::abs(x) < 1e-16L ? 0.0 : static_cast<double>(x);
  }
  return result;
}

using Triple = std::array<int, 3>;

/// Values by key, made once; references stay valid.
template <class Key, class Value, class Make>
const Value& cached(std::map<Key, Value>& cache, const Key& key, const Make& make) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto found = cache.find(key);
  return found != cache.end() ? found->second : cache.emplace(key, make()).first->second;
}

void check_l(const Triple& l) {
  for (const int x : l) {
    if (x < 0 || x > kMaxL)
      throw UsageError(str("wigner_3j: l = ", x, " is outside 0 to ", kMaxL, "."));
  }
}

}  // namespace

const std::vector<double>& wigner_3j(int l1, int l2, int l3) {
  static std::map<Triple, std::vector<double>> cache;
  check_l({l1, l2, l3});
  return cached(cache, Triple{l1, l2, l3}, [&] { return compute_3j(l1, l2, l3); });
}

const std::vector<double>& wigner_3j_tabulated(int l1, int l2, int l3) {
  static std::map<Triple, std::vector<double>> cache;
  const std::vector<double>& formula = wigner_3j(l1, l2, l3);
  Triple sorted{l1, l2, l3};
  std::sort(sorted.begin(), sorted.end());
  const std::vector<double>& reference = wigner_3j(sorted[0], sorted[1], sorted[2]);
  return cached(cache, Triple{l1, l2, l3}, [&] {
    // The table holds sorted symbols whose first element that is not zero is positive, for odd
    // sums; exchanged axes carry the sign that they have in the formula.
    std::vector<double> result = formula;
    const auto first =
        std::find_if(reference.begin(), reference.end(), [](double x) { return x != 0.0; });
    if ((l1 + l2 + l3) % 2 != 0 && first != reference.end() && *first < 0.0)
      for (double& x : result) x = -x;
    return result;
  });
}

int TensorPaths::into(int l3) const {
  return static_cast<int>(
      std::count_if(paths.begin(), paths.end(), [&](const TensorPath& p) { return p.l3 == l3; }));
}

const TensorPaths& tensor_paths(int l_in, int l_edge, int l_out) {
  static std::map<Triple, TensorPaths> cache;
  check_l({l_in, l_edge, l_out});
  return cached(cache, Triple{l_in, l_edge, l_out}, [&] {
    TensorPaths result{l_in, l_edge, l_out, 0, {}};
    for (int l3 = 0; l3 <= l_out; ++l3)
      for (int l1 = 0; l1 <= l_in; ++l1)
        for (int l2 = std::abs(l1 - l3); l2 <= std::min(l_edge, l1 + l3); l2 += 2) {
          result.paths.push_back({l1, l2, l3, result.rows});
          result.rows += 2 * l3 + 1;
        }
    return result;
  });
}

}  // namespace tessera::kernels
