#pragma once

#include <cmath>
#include <tessera/core/threads.hpp>
#include <tessera/models/atomistic/potential.hpp>
#include <vector>

namespace tessera::atomistic {

/// f(i, scratch) for each own atom, over threads; what f writes belongs to atom i alone.
template <class Scratch, class F>
void for_each_atom(std::int64_t nodes, F&& f) {
  const int threads = nodes < 64 ? 1 : thread_count();
#pragma omp parallel num_threads(threads)
  {
    Scratch scratch;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < nodes; ++i) f(i, scratch);
  }
}

inline double length_of(const double* v) {
  return std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
}

/// x^n, n >= 0
inline double power(double x, int n) {
  double result = 1.0;
  for (; n > 0; n >>= 1, x *= x)
    if ((n & 1) != 0) result *= x;
  return result;
}

/// A function of a distance.
struct Radial {
  double value;
  double slope;
};

/// Half of a pair's energy and the gradient with respect to the edge that this atom receives; the
/// other half is with the other atom.
inline void add_pair(const Radial& f, double r, const double* v, double* energy, double* gradient) {
  *energy += 0.5 * f.value;
  for (int c = 0; c < 3; ++c) gradient[c] += 0.5 * f.slope * v[c] / r;
}

/// An edge that takes part in triplets, with exp(gamma / (r - r0)) and its logarithm's slope.
struct Arm {
  std::int64_t edge;
  std::int64_t kind;  // of the sender
  double r;
  double decay;
  double slope;
};

inline Arm make_arm(std::int64_t edge, std::int64_t kind, double r, double gamma, double r0) {
  const double inverse = 1.0 / (r - r0);
  return {edge, kind, r, std::exp(gamma * inverse), -gamma * inverse * inverse};
}

/// b decay_j decay_k x^2 / (1 + c x^2), x = cos(angle) - cosine.
inline void add_triplet(const Arm& j,
                        const Arm& k,
                        double b,
                        double c,
                        double cosine,
                        const double* vectors,
                        double* energy,
                        double* gradients) {
  const double* const vj = vectors + 3 * j.edge;
  const double* const vk = vectors + 3 * k.edge;
  const double cs = (vj[0] * vk[0] + vj[1] * vk[1] + vj[2] * vk[2]) / (j.r * k.r);
  const double x = cs - cosine;
  const double soft = 1.0 / (1.0 + c * x * x);
  const double radial = b * j.decay * k.decay;
  const double value = radial * x * x * soft;
  const double by_cosine = 2.0 * radial * x * soft * soft;
  *energy += value;
  for (int a = 0; a < 3; ++a) {
    const double nj = vj[a] / j.r;
    const double nk = vk[a] / k.r;
    gradients[3 * j.edge + a] += value * j.slope * nj + by_cosine * (nk - cs * nj) / j.r;
    gradients[3 * k.edge + a] += value * k.slope * nk + by_cosine * (nj - cs * nk) / k.r;
  }
}

}  // namespace tessera::atomistic
