#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <tessera/models/atomistic/potential.hpp>
#include <tessera/nn/atoms/domain.hpp>
#include <vector>

namespace tessera::atomistic {

struct RelaxOptions {
  double force = 1e-3;        ///< eV/A: the largest force that is left
  double stress = 1e-5;       ///< eV/A^3: the largest difference to the pressure that is left
  std::int64_t steps = 5000;  ///< at most
  bool cell = false;          ///< the box changes, too (its shape and size)
  double pressure = 0.0;      ///< GPa, of the box
  double dt = 0.1;            ///< of the method, first; units of A/sqrt(eV) with masses of 1
  double longest_step = 0.2;  ///< A: largest motion of an atom in a step
  double skin = 0.5;
  nn::Cutting cutting = nn::Cutting::kBricks;
  std::vector<std::string> axes = {};  ///< that cut the box; empty: all
};

/// Numbers of a step of relaxation.
struct RelaxStep {
  std::int64_t step = 0;
  double energy = 0;  ///< eV; with p V where the box relaxes
  double force = 0;   ///< eV/A, largest of an atom
  double stress = 0;  ///< eV/A^3, largest difference to the pressure
};

struct Relaxed {
  bool converged = false;
  RelaxStep last;
  /// All atoms by id, with labels, on mesh rank 0.
  nn::Structure structure;
};

/// Moves atoms (and the box) downhill until forces are small: FIRE (Bitzek et al., Phys. Rev. Lett.
/// 97, 170201, 2006). The box is a deformation of the first one, whose nine numbers, times the
/// number of atoms, are coordinates beside those of the atoms in the undeformed box (Tadmor et al.
/// 1999). Every rank of the mesh must call; `report` is called on all. Throws UsageError for
/// options without sense.
Relaxed relax(const nn::Structure& start,
              const Potential& potential,
              const Mesh& mesh,
              const RelaxOptions& options = {},
              const std::function<void(const RelaxStep&)>& report = {});

}  // namespace tessera::atomistic
