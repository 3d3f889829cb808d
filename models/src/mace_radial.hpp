#pragma once

#include <tessera/core/tensor.hpp>

/// Functions of distance in Mace, on lists [E]. Differentiable to any order.
namespace tessera::models {

/// sqrt(2 / r_max) sin(n pi x / r_max) / x for n = 1..count: [E] -> [E, count].
Tensor bessel(const Tensor& x, std::int64_t count, double r_max);

/// 1 - (p + 1)(p + 2)/2 x^p + p (p + 2) x^(p + 1) - p (p + 1)/2 x^(p + 2) for x < 1, else 0: two
/// derivatives vanish at 1 (Gasteiger et al. 2020, eq. 8).
Tensor polynomial_envelope(const Tensor& x, int p);

/// 1 / (1 + a (r / r0)^q / (1 + (r / r0)^(q - p))) with the constants of MACE; r0 [E].
Tensor agnesi_transform(const Tensor& r, const Tensor& r0);

/// Screened Coulomb repulsion of nuclei in eV (Ziegler, Biersack & Littmark 1985), times the
/// envelope of r / (sum of covalent radii). All [E]: charges and covalent radii at both ends.
struct PairOfAtoms {
  Tensor z1, z2;
  Tensor radius1, radius2;
};
Tensor pair_repulsion(const Tensor& r, const PairOfAtoms& pair, int p);

/// Single-bond covalent radius in A (Cordero et al. 2008); 0.2 for Z > 96. Throws UsageError for
/// Z < 1 or > 118.
double covalent_radius(std::int64_t z);

}  // namespace tessera::models
