#include <memory>

#include "bench_mesh.hpp"
#include "commands.hpp"
#include "inspect.hpp"
#include "workload.hpp"

namespace tessera::app {
namespace {

/// What `plan MODEL` and `compare MODEL` share: the model, its settings, the size.
struct Model {
  explicit Model(const ModelEntry& entry) : settings(entry) { settings.declare(all); }
  RunSettings settings;
  io::Settings all;
  std::map<std::string, std::string> given;
  std::string config;
  std::string size;

  nn::MakeWorkload workload(Update update) {
    if (!config.empty()) all.load(config);
    for (const auto& [key, text] : given) all.set(key, text);
    const Dims domain = parse_size(size);
    return app::workload(settings, {domain.begin(), domain.end()}, update);
  }
};

std::shared_ptr<Model> add_model(CLI::App& command, const ModelEntry& entry) {
  const auto model = std::make_shared<Model>(entry);
  command.add_option("--size", model->size, model->settings.data->size_help())->required();
  command.add_option(
      "--config", model->config,
      "TOML file with settings, say that of a run; options given here go before it.");
  add_settings(command, model->all, model->given);
  return model;
}

const std::map<std::string, Update> kUpdates = {{"adamw", Update::kAdamW}, {"sgd", Update::kSgd}};

}  // namespace

void add_plan(CLI::App& program, Command& chosen) {
  CLI::App* const plan = program.add_subcommand(
      "plan",
      "Say what a training step will cost, per layer and rank: layout, windows, messages, bytes, "
      "memory. Needs one process, whatever the mesh.");
  plan->require_subcommand(1);
  for (const ModelEntry& entry : model_entries()) {
    CLI::App* const command = plan->add_subcommand(entry.name, entry.help);
    const std::shared_ptr<Model> model = add_model(*command, entry);
    const auto request = std::make_shared<PlanRequest>();
    command->add_option("--mesh", request->mesh, kMeshHelp);
    command->add_option("--json", request->json, "File for the whole plan.");
    command->add_flag("--every-rank", request->every_rank,
                      "Plan each of more than 64 ranks, instead of those that stand for all.");
    command->add_flag("--check", request->check,
                      "Under mpiexec: run real steps on the mesh, too, and compare the counters.");
    command->callback([=, &chosen] {
      chosen = [=] { return app::plan(model->workload(Update::kAdamW), *request); };
    });
  }
}

void add_compare(CLI::App& program, Command& chosen) {
  CLI::App* const compare = program.add_subcommand(
      "compare",
      "Train a few steps on the mesh and on one rank, and name the first layer and step that "
      "differ. Under mpiexec.");
  compare->require_subcommand(1);
  for (const ModelEntry& entry : model_entries()) {
    CLI::App* const command = compare->add_subcommand(entry.name, entry.help);
    const std::shared_ptr<Model> model = add_model(*command, entry);
    const auto request = std::make_shared<CompareRequest>();
    const auto update = std::make_shared<Update>(Update::kSgd);
    // `training.steps` is that of a whole training.
    if (CLI::Option* const steps = command->get_option_no_throw("--steps"); steps != nullptr)
      command->remove_option(steps);
    command->add_option("--mesh", request->mesh, kMeshHelp);
    command->add_option("--steps", request->steps, "Steps of training.")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    command
        ->add_option("--tolerance", request->tolerance,
                     "Difference over largest magnitude of a tensor that is rounding; 0: by "
                     "element type, 1e-3 for f32, 1e-9 for f64.")
        ->capture_default_str();
    command->add_option("--optimizer", *update, "How the weights change.")
        ->transform(CLI::CheckedTransformer(kUpdates));
    command->callback([=, &chosen] {
      chosen = [=] { return app::compare(model->workload(*update), *request); };
    });
  }
}

}  // namespace tessera::app
