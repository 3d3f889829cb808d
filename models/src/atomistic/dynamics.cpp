#include <tessera/autograd/autograd.hpp>
#include <tessera/nn/io/suggest.hpp>

#include "collect.hpp"
#include "density.hpp"
#include "dynamics_state.hpp"

namespace tessera::atomistic {

namespace {

constexpr std::array<Ensemble, 4> kEnsembles = {Ensemble::kNve, Ensemble::kLangevin,
                                                Ensemble::kNoseHoover, Ensemble::kNpt};

}  // namespace

void check(const DynamicsOptions& o) {
  const auto positive = [](double value, const char* what) {
    if (!(value > 0.0) || !std::isfinite(value))
      throw UsageError(str("dynamics: ", what, " is ", value, ". Give a positive number."));
  };
  positive(o.dt, "the time step");
  positive(o.thermostat_time, "the time of the thermostat");
  positive(o.barostat_time, "the time of the barostat");
  if (o.ensemble != Ensemble::kNve) positive(o.temperature, "the temperature");
  if (!(o.friction >= 0.0) || !(o.skin >= 0.0) || !std::isfinite(o.pressure) ||
      !(o.temperature >= 0.0)) {
    throw UsageError(str("dynamics: friction ", o.friction, ", skin ", o.skin, ", pressure ",
                         o.pressure, ", temperature ", o.temperature,
                         " (none may be negative but the pressure). Change them."));
  }
}

const char* name(Ensemble ensemble) {
  switch (ensemble) {
    case Ensemble::kNve:
      return "nve";
    case Ensemble::kLangevin:
      return "langevin";
    case Ensemble::kNoseHoover:
      return "nose-hoover";
    case Ensemble::kNpt:
      return "npt";
  }
  return "?";
}

Ensemble ensemble_of(const std::string& text) {
  std::vector<std::string> names;
  for (const Ensemble e : kEnsembles) {
    if (text == name(e)) return e;
    names.emplace_back(name(e));
  }
  throw UsageError(str("dynamics: there is no ensemble `", text, "`.",
                       io::did_you_mean(text, names), " Give nve, langevin, nose-hoover or npt."));
}

Dynamics::Dynamics(const nn::Structure& start,
                   std::shared_ptr<const Potential> potential,
                   const Mesh& mesh,
                   const DynamicsOptions& options)
    : state_(std::make_unique<State>(std::move(potential), mesh, options)) {
  const NoGrad no_grad;
  State& s = *state_;
  if (start.atoms() == 0)
    throw UsageError("dynamics: the structure has no atoms. Give at least one.");
  const std::vector<double> given = column_values(start, "vel", 3);
  s.domain.emplace(start, mesh, s.domain_options());
  s.begin();
  if (given.empty()) {
    s.draw_velocities(options.start_temperature < 0.0 ? options.temperature
                                                      : options.start_temperature);
  } else {
    s.set_velocities(given);
  }
}

Dynamics::Dynamics(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dynamics::~Dynamics() = default;
Dynamics::Dynamics(Dynamics&&) noexcept = default;

Dynamics Dynamics::resume(const std::string& path,
                          std::shared_ptr<const Potential> potential,
                          const Mesh& mesh,
                          const DynamicsOptions& options) {
  const NoGrad no_grad;
  auto state = std::make_unique<State>(std::move(potential), mesh, options);
  state->read(path);
  return Dynamics(std::move(state));
}

void Dynamics::advance(std::int64_t count) {
  const NoGrad no_grad;
  for (std::int64_t k = 0; k < count; ++k) state_->take_step();
}

std::int64_t Dynamics::step() const { return state_->step; }

void Dynamics::set_temperature(double kelvin) {
  if (!(kelvin > 0.0) || !std::isfinite(kelvin))
    throw UsageError(str("dynamics: the temperature is ", kelvin, ". Give a positive number."));
  state_->options.temperature = kelvin;
}

Thermo Dynamics::thermo() const {
  const State& s = *state_;
  const std::array<double, 3> twice = s.twice_kinetic();
  Thermo t;
  t.step = s.step;
  t.time = static_cast<double>(s.step) * s.options.dt;
  t.potential = s.evaluation.energy.at({0});
  t.kinetic = 0.5 * s.sum(twice);
  t.total = t.potential + t.kinetic;
  t.temperature = 2.0 * t.kinetic / (s.freedom() * kBoltzmann);
  t.volume = s.volume();
  t.conserved = t.total;
  if (t.volume > 0.0) {
    const double trace = s.virial(0, 0) + s.virial(1, 1) + s.virial(2, 2);
    t.pressure = (s.sum(twice) + trace) / (3.0 * t.volume) * kGigaPascal;
    t.density = density_of(s.total_mass, t.volume);
  }
  const double chain = s.atoms_chain.energy(s.freedom(), s.kt(), s.options.thermostat_time);
  if (s.options.ensemble == Ensemble::kLangevin) t.conserved -= s.heat;
  if (s.options.ensemble == Ensemble::kNoseHoover) t.conserved += chain;
  if (s.options.ensemble == Ensemble::kNpt) {
    t.conserved += chain + 0.5 * s.box_twice_kinetic() +
                   s.box_chain.energy(s.box_freedom(), s.kt(), s.options.barostat_time) +
                   s.options.pressure / kGigaPascal * t.volume;
  }
  return t;
}

const Evaluation& Dynamics::evaluation() const { return state_->evaluation; }
const nn::AtomDomain& Dynamics::domain() const { return *state_->domain; }
const Tensor& Dynamics::velocities() const { return state_->velocities; }

nn::Structure Dynamics::snapshot(int root) const {
  const State& s = *state_;
  const nn::Graph& graph = s.domain->graph();
  nn::Structure frame = s.domain->collect(root);
  frame.forces = collect_values(s.evaluation.forces, graph, root);
  const std::vector<double> velocities = collect_values(s.velocities, graph, root);
  if (s.mesh.rank() != root) return frame;
  frame.energy = s.evaluation.energy.at({0});
  if (s.volume() > 0.0) {
    std::array<double, 9> stress{};
    for (std::size_t k = 0; k < 9; ++k) stress[k] = -s.virial(k / 3, k % 3) / s.volume();
    frame.stress = stress;
  }
  frame.columns.push_back(real_column("vel", 3, velocities));
  frame.info.emplace_back("step", std::to_string(s.step));
  frame.info.emplace_back("time", str(static_cast<double>(s.step) * s.options.dt));
  return frame;
}

void Dynamics::save(const std::string& path) {
  const NoGrad no_grad;
  state_->write(path);
  state_->read(path);
}

}  // namespace tessera::atomistic
