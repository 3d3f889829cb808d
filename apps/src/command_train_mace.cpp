#include <memory>

#include "commands.hpp"
#include "potential.hpp"
#include "train.hpp"
#include "trained.hpp"

namespace tessera::app {
namespace {

/// What a run is about does not change when it goes on.
void check_resumed(const io::Settings& all,
                   const std::map<std::string, std::string>& before,
                   const std::string& run) {
  for (const auto& [key, value] : before) {
    if (!key.starts_with("model.") || all.get(key) == value) continue;
    throw UsageError(str("train: --resume with ", key, " = ", all.get(key), ", but ", run,
                         " was started with ", value.empty() ? "none" : value,
                         ". Leave it out, or start another run."));
  }
}

constexpr const char* kPotentialMeshHelp =
    "Axes and sizes, e.g. data=2,x=2: 'data' shares out structures, the other axes cut each of "
    "them in space. Default: data over all processes.";

}  // namespace

void add_train_mace(CLI::App& train_command, Command& chosen) {
  CLI::App* const command = train_command.add_subcommand(
      "mace",
      "Equivariant potential of atoms; options are named as in the published training program.");
  struct State {
    State() { settings.declare(all); }
    AtomsSettings settings;
    io::Settings all;
    TrainOptions options;
    std::string config;
    std::map<std::string, std::string> given;
  };
  const auto state = std::make_shared<State>();
  command->add_option("--out,--name", state->options.out, "Directory of the run.")->required();
  command->add_option("--mesh", state->options.mesh, kPotentialMeshHelp);
  command->add_option(
      "--config", state->config,
      "TOML file with settings (the run writes one); options given here go before it.");
  command->add_flag("--resume,--restart-latest,--restart_latest", state->options.resume,
                    "Continue the run in --out with the settings it was started with.");
  add_settings(*command, state->all, state->given, true);
  command->callback([state, &chosen] {
    chosen = [state] {
      const bool resume = state->options.resume;
      if (resume) state->all.load(RunFiles{state->options.out}.config());
      std::map<std::string, std::string> before;
      for (const io::Settings::Entry& e : state->all.entries())
        before[e.key] = state->all.get(e.key);
      if (!state->config.empty()) state->all.load(state->config);
      for (const auto& [key, text] : state->given) state->all.set(key, text);
      if (resume) check_resumed(state->all, before, state->options.out);
      if (state->settings.train_file.empty())
        throw UsageError("train: no structures. Give an extended XYZ file with --train-file.");
      return train_atoms(state->settings, state->options);
    };
  });
}

}  // namespace tessera::app
