#include <algorithm>
#include <memory>
#include <tessera/core/memory.hpp>

#include "bench_mesh.hpp"
#include "commands.hpp"
#include "inspect.hpp"
#include "mesh_option.hpp"
#include "planner.hpp"
#include "potential_workload.hpp"
#include "workload.hpp"

namespace tessera::app {
namespace {

/// What `plan MODEL` and `compare MODEL` share: the model, its settings, the size.
class Model {
 public:
  virtual ~Model() = default;

  nn::MakeWorkload workload(Update update) {
    from_.load();
    return make(domain(), update, spread());
  }

  /// This, for the planner. It must outlive what is returned.
  PlannedModel planned(const std::string& name) {
    from_.load();
    PlannedModel planned = {
        .name = name,
        .command = "train " + name,
        .size = domain(),
        .make = [this](const StepCosts::Size& size,
                       const Spread& spread) { return make(size, Update::kTraining, spread); },
        .axes = axes(static_cast<int>(domain().size())),
        .batch = batch(),
        .most_elements = most_elements(),
        .spread = spread(),
        .other_shards = spreads() && !from_.given.contains("training.shard"),
        .other_tensors = spreads() && !from_.given.contains("training.tensor")};
    if (!from_.config.empty()) planned.command += " --config " + from_.config;
    for (const auto& [key, text] : from_.given)
      planned.command += " " + option_of(key) + (text.empty() ? "" : " " + text);
    return planned;
  }

  virtual Spread spread() const { return {}; }  ///< as the settings say

  void add_to(CLI::App& command) {
    declare(from_.all);
    command.add_option("--size", size_, size_help())->required();
    command.add_option(
        "--config", from_.config,
        "TOML file with settings, say that of a run; options given here go before it.");
    from_.add_to(command, underscores());
  }

 protected:
  virtual void declare(io::Settings& all) = 0;
  virtual const char* size_help() const = 0;
  virtual bool underscores() const { return false; }
  virtual nn::MakeWorkload make(const std::vector<std::int64_t>& size,
                                Update update,
                                const Spread& spread) const = 0;
  /// Names for the mesh axes along the dimensions of a domain.
  virtual std::vector<std::string> axes(int dims) const = 0;
  virtual std::int64_t batch() const = 0;
  virtual bool spreads() const { return false; }  ///< whether its parameters can be spread
  /// Sizes of the domain up to which a plan takes seconds.
  virtual double most_elements() const { return 1e18; }

 private:
  std::vector<std::int64_t> domain() const {
    const Dims domain = parse_size(size_);
    return {domain.begin(), domain.end()};
  }
  std::string option_of(const std::string& key) const {
    std::string name = key.substr(key.rfind('.') + 1);
    if (!underscores()) std::replace(name.begin(), name.end(), '_', '-');
    return "--" + name;
  }

  CommandSettings from_;
  std::string size_;
};

/// A network from fields or points to the same.
class NetworkModel : public Model {
 public:
  explicit NetworkModel(const ModelEntry& entry) : settings_(entry) {}
  Spread spread() const override { return settings_.spread(); }

 private:
  void declare(io::Settings& all) override { settings_.declare(all); }
  const char* size_help() const override { return settings_.data->size_help(); }
  nn::MakeWorkload make(const std::vector<std::int64_t>& size,
                        Update update,
                        const Spread& spread) const override {
    return app::workload(settings_, size, update, spread);
  }
  std::vector<std::string> axes(int dims) const override {
    const std::vector<std::string> names = {"d", "h", "w"};
    return {names.end() - dims, names.end()};
  }
  std::int64_t batch() const override { return settings_.batch; }
  bool spreads() const override { return true; }

  RunSettings settings_;
};

class AtomsModel : public Model {
 private:
  void declare(io::Settings& all) override { settings_.declare(all); }
  const char* size_help() const override {
    return "Cells of quartz along each lattice vector, 9 atoms each, e.g. 4x4x4: 576 atoms.";
  }
  bool underscores() const override { return true; }
  nn::MakeWorkload make(const std::vector<std::int64_t>& size,
                        Update update,
                        const Spread&) const override {
    return atoms_workload(settings_, size, update);
  }
  std::vector<std::string> axes(int dims) const override {
    const std::vector<std::string> names = {"x", "y", "z"};
    return {names.begin(), names.begin() + dims};
  }
  std::int64_t batch() const override { return settings_.batch_size; }
  // One process makes the graph of all atoms.
  double most_elements() const override { return 4096.0 / static_cast<double>(batch()); }

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

struct PlanOptions {
  PlanRequest one;
  ProposalRequest several;
  bool check = false;
};

void add_options(CLI::App& command, PlanOptions& o) {
  CLI::Option* const mesh = command.add_option("--mesh", o.one.mesh, kMeshHelp);
  command.add_option("--json", o.one.json, "File for the whole plan.");
  command.add_flag("--every-rank", o.one.every_rank,
                   "Plan each of more than 64 ranks, instead of those that stand for all.");
  command.add_flag("--check", o.check,
                   "Under mpiexec: run real steps on the mesh (the best one), too, and compare "
                   "messages, bytes, memory and time.");
  CLI::Option* const ranks =
      command
          .add_option("--ranks", o.several.ranks,
                      "Propose meshes of so many ranks, with predicted times, and show how the "
                      "best kind scales.")
          ->check(CLI::Range(1, 1 << 16))
          ->excludes(mesh);
  command
      .add_option("--memory", o.several.memory, "What a rank has, e.g. 80GiB: larger plans go out.")
      ->needs(ranks);
  command.add_option("--latency", o.several.latency,
                     "Of a message, e.g. 2us. Default: measured between this job's processes; 2us "
                     "where there is only one.");
  command.add_option("--bandwidth", o.several.bandwidth,
                     "Of a message, e.g. 12.5GB/s or 100Gb/s. Default: measured; 12.5GB/s.");
  command.add_option("--scale-to", o.several.scaling, "Most ranks of the scaling tables; 0: none.")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 16))
      ->needs(ranks);
  command.add_option("--rows", o.several.rows, "Most meshes in the table.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->needs(ranks);
  command.add_option("--pictures", o.several.pictures, "Directory for plan.png and plan.svg.")
      ->needs(ranks);
}

int run_plan(Model& model, const std::string& name, PlanOptions o) {
  const bool several = o.several.ranks > 0;
  if (several && o.check && o.several.ranks != process().count) {
    throw UsageError(str("plan: --check runs on the ", process().count,
                         " processes of this job. Give --ranks ", process().count,
                         ", or start as many processes as ranks."));
  }
  if (!several && !o.check) {
    plan(model.workload(Update::kTraining), o.one);
    return 0;
  }
  if (!o.several.memory.empty()) parse_bytes(o.several.memory);
  const PlannedModel planned = model.planned(name);
  const MessageCost network = message_cost_of(o.several.latency, o.several.bandwidth);
  const StepCosts costs = StepCosts::measure(planned.size, [&](const StepCosts::Size& size) {
    return planned.make(size, planned.spread);
  });
  Choice choice = {.axes = {}, .spread = planned.spread};
  if (several) {
    o.several.json = o.one.json;
    choice = propose(planned, o.several, costs, network);
  } else {
    choice.axes = plan(planned.make(planned.size, planned.spread), o.one);
  }
  if (!o.check) return 0;
  return check_plan(planned.make(planned.size, choice.spread), choice.axes, costs, network);
}

const std::map<std::string, Update> kUpdates = {{"training", Update::kTraining},
                                                {"sgd", Update::kSgd}};

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
    const auto options = std::make_shared<PlanOptions>();
    add_options(*command, *options);
    command->callback([=, model = model, name = std::string(name), &chosen] {
      chosen = [=, model = model] { return run_plan(*model, name, *options); };
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
    command->add_option("--optimizer", *update, "How the weights change: as in training, or SGD.")
        ->transform(CLI::CheckedTransformer(kUpdates));
    command->callback([=, model = model, &chosen] {
      chosen = [=, model = model] {
        const nn::MakeWorkload workload = model->workload(*update);
        request->outputs = model->spread().tensor.empty();
        return app::compare(workload, *request);
      };
    });
  }
}

}  // namespace tessera::app
