#pragma once

#include <array>
#include <cmath>
#include <optional>
#include <tessera/kernels/random.hpp>
#include <tessera/models/atomistic/dynamics.hpp>

#include "sums.hpp"
#include "thermostat.hpp"

namespace tessera::atomistic {

/// Four normal numbers per atom, of which three are used; the same whatever rank draws them.
std::vector<double> normal_numbers(const std::int64_t* ids,
                                   std::int64_t count,
                                   kernels::PhiloxKey key);
void check(const DynamicsOptions& o);

struct Dynamics::State {
  Mesh mesh;
  DynamicsOptions options;
  std::shared_ptr<const Potential> potential;
  std::optional<nn::AtomDomain> domain;
  Tensor velocities;
  std::vector<double> masses;  // of own atoms
  Evaluation evaluation;
  double total_mass = 0.0;
  std::int64_t step = 0;
  Chain atoms_chain;
  Chain box_chain;
  std::array<double, 3> strain_rate{};  // 1/fs
  double heat = 0.0;                    // eV, from the noise

  State(std::shared_ptr<const Potential> p, const Mesh& m, const DynamicsOptions& o)
      : mesh(m), options(o), potential(std::move(p)) {
    check(options);
  }

  nn::DomainOptions domain_options() const {
    return {.cutoff = potential->cutoff(),
            .skin = options.skin,
            .cutting = options.cutting,
            .axes = options.axes};
  }

  std::int64_t own() const { return static_cast<std::int64_t>(masses.size()); }
  std::int64_t atoms() const { return domain->graph().node_count(); }
  double kt() const { return kBoltzmann * options.temperature; }
  /// Degrees of freedom: noise moves the centre of mass, too.
  double freedom() const {
    const auto n = static_cast<double>(3 * atoms());
    return options.ensemble == Ensemble::kLangevin ? n : std::max(1.0, n - 3.0);
  }
  double* v() { return velocities.mutable_local().as<double>(); }
  const double* v() const { return velocities.local().as<double>(); }
  const double* force() const { return evaluation.forces.local().as<double>(); }
  double virial(std::size_t a, std::size_t b) const {
    return evaluation.virials.local().as<double>()[3 * a + b];
  }
  double volume() const {
    const nn::Cell& cell = domain->cell();
    return cell.periodic[0] && cell.periodic[1] && cell.periodic[2] ? cell.volume() : 0.0;
  }

  /// After the graph was made: what belongs to own atoms.
  void take_masses() {
    const View species = domain->graph().species.local();
    masses.clear();
    for (std::int64_t i = 0; i < species.size(); ++i) {
      masses.push_back(nn::element_mass(static_cast<std::int32_t>(species.as<std::int64_t>()[i])));
    }
  }

  /// After a domain was made.
  void begin();

  void evaluate() { evaluation = potential->evaluate(domain->graph()); }

  /// m v^2 along each axis, eV, of all ranks.
  std::array<double, 3> twice_kinetic() const {
    std::array<double, 3> sum{};
    const double* const u = v();
    for (std::int64_t i = 0; i < own(); ++i)
      for (std::size_t c = 0; c < 3; ++c)
        sum[c] += masses[static_cast<std::size_t>(i)] * u[3 * i + static_cast<std::int64_t>(c)] *
                  u[3 * i + static_cast<std::int64_t>(c)] / kAcceleration;
    all_reduce(domain->graph().nodes(), sum);
    return sum;
  }

  void scale_velocities(double by) {
    double* const u = v();
    for (std::int64_t i = 0; i < 3 * own(); ++i) u[i] *= by;
  }

  /// v <- v exp(-a h) + F/m h exp(-a h / 2) sinhc(a h / 2), a of each axis.
  void kick(double h, const std::array<double, 3>& drag = {}) {
    double* const u = v();
    const double* const f = force();
    std::array<double, 3> keep{};
    std::array<double, 3> push{};
    for (std::size_t c = 0; c < 3; ++c) {
      keep[c] = std::exp(-drag[c] * h);
      push[c] = kAcceleration * h * std::exp(-0.5 * drag[c] * h) * sinhc(0.5 * drag[c] * h);
    }
    for (std::int64_t i = 0; i < own(); ++i) {
      for (std::size_t c = 0; c < 3; ++c) {
        const auto k = 3 * i + static_cast<std::int64_t>(c);
        u[k] = u[k] * keep[c] + push[c] * f[k] / masses[static_cast<std::size_t>(i)];
      }
    }
  }

  Tensor drifted(const Tensor& from, double h) const {
    Tensor to = Tensor::empty(from.layout(), DType::kFloat64);
    const auto* const r = from.local().as<double>();
    auto* const out = to.mutable_local().as<double>();
    for (std::int64_t i = 0; i < 3 * own(); ++i) out[i] = r[i] + h * v()[i];
    return to;
  }

  void arrived(bool rebuilt) {
    if (rebuilt) {
      velocities = domain->carry(velocities);
      take_masses();
    }
    evaluate();
  }

  void noise(double h);

  double sum(const std::array<double, 3>& x) const { return x[0] + x[1] + x[2]; }

  void thermostat(double h) {
    scale_velocities(
        atoms_chain.advance(sum(twice_kinetic()), freedom(), kt(), options.thermostat_time, h));
  }

  // Barostat: each axis has mass (freedom + 3) kT time^2 / 3, one strain rate or three.
  double box_mass() const {
    return (freedom() + 3.0) * kt() * options.barostat_time * options.barostat_time / 3.0;
  }
  double box_freedom() const { return options.isotropic ? 1.0 : 3.0; }
  double box_twice_kinetic() const {
    double e = 0.0;
    for (const double s : strain_rate) e += box_mass() * s * s;
    return e;
  }
  void box_thermostat(double h) {
    const double by =
        box_chain.advance(box_twice_kinetic(), box_freedom(), kt(), options.barostat_time, h);
    for (double& s : strain_rate) s *= by;
  }
  void box_kick(double h);
  std::array<double, 3> drag() const {
    const double common = sum(strain_rate) / freedom();
    return {strain_rate[0] + common, strain_rate[1] + common, strain_rate[2] + common};
  }
  bool box_drift(double h);

  void take_step();

  /// Velocities [N, 3] in the order of the graph, of numbers by id.
  Tensor new_velocities() const {
    return Tensor::zeros(domain->graph().nodes().with_inserted_dim(1, 3), DType::kFloat64);
  }

  void draw_velocities(double temperature);

  void set_velocities(const std::vector<double>& by_id) {
    velocities = new_velocities();
    const auto* const ids = domain->graph().ids.local().as<std::int64_t>();
    for (std::int64_t i = 0; i < own(); ++i)
      for (std::int64_t c = 0; c < 3; ++c)
        v()[3 * i + c] = by_id[static_cast<std::size_t>(3 * ids[i] + c)];
  }

  // Everything beside the atoms, as one list.
  std::vector<double> extras() const;
  static constexpr std::int64_t kExtras = 9 + 12 + 3 + 1;

  void write(const std::string& path) const;
  void read(const std::string& path);
};

}  // namespace tessera::atomistic
