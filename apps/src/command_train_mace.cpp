#include <memory>

#include "commands.hpp"
#include "potential.hpp"
#include "resume.hpp"
#include "train.hpp"
#include "trained.hpp"

namespace tessera::app {
namespace {

bool is_fixed(const std::string& key) { return key.starts_with("model."); }

constexpr const char* kPotentialMeshHelp =
    "Axes and sizes, e.g. data=2,x=2: 'data' shares out structures, the other axes cut each of "
    "them in space. Default: data over all processes.";

}  // namespace

void add_train_mace(CLI::App& train_command, Command& chosen) {
  CLI::App* const command = train_command.add_subcommand(
      "mace",
      "Equivariant potential of atoms; options are named as in the published training program.");
  struct State {
    State() { settings.declare(from.all); }
    AtomsSettings settings;
    CommandSettings from;
    TrainOptions options;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--out,--name", state->options.out, "Directory of the run.")->required();
  command->add_option("--mesh", state->options.mesh, kPotentialMeshHelp);
  command->add_option(
      "--config", state->from.config,
      "TOML file with settings (the run writes one); options given here go before it.");
  command->add_flag("--resume,--restart-latest,--restart_latest", state->options.resume,
                    "Continue the run in --out with the settings it was started with.");
  state->options.checkpoint_every = 0;
  command
      ->add_option("--checkpoint-every,--checkpoint_every", state->options.checkpoint_every,
                   "Steps between two checkpoints; 0: once a minute, at the end of an epoch.")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--keep", state->options.keep, kKeepHelp)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  state->from.add_to(*command, true);
  command->callback([state, &chosen] {
    chosen = [state] {
      state->from.load(state->options, is_fixed);
      if (state->settings.train_file.empty())
        throw UsageError("train: no structures. Give an extended XYZ file with --train-file.");
      return train_atoms(state->settings, state->options);
    };
  });
}

}  // namespace tessera::app
