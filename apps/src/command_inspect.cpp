#include <memory>

#include "bench_mesh.hpp"
#include "commands.hpp"
#include "inspect.hpp"
#include "potential_workload.hpp"
#include "workload.hpp"

namespace tessera::app {
namespace {

/// What `plan MODEL` and `compare MODEL` share: the model, its settings, the size.
class Model {
 public:
  virtual ~Model() = default;

  nn::MakeWorkload workload(Update update) {
    if (!config_.empty()) all_.load(config_);
    for (const auto& [key, text] : given_) all_.set(key, text);
    const Dims domain = parse_size(size_);
    return make({domain.begin(), domain.end()}, update);
  }

  void add_to(CLI::App& command) {
    declare(all_);
    command.add_option("--size", size_, size_help())->required();
    command.add_option(
        "--config", config_,
        "TOML file with settings, say that of a run; options given here go before it.");
    add_settings(command, all_, given_, underscores());
  }

 protected:
  virtual void declare(io::Settings& all) = 0;
  virtual const char* size_help() const = 0;
  virtual bool underscores() const { return false; }
  virtual nn::MakeWorkload make(const std::vector<std::int64_t>& size, Update update) const = 0;

 private:
  io::Settings all_;
  std::map<std::string, std::string> given_;
  std::string config_;
  std::string size_;
};

/// A network from fields or points to the same.
class NetworkModel : public Model {
 public:
  explicit NetworkModel(const ModelEntry& entry) : settings_(entry) {}

 private:
  void declare(io::Settings& all) override { settings_.declare(all); }
  const char* size_help() const override { return settings_.data->size_help(); }
  nn::MakeWorkload make(const std::vector<std::int64_t>& size, Update update) const override {
    return app::workload(settings_, size, update);
  }

  RunSettings settings_;
};

class AtomsModel : public Model {
 private:
  void declare(io::Settings& all) override { settings_.declare(all); }
  const char* size_help() const override {
    return "Cells of quartz along each lattice vector, 9 atoms each, e.g. 4x4x4: 576 atoms.";
  }
  bool underscores() const override { return true; }
  nn::MakeWorkload make(const std::vector<std::int64_t>& size, Update update) const override {
    return atoms_workload(settings_, size, update);
  }

  AtomsSettings settings_;
};

struct Subject {
  const char* name;
  const char* help;
  std::shared_ptr<Model> model;
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const ModelEntry& entry : model_entries())
    all.push_back({entry.name, entry.help, std::make_shared<NetworkModel>(entry)});
  all.push_back({"mace", "Equivariant potential of atoms.", std::make_shared<AtomsModel>()});
  return all;
}

const std::map<std::string, Update> kUpdates = {{"adamw", Update::kAdamW}, {"sgd", Update::kSgd}};

}  // namespace

void add_plan(CLI::App& program, Command& chosen) {
  CLI::App* const plan = program.add_subcommand(
      "plan",
      "Say what a training step will cost, per layer and rank: layout, windows, messages, bytes, "
      "memory. Needs one process, whatever the mesh.");
  plan->require_subcommand(1);
  for (const auto& [name, help, model] : subjects()) {
    CLI::App* const command = plan->add_subcommand(name, help);
    model->add_to(*command);
    const auto request = std::make_shared<PlanRequest>();
    command->add_option("--mesh", request->mesh, kMeshHelp);
    command->add_option("--json", request->json, "File for the whole plan.");
    command->add_flag("--every-rank", request->every_rank,
                      "Plan each of more than 64 ranks, instead of those that stand for all.");
    command->add_flag("--check", request->check,
                      "Under mpiexec: run real steps on the mesh, too, and compare the counters.");
    command->callback([=, model = model, &chosen] {
      chosen = [=, model = model] { return app::plan(model->workload(Update::kAdamW), *request); };
    });
  }
}

void add_compare(CLI::App& program, Command& chosen) {
  CLI::App* const compare = program.add_subcommand(
      "compare",
      "Train a few steps on the mesh and on one rank, and name the first layer and step that "
      "differ. Under mpiexec.");
  compare->require_subcommand(1);
  for (const auto& [name, help, model] : subjects()) {
    CLI::App* const command = compare->add_subcommand(name, help);
    model->add_to(*command);
    const auto request = std::make_shared<CompareRequest>();
    const auto update = std::make_shared<Update>(Update::kSgd);
    // Those of a whole training.
    for (const char* const setting : {"--steps", "--optimizer"}) {
      if (CLI::Option* const o = command->get_option_no_throw(setting); o != nullptr)
        command->remove_option(o);
    }
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
    command->callback([=, model = model, &chosen] {
      chosen = [=, model = model] { return app::compare(model->workload(*update), *request); };
    });
  }
}

}  // namespace tessera::app
