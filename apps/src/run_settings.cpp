#include "run_settings.hpp"

#include <tessera/nn/muon.hpp>
#include <tessera/nn/optimizers.hpp>

#include "train.hpp"

namespace tessera::app {

RunSettings::RunSettings(const ModelEntry& of)
    : entry(of), data(of.data()), network(of.settings()) {}

void RunSettings::declare(io::Settings& s) {
  const io::Settings::Rule positive = {.min = 1};
  const io::Settings::Rule not_negative = {.min = 0};
  data->declare(s);
  network->declare(s);
  data->declare_around(s);
  s.add("training.steps", steps, "Optimiser steps.", positive);
  s.add("training.batch", batch, "Crops per step, over the whole mesh.", positive);
  s.add("training.lr", lr, "Learning rate after the warm-up.", not_negative);
  s.add("training.final_lr", final_lr, "Learning rate at the end of the cosine.", not_negative);
  s.add("training.warmup", warmup, "Steps in which the learning rate rises.", not_negative);
  s.add("training.optimizer", optimizer,
        "How the weights change. Rates differ: sgd takes ten times adamw's and more, lion a tenth; "
        "muon changes matrices, and vectors by AdamW.",
        {.choices = {"adamw", "adam", "sgd", "rmsprop", "adagrad", "lion", "lamb", "muon"}});
  s.add("training.momentum", momentum, "Of sgd (Nesterov's), rmsprop and muon.",
        {.min = 0, .max = 1});
  s.add("training.weight_decay", weight_decay,
        "Weight decay, on weights of two and more dimensions; of adam, sgd, rmsprop and adagrad a "
        "part of the gradient.",
        not_negative);
  s.add("training.clip", clip, "Largest norm of the gradient; 0: any.", not_negative);
  declare_nan(s, on_nan, nan_limit);
  s.add("training.ema", ema, "Decay of the average of the weights that is kept; 0: none.",
        {.min = 0, .max = 1});
  s.add("training.loss", loss, "What is minimised.", {.choices = {"mse", "l1", "huber"}});
  s.add("training.precision", precision, "Element type.", {.choices = {"f32", "f64"}});
  s.add("training.compute", compute,
        "Element type of activations: same as precision, or bf16 while parameters keep theirs.",
        {.choices = {"same", "bf16"}});
  s.add("training.recompute", recompute,
        "Modules by path (blocks.*) whose activations are computed again in the backward pass "
        "instead of being kept.");
  s.add("training.shard", shard,
        "What all ranks share of parameters' memory: the state of the optimiser (zero1), gradients "
        "too (zero2), parameters too (zero3).",
        {.choices = kShards});
  s.add("training.tensor", tensor,
        "Mesh axis that splits attention by heads and layers by channels; the domain may be split "
        "over it, too. compare then looks at gradients and weights alone.");
  s.add("training.seed", seed, "Key of all random numbers.");
}

DType RunSettings::dtype() const {
  return choose<DType>("precision", precision,
                       {{"f32", DType::kFloat32}, {"f64", DType::kFloat64}});
}

std::unique_ptr<optim::Optimizer> RunSettings::make_optimizer(
    const std::vector<nn::Parameter>& parameters) const {
  using namespace optim;
  const double decay = weight_decay;
  if (optimizer == "sgd") {
    return std::make_unique<Sgd>(
        parameters,
        SgdOptions{
            .lr = lr, .momentum = momentum, .nesterov = momentum > 0.0, .weight_decay = decay});
  }
  if (optimizer == "rmsprop") {
    return std::make_unique<Rmsprop>(
        parameters, RmspropOptions{.lr = lr, .momentum = momentum, .weight_decay = decay});
  }
  if (optimizer == "adagrad")
    return std::make_unique<Adagrad>(parameters, AdagradOptions{.lr = lr, .weight_decay = decay});
  if (optimizer == "lion")
    return std::make_unique<Lion>(parameters, LionOptions{.lr = lr, .weight_decay = decay});
  if (optimizer == "lamb")
    return std::make_unique<Lamb>(parameters, LambOptions{.lr = lr, .weight_decay = decay});
  if (optimizer == "muon") {
    return std::make_unique<Muon>(
        parameters, MuonOptions{.lr = lr, .momentum = momentum, .weight_decay = decay});
  }
  return std::make_unique<AdamW>(
      parameters, AdamWOptions{.lr = lr, .weight_decay = decay, .coupled = optimizer == "adam"});
}

}  // namespace tessera::app
