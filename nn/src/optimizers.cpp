#include <algorithm>
#include <array>
#include <cmath>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/optim_methods.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/optimizers.hpp>

#include "optim_support.hpp"

namespace tessera::optim {
namespace {

Names rmsprop_names(const RmspropOptions& options) {
  Names names = {"square_avg"};
  if (options.momentum != 0.0) names.emplace_back("momentum_buffer");
  if (options.centered) names.emplace_back("grad_avg");
  return names;
}

}  // namespace

Rmsprop::Rmsprop(const std::vector<nn::Parameter>& parameters, const RmspropOptions& options)
    : Optimizer(parameters,
                always(rmsprop_names(options)),
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void Rmsprop::update(const std::vector<Change>& changes) {
  std::vector<kernels::OptimSegment> segments = segments_of(changes);
  if (options_.momentum == 0.0) {
    for (kernels::OptimSegment& segment : segments) std::swap(segment.second, segment.third);
  }
  kernels::rmsprop_step(
      segments, {.alpha = options_.alpha, .eps = options_.eps, .momentum = options_.momentum});
}

Adagrad::Adagrad(const std::vector<nn::Parameter>& parameters, const AdagradOptions& options)
    : Optimizer(parameters,
                always({"sum"}),
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void Adagrad::update(const std::vector<Change>& changes) {
  std::vector<kernels::OptimSegment> segments = segments_of(changes);
  for (kernels::OptimSegment& segment : segments)
    segment.rate /= 1.0 + static_cast<double>(steps() - 1) * options_.lr_decay;
  kernels::adagrad_step(segments, options_.initial, options_.eps);
}

Lion::Lion(const std::vector<nn::Parameter>& parameters, const LionOptions& options)
    : Optimizer(parameters,
                always({"exp_avg"}),
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void Lion::update(const std::vector<Change>& changes) {
  kernels::lion_step(segments_of(changes), options_.beta1, options_.beta2);
}

Lamb::Lamb(const std::vector<nn::Parameter>& parameters, const LambOptions& options)
    : Optimizer(parameters,
                always({"exp_avg", "exp_avg_sq"}),
                options.lr,
                options.weight_decay,
                options.decay_vectors,
                options.groups),
      options_(options) {}

void Lamb::update(const std::vector<Change>& changes) {
  std::vector<kernels::OptimSegment> segments = segments_of(changes);
  std::vector<Tensor> directions;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    directions.push_back(Tensor::empty(changes[i].value.layout(), changes[i].value.dtype()));
    segments[i].third = directions[i].mutable_local();
  }
  kernels::lamb_direction(
      segments,
      {.beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps, .step = steps()});
  // Squares of value and direction, parameter by parameter.
  std::vector<double> squares(2 * parameters().size(), 0.0);
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (dry_run() || !io::is_first_replica(changes[i].value.layout())) continue;
    squares[2 * changes[i].index] = kernels::sum_of_squares(std::array{segments[i].parameter});
    squares[2 * changes[i].index + 1] = kernels::sum_of_squares(std::array{segments[i].third});
  }
  reduce_numbers(squares, parameters());
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const double value = std::sqrt(squares[2 * changes[i].index]);
    const double direction = std::sqrt(squares[2 * changes[i].index + 1]);
    double trust = value > 0.0 && direction > 0.0 ? value / direction : 1.0;
    if (options_.largest_trust > 0.0) trust = std::min(trust, options_.largest_trust);
    kernels::OptimSegment& segment = segments[i];
    segment = {.parameter = segment.parameter,
               .gradient = segment.third,
               .first = {},
               .second = {},
               .rate = segment.rate * trust};
  }
  kernels::sgd_step(segments, 0.0, false);
}

}  // namespace tessera::optim
