#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/models/atomistic/dynamics.hpp>
#include <tessera/models/atomistic/relax.hpp>

#include "collect.hpp"
#include "sums.hpp"

namespace tessera::atomistic {

namespace {

using Matrix = std::array<double, 9>;  // row-major

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{};
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t j = 0; j < 3; ++j)
      for (std::size_t k = 0; k < 3; ++k) c[3 * i + j] += a[3 * i + k] * b[3 * k + j];
  return c;
}

Matrix inverse(const Matrix& m) {
  Matrix c{};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      const std::size_t a = (j + 1) % 3, b = (j + 2) % 3, p = (i + 1) % 3, q = (i + 2) % 3;
      c[3 * i + j] = m[3 * a + p] * m[3 * b + q] - m[3 * a + q] * m[3 * b + p];
    }
  }
  const double det = m[0] * c[0] + m[1] * c[3] + m[2] * c[6];
  for (double& x : c) x /= det;
  return c;
}

Matrix transposed(const Matrix& m) {
  return {m[0], m[3], m[6], m[1], m[4], m[7], m[2], m[5], m[8]};
}

void check(const nn::Structure& start, const RelaxOptions& o) {
  if (!(o.force > 0.0) || !(o.stress > 0.0) || o.steps < 0 || !(o.dt > 0.0) ||
      !(o.longest_step > 0.0) || !(o.skin >= 0.0) || !std::isfinite(o.pressure)) {
    throw UsageError(str("relax: force ", o.force, ", stress ", o.stress, ", steps ", o.steps,
                         ", dt ", o.dt, ", longest step ", o.longest_step,
                         " (all must be positive). Change them."));
  }
  if (start.atoms() == 0) throw UsageError("relax: the structure has no atoms. Give at least one.");
  const auto& p = start.cell.periodic;
  if (o.cell && !(p[0] && p[1] && p[2])) {
    throw UsageError(
        "relax: the box does not repeat along all axes (it has no stress). Relax the atoms alone.");
  }
}

/// Coordinates x = r F^-T of atoms (F: deformation of the first box) and, where the box relaxes,
/// F scaled by the number of atoms; forces and velocities go with them. The numbers of the box are
/// those of every rank.
class Fire {
 public:
  Fire(const nn::Structure& start,
       const Potential& potential,
       const Mesh& mesh,
       const RelaxOptions& options)
      : potential_(potential),
        options_(options),
        domain_(start,
                mesh,
                {.cutoff = potential.cutoff(),
                 .skin = options.skin,
                 .cutting = options.cutting,
                 .axes = options.axes}),
        first_cell_(start.cell),
        scale_(static_cast<double>(start.atoms())),
        dt_(options.dt) {
    velocities_ = Tensor::zeros(domain_.positions().layout(), DType::kFloat64);
    evaluate();
  }

  RelaxStep state(std::int64_t step) const {
    const auto* const f = evaluation_.forces.local().as<double>();
    double most = 0.0;
    for (std::int64_t i = 0; i < own(); ++i) {
      const double square =
          f[3 * i] * f[3 * i] + f[3 * i + 1] * f[3 * i + 1] + f[3 * i + 2] * f[3 * i + 2];
      most = std::isnan(square) ? square : std::max(most, square);
    }
    all_reduce(domain_.graph().nodes(), {&most, 1}, ReduceOp::kMax);
    RelaxStep s{step, evaluation_.energy.at({0}), std::sqrt(most), 0.0};
    if (!options_.cell) return s;
    const double volume = domain_.cell().volume();
    s.energy += pressure() * volume;
    for (const double x : pull()) s.stress = std::max(s.stress, std::abs(x) / volume);
    return s;
  }

  bool converged(const RelaxStep& s) const {
    return s.force <= options_.force && (!options_.cell || s.stress <= options_.stress);
  }

  void step() {
    // Forces on x: f F; on the box: pull F^-T / scale.
    const Matrix box_force = force_of_box();
    const Tensor forces = Tensor::empty(velocities_.layout(), DType::kFloat64);
    auto* const g = forces.mutable_local().as<double>();
    const auto* const f = evaluation_.forces.local().as<double>();
    for (std::int64_t i = 0; i < own(); ++i) {
      for (std::size_t c = 0; c < 3; ++c) {
        g[3 * i + static_cast<std::int64_t>(c)] = f[3 * i] * deformation_[c] +
                                                  f[3 * i + 1] * deformation_[3 + c] +
                                                  f[3 * i + 2] * deformation_[6 + c];
      }
    }
    auto* const v = velocities_.mutable_local().as<double>();
    std::array<double, 3> sums{};  // v.f, f.f, v.v
    for (std::int64_t k = 0; k < 3 * own(); ++k) {
      sums[0] += v[k] * g[k];
      sums[1] += g[k] * g[k];
      sums[2] += v[k] * v[k];
    }
    all_reduce(domain_.graph().nodes(), sums);
    for (std::size_t k = 0; k < 9; ++k) {
      sums[0] += box_velocity_[k] * box_force[k];
      sums[1] += box_force[k] * box_force[k];
      sums[2] += box_velocity_[k] * box_velocity_[k];
    }
    double keep = 0.0;
    double mix = 0.0;
    if (sums[0] > 0.0) {
      keep = 1.0 - mixing_;
      mix = sums[1] > 0.0 ? mixing_ * std::sqrt(sums[2] / sums[1]) : 0.0;
      if (++downhill_ > kDelay) {
        dt_ = std::min(1.1 * dt_, 10.0 * options_.dt);
        mixing_ *= 0.99;
      }
    } else {
      mixing_ = kMixing;
      dt_ *= 0.5;
      downhill_ = 0;
    }
    double longest = 0.0;
    for (std::int64_t k = 0; k < 3 * own(); ++k) {
      v[k] = keep * v[k] + (mix + dt_) * g[k];
      longest = std::max(longest, std::abs(v[k]));
    }
    all_reduce(domain_.graph().nodes(), {&longest, 1}, ReduceOp::kMax);
    for (std::size_t k = 0; k < 9; ++k) {
      box_velocity_[k] = keep * box_velocity_[k] + (mix + dt_) * box_force[k];
      longest = std::max(longest, std::abs(box_velocity_[k]));
    }
    const double h = longest * dt_ > options_.longest_step ? options_.longest_step / longest : dt_;
    advance(h);
  }

  nn::Structure structure() const {
    const nn::Graph& graph = domain_.graph();
    nn::Structure s = domain_.collect(0);
    s.forces = collect_values(evaluation_.forces, graph, 0);
    if (graph.nodes().mesh().rank() != 0) return s;
    s.energy = evaluation_.energy.at({0});
    const auto& p = s.cell.periodic;
    if (p[0] && p[1] && p[2]) {
      std::array<double, 9> stress{};
      for (std::size_t k = 0; k < 9; ++k) stress[k] = -virials()[k] / s.cell.volume();
      s.stress = stress;
    }
    return s;
  }

 private:
  static constexpr double kMixing = 0.1;
  static constexpr int kDelay = 5;

  std::int64_t own() const { return domain_.graph().nodes().local_shape()[0]; }
  double pressure() const { return options_.pressure / kGigaPascal; }
  const double* virials() const { return evaluation_.virials.local().as<double>(); }
  void evaluate() { evaluation_ = potential_.evaluate(domain_.graph()); }

  /// -d(E + p V)/dstrain, eV.
  Matrix pull() const {
    Matrix w{};
    std::copy(virials(), virials() + 9, w.begin());
    for (std::size_t k = 0; k < 9; k += 4) w[k] -= pressure() * domain_.cell().volume();
    return w;
  }
  Matrix force_of_box() const {
    if (!options_.cell) return {};
    Matrix g = product(pull(), transposed(inverse(deformation_)));
    for (double& x : g) x /= scale_;
    return g;
  }

  void advance(double h) {
    const auto* const v = velocities_.local().as<double>();
    const auto* const r = domain_.positions().local().as<double>();
    const Tensor to = Tensor::empty(velocities_.layout(), DType::kFloat64);
    auto* const out = to.mutable_local().as<double>();
    Matrix next = deformation_;
    if (options_.cell)
      for (std::size_t k = 0; k < 9; ++k) next[k] += h * box_velocity_[k] / scale_;
    // r' = F' (F^-1 r + h v)
    const Matrix back = inverse(deformation_);
    for (std::int64_t i = 0; i < own(); ++i) {
      std::array<double, 3> x{};
      for (std::size_t a = 0; a < 3; ++a) {
        x[a] = h * v[3 * i + static_cast<std::int64_t>(a)];
        for (std::size_t b = 0; b < 3; ++b)
          x[a] += back[3 * a + b] * r[3 * i + static_cast<std::int64_t>(b)];
      }
      for (std::size_t a = 0; a < 3; ++a) {
        out[3 * i + static_cast<std::int64_t>(a)] =
            next[3 * a] * x[0] + next[3 * a + 1] * x[1] + next[3 * a + 2] * x[2];
      }
    }
    nn::Cell cell = domain_.cell();
    for (std::size_t k = 0; options_.cell && k < 3; ++k) {
      for (std::size_t a = 0; a < 3; ++a) {
        cell.vectors[k][a] = next[3 * a] * first_cell_.vectors[k][0] +
                             next[3 * a + 1] * first_cell_.vectors[k][1] +
                             next[3 * a + 2] * first_cell_.vectors[k][2];
      }
    }
    deformation_ = next;
    if (domain_.move(to, cell)) velocities_ = domain_.carry(velocities_);
    evaluate();
  }

  const Potential& potential_;
  RelaxOptions options_;
  nn::AtomDomain domain_;
  nn::Cell first_cell_;
  double scale_;
  double dt_;
  double mixing_ = kMixing;
  int downhill_ = 0;
  Matrix deformation_ = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  Matrix box_velocity_{};
  Tensor velocities_;
  Evaluation evaluation_;
};

}  // namespace

Relaxed relax(const nn::Structure& start,
              const Potential& potential,
              const Mesh& mesh,
              const RelaxOptions& options,
              const std::function<void(const RelaxStep&)>& report) {
  const NoGrad no_grad;
  check(start, options);
  Fire fire(start, potential, mesh, options);
  Relaxed result;
  for (std::int64_t k = 0;; ++k) {
    result.last = fire.state(k);
    result.converged = fire.converged(result.last);
    if (report) report(result.last);
    if (result.converged || k == options.steps) break;
    fire.step();
  }
  result.structure = fire.structure();
  return result;
}

}  // namespace tessera::atomistic
