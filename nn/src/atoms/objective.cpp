#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/atoms/objective.hpp>

namespace tessera::nn {
namespace {

using Kind = AtomLossOptions::Kind;

/// Huber's function of d by element: d^2 / 2 up to delta, delta (|d| - delta / 2) beyond.
Tensor huber(const Tensor& d, const Tensor& delta) {
  const Tensor size = abs(d);
  const Tensor inner = minimum(size, delta);
  return 0.5 * square(inner) + delta * (size - inner);
}

/// Deltas of force labels [N, 3] by the length of the label: [N, 1].
Tensor force_deltas(const Tensor& forces, double delta) {
  const Tensor squares = sum(square(forces), {1}, true);
  const auto below = [&](double limit) {
    return cast(less(squares, Tensor::scalar(forces.mesh(), limit * limit, squares.dtype())),
                squares.dtype());
  };
  return (below(100.0) * 0.3 + below(200.0) * 0.3 + below(300.0) * 0.3 + 0.1) * delta;
}

/// Mean over all elements of the weighted error.
Tensor term(const Tensor& difference,
            const Tensor& weight,
            const AtomLossOptions& options,
            const Tensor& delta) {
  if (options.kind == Kind::kWeighted) return mean(weight * square(difference));
  return mean(huber(weight * difference, delta));
}

double value_of(const Tensor& x, std::int64_t i) {
  return load_as_double(x.local().data, x.dtype(), i);
}

}  // namespace

Tensor atom_loss(const AtomPrediction& prediction,
                 const AtomLabels& labels,
                 const AtomLossOptions& o) {
  const Tensor delta = Tensor::scalar(labels.energy.mesh(), o.huber_delta, labels.energy.dtype());
  Tensor loss;
  const auto add = [&](double factor, const Tensor& part) {
    loss = loss.defined() ? loss + factor * part : factor * part;
  };
  const std::int64_t graphs = labels.atoms.size(0);
  if (o.energy != 0.0 && prediction.energy.defined()) {
    add(o.energy,
        term((prediction.energy - labels.energy) / labels.atoms, labels.energy_weight, o, delta));
  }
  if (o.forces != 0.0 && prediction.forces.defined()) {
    add(o.forces,
        term(prediction.forces - labels.forces, labels.forces_weight, o,
             o.kind == Kind::kUniversal ? force_deltas(labels.forces, o.huber_delta) : delta));
  }
  if (o.stress != 0.0 && prediction.stress.defined())
    add(o.stress, term(prediction.stress - labels.stress, labels.stress_weight, o, delta));
  if (o.virials != 0.0 && prediction.virials.defined()) {
    const Tensor atoms = reshape(labels.atoms, {graphs, 1, 1});
    add(o.virials,
        term((prediction.virials - labels.virials) / atoms, labels.virials_weight, o, delta));
  }
  if (!loss.defined()) {
    throw UsageError(
        "atom_loss: nothing to compare (all weights are 0, or nothing was predicted). Give a "
        "weight for energies or forces.");
  }
  return loss;
}

AtomErrors::Error AtomErrors::Sums::error() const {
  if (count == 0.0) {
    const double none = std::numeric_limits<double>::quiet_NaN();
    return {none, none};
  }
  return {std::sqrt(squares / count), sizes / count};
}

void AtomErrors::Sums::add(double difference) {
  squares += difference * difference;
  sizes += std::abs(difference);
  count += 1.0;
}

void AtomErrors::add(const AtomPrediction& prediction, const AtomLabels& labels) {
  const NoGrad no_grad;
  const std::int64_t graphs = labels.atoms.size(0);
  if (prediction.energy.defined()) {
    const Tensor energy = reduced(prediction.energy);
    for (std::int64_t g = 0; g < graphs; ++g) {
      if (value_of(labels.energy_weight, g) == 0.0) continue;
      const double difference = value_of(energy, g) - value_of(labels.energy, g);
      energy_.add(difference);
      energy_per_atom_.add(difference / value_of(labels.atoms, g));
    }
  }
  if (prediction.stress.defined()) {
    const Tensor stress = reduced(prediction.stress);
    for (std::int64_t i = 0; i < 9 * graphs; ++i) {
      if (value_of(labels.stress_weight, i / 9) == 0.0) continue;
      stress_.add(value_of(stress, i) - value_of(labels.stress, i));
    }
  }
  if (prediction.forces.defined()) {
    const Tensor zero = Tensor::scalar(labels.forces.mesh(), 0.0, labels.forces_weight.dtype());
    const Tensor known = cast(greater(labels.forces_weight, zero), DType::kFloat64);
    const Tensor difference = cast(prediction.forces - labels.forces, DType::kFloat64) * known;
    // One reduction of all three.
    const Tensor sums =
        reduced(concat({reshape(sum(square(difference)), {1}), reshape(sum(abs(difference)), {1}),
                        reshape(3.0 * sum(known), {1})},
                       0));
    forces_.squares += value_of(sums, 0);
    forces_.sizes += value_of(sums, 1);
    forces_.count += value_of(sums, 2);
  }
}

}  // namespace tessera::nn
