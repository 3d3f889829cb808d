#include "potential_settings.hpp"

#include <charconv>
#include <tessera/models/mace_file.hpp>

#include "network.hpp"
#include "train.hpp"

namespace tessera::app {
namespace {

/// `H:-13.6,O:-432.1` -> energies of `elements`.
std::vector<double> given_energies(const std::string& text,
                                   const std::vector<std::int64_t>& elements) {
  std::vector<double> e0(elements.size());
  std::vector<bool> known(elements.size(), false);
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string item = text.substr(from, end - from);
    const std::size_t colon = std::min(item.find(':'), item.size());
    const std::int32_t z = nn::element_number(item.substr(0, colon));
    double value = 0.0;
    const char* const first = item.data() + std::min(colon + 1, item.size());
    const char* const last = item.data() + item.size();
    const auto [stop, error] = std::from_chars(first, last, value);
    if (z < 1 || error != std::errc() || stop != last) {
      throw UsageError(str("E0s: \"", text,
                           "\" is neither isolated, average nor a list of elements with energies. "
                           "Write for example H:-13.57,O:-432.54 (eV)."));
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements[i] != z) continue;
      e0[i] = value;
      known[i] = true;
    }
    from = end + 1;
  }
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (known[i]) continue;
    throw UsageError(str("E0s: no energy for ",
                         nn::element_symbol(static_cast<std::int32_t>(elements[i])),
                         ", which occurs in the training structures. Add it."));
  }
  return e0;
}

}  // namespace

void AtomsSettings::declare(io::Settings& s) {
  const io::Settings::Rule positive = {.min = 1};
  const io::Settings::Rule not_negative = {.min = 0};
  s.add("data.train_file", train_file, "Extended XYZ file of training structures.");
  s.add("data.valid_file", valid_file, "Structures to validate on; none: a part of train_file.");
  s.add("data.valid_fraction", valid_fraction, "That part.", {.min = 0, .max = 1});
  s.add("data.test_file", test_file, "Structures that are scored at the end.");
  s.add("data.energy_key", keys.energy_key, "Label in the file; none: REF_energy, energy.");
  s.add("data.forces_key", keys.forces_key, "Label in the file; none: REF_forces, forces.");
  s.add("data.stress_key", keys.stress_key, "Label in the file; none: REF_stress, stress.");
  s.add("data.virials_key", keys.virials_key, "Label in the file; none: REF_virials, virials.");

  s.add("model.foundation_model", foundation_model,
        "Trained model (safetensors) to start from: its weights, and all of its options and "
        "statistics in place of those here.");
  s.add("model.model", model, "MACE: no shift, and an agnostic first block.",
        {.choices = {"ScaleShiftMACE", "MACE"}});
  s.add("model.r_max", mace.r_max, "Cutoff, A.", {.min = 0.1});
  s.add("model.num_channels", mace.channels, "Channels of each l.", positive);
  s.add("model.max_L", mace.max_L, "Largest l of features between layers.", not_negative);
  s.add("model.max_ell", mace.max_ell, "Largest l of harmonics and messages.", not_negative);
  s.add("model.correlation", mace.correlation, "Order of products of messages.",
        {.min = 1, .max = 3});
  s.add("model.num_interactions", mace.layers, "Layers.", positive);
  s.add("model.num_radial_basis", mace.radial_basis, "Bessel functions.", positive);
  s.add("model.num_cutoff_basis", mace.cutoff_power, "Power of the cutoff's envelope.", {.min = 2});
  s.add("model.radial_MLP", mace.radial_mlp, "Hidden units of the radial networks.");
  s.add("model.MLP_irreps", mace.readout, "Hidden units (scalars) of the last readout.", positive);
  s.add("model.radial_intervals", mace.radial_intervals,
        "Radial networks run on so many intervals, edges read splines; 0: on every edge.",
        not_negative);
  s.add("model.interaction_first", interaction_first, "First block.",
        {.choices = {"residual", "agnostic"}});
  s.add("model.density", density, "Messages are divided by a learned density.");
  s.add("model.pair_repulsion", pair_repulsion, "Repulsion of nuclei (ZBL).");
  s.add("model.distance_transform", distance_transform, "Of distances in the radial basis.",
        {.choices = {"None", "Agnesi"}});
  s.add("model.couplings", couplings, "Basis of the products: as published, or without redundancy.",
        {.choices = {"full", "reduced"}});
  s.add("model.E0s", e0s,
        "Energies of isolated atoms: isolated (frames with config_type=IsolatedAtom), average "
        "(least squares), a file of such frames (.xyz), or H:-13.57,O:-432.54 (eV).");
  s.add("model.scaling", scaling, "Scale of interaction energies.",
        {.choices = {"rms_forces_scaling", "std_scaling", "no_scaling"}});

  s.add("training.batch_size", batch_size, "Structures per step, over the whole mesh.", positive);
  s.add("training.valid_batch_size", valid_batch_size, "Structures at once in validation.",
        positive);
  s.add("training.max_num_epochs", max_num_epochs, "Passes over the training structures.",
        positive);
  s.add("training.patience", patience, "Validations without a better one before the end.",
        positive);
  s.add("training.eval_interval", eval_interval, "Epochs between validations.", positive);
  s.add("training.loss", loss, "What is minimised.",
        {.choices = {"weighted", "forces_only", "stress", "virials", "huber", "universal"}});
  s.add("training.energy_weight", weights.energy, "Weight of energies per atom.", not_negative);
  s.add("training.forces_weight", weights.forces, "Weight of forces.", not_negative);
  s.add("training.stress_weight", weights.stress, "Weight of stress, where the loss has it.",
        not_negative);
  s.add("training.virials_weight", weights.virials, "Weight of virials, where the loss has them.",
        not_negative);
  s.add("training.huber_delta", weights.huber_delta, "Where huber becomes linear.", {.min = 1e-12});
  s.add("training.optimizer", optimizer, "Adam: the decay is part of the gradient.",
        {.choices = {"adam", "adamw"}});
  s.add("training.lr", lr, "Learning rate.", not_negative);
  s.add("training.weight_decay", weight_decay, "Of the linear layers after messages and products.",
        not_negative);
  s.add("training.amsgrad", amsgrad, "The largest mean square so far scales steps.");
  s.add("training.scheduler", scheduler, "How the learning rate falls.",
        {.choices = {"ReduceLROnPlateau", "ExponentialLR"}});
  s.add("training.lr_factor", lr_factor, "Factor of ReduceLROnPlateau.", {.min = 0, .max = 1});
  s.add("training.scheduler_patience", scheduler_patience, "Validations that may be no better.",
        not_negative);
  s.add("training.lr_scheduler_gamma", lr_scheduler_gamma, "Factor of ExponentialLR per epoch.",
        {.min = 0, .max = 1});
  s.add("training.clip_grad", clip_grad, "Largest norm of the gradient; 0: any.", not_negative);
  declare_nan(s, on_nan, nan_limit);
  s.add("training.ema", ema, "Validate and keep an average of the weights.");
  s.add("training.ema_decay", ema_decay, "Its decay.", {.min = 0, .max = 1});
  s.add("training.stage_two", stage_two, "End with more weight on energies.");
  s.add("training.start_stage_two", start_stage_two, "First epoch of it; 0: after three quarters.",
        not_negative);
  s.add("training.stage_two_lr", stage_two_lr, "Its learning rate.", not_negative);
  s.add("training.stage_two_energy_weight", stage_two_energy_weight, "Its weight.", not_negative);
  s.add("training.stage_two_forces_weight", stage_two_forces_weight, "Its weight.", not_negative);
  s.add("training.stage_two_stress_weight", stage_two_stress_weight, "Its weight.", not_negative);
  s.add("training.stage_two_virials_weight", stage_two_virials_weight, "Its weight.", not_negative);
  s.add("training.default_dtype", default_dtype, "Element type of the model.",
        {.choices = {"float64", "float32"}});
  s.add("training.seed", seed, "Key of all random numbers.");
}

DType AtomsSettings::dtype() const {
  return choose<DType>("default_dtype", default_dtype,
                       {{"float64", DType::kFloat64}, {"float32", DType::kFloat32}});
}

nn::AtomLossOptions AtomsSettings::loss_options(bool second_stage) const {
  nn::AtomLossOptions o = weights;
  if (second_stage) {
    o.energy = stage_two_energy_weight;
    o.forces = stage_two_forces_weight;
    o.stress = stage_two_stress_weight;
    o.virials = stage_two_virials_weight;
  }
  if (loss == "huber") o.kind = nn::AtomLossOptions::Kind::kHuber;
  if (loss == "universal") o.kind = nn::AtomLossOptions::Kind::kUniversal;
  if (loss == "forces_only") o.energy = 0.0;
  if (loss != "stress" && loss != "huber" && loss != "universal") o.stress = 0.0;
  if (loss != "virials") o.virials = 0.0;
  return o;
}

nn::EnergyScaling AtomsSettings::energy_scaling() const {
  return choose<nn::EnergyScaling>("scaling", scaling,
                                   {{"rms_forces_scaling", nn::EnergyScaling::kRmsForces},
                                    {"std_scaling", nn::EnergyScaling::kStd},
                                    {"no_scaling", nn::EnergyScaling::kNone}});
}

std::int64_t AtomsSettings::second_stage_epoch() const {
  return start_stage_two > 0 ? start_stage_two : max_num_epochs * 3 / 4;
}

models::MaceOptions AtomsSettings::model_options(const std::vector<nn::Structure>& train) const {
  using FirstBlock = models::MaceOptions::FirstBlock;
  if (!foundation_model.empty()) return models::read_mace_options(foundation_model);
  models::MaceOptions o = mace;
  o.elements = nn::elements_of(train);
  o.first_block = interaction_first == "agnostic" || model == "MACE" ? FirstBlock::kAgnostic
                                                                     : FirstBlock::kResidual;
  o.density = density;
  o.pair_repulsion = pair_repulsion;
  o.agnesi = distance_transform == "Agnesi";
  o.couplings =
      couplings == "reduced" ? kernels::CouplingBasis::kReduced : kernels::CouplingBasis::kFull;
  o.e0 = e0s == "isolated"       ? nn::isolated_energies(train, o.elements)
         : e0s == "average"      ? nn::average_energies(train, o.elements)
         : e0s.ends_with(".xyz") ? nn::isolated_energies(io::read_extxyz(e0s, keys), o.elements)
                                 : given_energies(e0s, o.elements);
  const nn::ScaleShift scale = nn::scale_shift(train, o.elements, o.e0, energy_scaling());
  o.scale = scale.scale;
  o.shift = model == "MACE" ? 0.0 : scale.shift;
  o.avg_num_neighbors = nn::mean_neighbors(train, o.r_max);
  o.seed = seed;
  return o;
}

}  // namespace tessera::app
