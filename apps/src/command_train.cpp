#include <algorithm>
#include <cctype>
#include <memory>

#include "commands.hpp"
#include "resume.hpp"
#include "train.hpp"
#include "trained.hpp"

namespace tessera::app {

void CommandSettings::add_to(CLI::App& command, bool underscores) {
  for (const io::Settings::Entry& e : all.entries()) {
    const std::size_t dot = e.key.find('.');
    std::string name = e.key == "data.file" ? "data" : e.key.substr(dot + 1);
    const std::string plain = name;
    std::replace(name.begin(), name.end(), '_', '-');
    if (underscores && name != plain) name += ",--" + plain;
    std::string group = e.key.substr(0, dot);
    group[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(group[0])));
    std::string help = e.help;
    if (!e.standard.empty()) help += " [" + e.standard + "]";
    CLI::Option* const option = command.add_option_function<std::string>(
        "--" + name,
        [this, key = e.key, flag = e.flag](const std::string& text) {
          given[key] = flag && text.empty() ? "true" : text;
        },
        help);
    if (e.flag && underscores) option->expected(0, 1);
    option->take_last()
        ->type_name(e.choices.empty() ? e.type : CLI::detail::join(e.choices, "|"))
        ->group(group);
  }
}

void CommandSettings::load() {
  if (!config.empty()) all.load(config);
  for (const auto& [key, text] : given) all.set(key, text);
}

void CommandSettings::load(const TrainOptions& run, bool (*fixed)(const std::string& key)) {
  if (run.resume) all.load(RunFiles{run.out}.config());
  std::map<std::string, std::string> before;
  for (const io::Settings::Entry& e : all.entries()) before[e.key] = all.get(e.key);
  load();
  if (!run.resume) return;
  for (const auto& [key, value] : before) {
    if (!fixed(key) || all.get(key) == value) continue;
    throw UsageError(str("train: --resume with ", key, " = ", all.get(key), ", but ", run.out,
                         " was started with ", value.empty() ? "none" : value,
                         ". Leave it out, or start another run."));
  }
}

namespace {

/// Where the data lies and how long and how fast a run trains may change.
bool is_fixed(const std::string& key) {
  return key.starts_with("model.") || (key.starts_with("data.") && key != "data.file");
}

void add_model(CLI::App& train_command, const ModelEntry& entry, Command& chosen) {
  CLI::App* const command = train_command.add_subcommand(entry.name, entry.help);
  struct State {
    explicit State(const ModelEntry& of) : settings(of) { settings.declare(from.all); }
    RunSettings settings;
    CommandSettings from;
    TrainOptions options;
  };
  const auto state = std::make_shared<State>(entry);
  command->add_option("--out", state->options.out, "Directory of the run.")->required();
  command->add_option("--mesh", state->options.mesh, kMeshHelp);
  command->add_option(
      "--config", state->from.config,
      "TOML file with settings (the run writes one); options given here go before it.");
  command->add_flag("--resume", state->options.resume,
                    "Continue the run in --out with the settings it was started with.");
  command
      ->add_option("--checkpoint-every", state->options.checkpoint_every,
                   "Steps between two checkpoints.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--keep", state->options.keep, kKeepHelp)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--prefetch", state->options.prefetch,
                   "Batches that a thread reads ahead, behind the steps; they take memory beside "
                   "what a plan says.")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  command->add_flag(
      "--profile", state->options.profile,
      "Record what some steps do: RUN/profile/rank*.json (a trace for ui.perfetto.dev "
      "or chrome://tracing) and RUN/profile/ops.txt (the ten costliest ops).");
  command
      ->add_option("--profile-steps", state->options.profile_steps,
                   "Steps to record, after the first two.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  state->from.add_to(*command);
  command->callback([state, &chosen] {
    chosen = [state] {
      state->from.load(state->options, is_fixed);
      if (state->settings.data->file_name().empty()) {
        throw UsageError("train: no data. Give the data file with --data.");
      }
      return train(state->settings, state->options);
    };
  });
}

}  // namespace

void add_train(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand("train", "Train a model.");
  command->require_subcommand(1);
  for (const ModelEntry& entry : model_entries()) add_model(*command, entry, chosen);
  add_train_mace(*command, chosen);
}

}  // namespace tessera::app
