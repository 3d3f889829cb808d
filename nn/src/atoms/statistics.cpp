#define EIGEN_DONT_PARALLELIZE
#include <Eigen/QR>
#include <algorithm>
#include <cmath>
#include <set>
#include <tessera/kernels/neighbors.hpp>
#include <tessera/nn/atoms/statistics.hpp>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::nn {
namespace {

std::size_t place(const std::vector<std::int64_t>& elements, std::int32_t z) {
  const auto at = std::lower_bound(elements.begin(), elements.end(), z);
  if (at == elements.end() || *at != z) {
    throw DataError(str("statistics: there is an atom of the element ", element_symbol(z),
                        ", which is not among those of the model. Add it to the elements, or leave "
                        "the structure out."));
  }
  return static_cast<std::size_t>(at - elements.begin());
}

double of_isolated(const Structure& s,
                   const std::vector<std::int64_t>& elements,
                   const std::vector<double>& e0) {
  double sum = 0.0;
  for (const std::int32_t z : s.species) sum += e0[place(elements, z)];
  return sum;
}

}  // namespace

std::vector<std::int64_t> elements_of(const std::vector<Structure>& structures) {
  std::set<std::int64_t> found;
  for (const Structure& s : structures) found.insert(s.species.begin(), s.species.end());
  return {found.begin(), found.end()};
}

std::vector<double> isolated_energies(const std::vector<Structure>& structures,
                                      const std::vector<std::int64_t>& elements) {
  std::vector<double> e0(elements.size());
  std::vector<bool> known(elements.size(), false);
  for (const Structure& s : structures) {
    if (!s.is_isolated_atom() || !s.energy) continue;
    if (!std::binary_search(elements.begin(), elements.end(), s.species[0])) continue;
    const std::size_t i = place(elements, s.species[0]);
    e0[i] = *s.energy;
    known[i] = true;
  }
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (known[i]) continue;
    throw DataError(str("statistics: no frame with config_type=IsolatedAtom for the element ",
                        element_symbol(static_cast<std::int32_t>(elements[i])),
                        ". Add one, give the energies by hand, or take E0s = average."));
  }
  return e0;
}

std::vector<double> average_energies(const std::vector<Structure>& structures,
                                     const std::vector<std::int64_t>& elements) {
  const auto columns = static_cast<Eigen::Index>(elements.size());
  std::vector<const Structure*> labelled;
  for (const Structure& s : structures)
    if (s.energy && s.atoms() > 0) labelled.push_back(&s);
  if (labelled.empty()) {
    throw DataError(
        "statistics: no structure has an energy (E0s are to be averages). Give energies per "
        "element by hand.");
  }
  Eigen::MatrixXd counts =
      Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(labelled.size()), columns);
  Eigen::VectorXd energies(counts.rows());
  for (Eigen::Index i = 0; i < counts.rows(); ++i) {
    const Structure& s = *labelled[static_cast<std::size_t>(i)];
    for (const std::int32_t z : s.species)
      counts(i, static_cast<Eigen::Index>(place(elements, z))) += 1.0;
    energies(i) = *s.energy;
  }
  const Eigen::VectorXd e0 = counts.completeOrthogonalDecomposition().solve(energies);
  return {e0.data(), e0.data() + e0.size()};
}

double mean_neighbors(const std::vector<Structure>& structures, double cutoff) {
  std::int64_t edges = 0;
  std::int64_t receivers = 0;
  for (const Structure& s : structures) {
    if (s.is_isolated_atom()) continue;
    std::vector<std::int64_t> keys(static_cast<std::size_t>(s.atoms()));
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int64_t>(i);
    const kernels::NeighborList list =
        kernels::find_neighbors(s.positions, s.atoms(), s.cell, cutoff, keys);
    edges += static_cast<std::int64_t>(list.receivers.size());
    for (std::size_t e = 0; e < list.receivers.size(); ++e)
      if (e == 0 || list.receivers[e] != list.receivers[e - 1]) ++receivers;
  }
  return receivers == 0 ? 1.0 : static_cast<double>(edges) / static_cast<double>(receivers);
}

ScaleShift scale_shift(const std::vector<Structure>& structures,
                       const std::vector<std::int64_t>& elements,
                       const std::vector<double>& e0,
                       EnergyScaling scaling) {
  std::vector<double> per_atom;
  double squares = 0.0;
  std::int64_t components = 0;
  for (const Structure& s : structures) {
    if (s.is_isolated_atom() || s.atoms() == 0) continue;
    if (s.energy) {
      per_atom.push_back((*s.energy - of_isolated(s, elements, e0)) /
                         static_cast<double>(s.atoms()));
    }
    for (const double f : s.forces) squares += f * f;
    components += static_cast<std::int64_t>(s.forces.size());
  }
  ScaleShift result;
  for (const double e : per_atom) result.shift += e / static_cast<double>(per_atom.size());
  if (scaling == EnergyScaling::kStd) {
    if (per_atom.size() < 2) {
      throw DataError(
          "statistics: fewer than two structures have an energy (their deviation is to be the "
          "scale). Use scaling = rms_forces_scaling or no_scaling.");
    }
    double variance = 0.0;
    for (const double e : per_atom) variance += (e - result.shift) * (e - result.shift);
    result.scale = std::sqrt(variance / static_cast<double>(per_atom.size() - 1));
  } else if (scaling == EnergyScaling::kRmsForces) {
    if (components == 0) {
      throw DataError(
          "statistics: no structure has forces (their size is to be the scale). Use scaling = "
          "std_scaling or no_scaling.");
    }
    result.scale = std::sqrt(squares / static_cast<double>(components));
  }
  if (!(result.scale > 0.0)) result.scale = 1.0;
  return result;
}

}  // namespace tessera::nn
