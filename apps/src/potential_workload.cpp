#include "potential_workload.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tessera/autograd/autograd.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/models/atomistic/silica.hpp>

#include "potential.hpp"

namespace tessera::app {
namespace {

/// Atoms of quartz out of place by up to 0.05 A, another way in each structure, with labels of
/// order 1.
std::vector<nn::Structure> made_up(const std::vector<std::int64_t>& size, std::int64_t count) {
  std::array<std::int64_t, 3> cells = {1, 1, 1};
  for (std::size_t k = 0; k < size.size(); ++k) cells[k] = size[k];
  const nn::Structure crystal = atomistic::quartz(cells);
  std::vector<nn::Structure> all;
  for (std::int64_t n = 0; n < count; ++n) {
    nn::Structure s = crystal;
    s.forces.resize(s.positions.size());
    for (std::size_t i = 0; i < s.positions.size(); ++i) {
      const double phase = 1.3 * static_cast<double>(i) + 0.7 * static_cast<double>(n);
      s.positions[i] += 0.05 * std::sin(phase);
      s.forces[i] = std::cos(phase);
    }
    s.energy = static_cast<double>(s.atoms()) * (0.1 * std::sin(static_cast<double>(n)) - 6.0);
    s.stress = {0.01, 0, 0, 0, 0.02, 0, 0, 0, -0.01};
    all.push_back(std::move(s));
  }
  return all;
}

models::MaceOptions options_of(const AtomsSettings& settings) {
  // Of one cell: statistics of large crystals are the same and take long. Energies of isolated
  // atoms do not matter here.
  std::vector<nn::Structure> few = made_up({}, 2);
  for (const std::int32_t z : {8, 14}) {
    few.emplace_back();
    few.back().species = {z};
    few.back().positions = {0.0, 0.0, 0.0};
    few.back().energy = -5.0;
    few.back().config_type = "IsolatedAtom";
  }
  models::MaceOptions o = settings.model_options(few);
  for (const std::int64_t z : {8, 14}) {
    if (!std::binary_search(o.elements.begin(), o.elements.end(), z))
      throw UsageError(
          "mace: the model does not know O and Si, of which the made-up structures are. Leave "
          "model.foundation_model out.");
  }
  return o;
}

class AtomsWorkload : public nn::Workload {
 public:
  AtomsWorkload(const AtomsSettings& settings,
                const std::vector<std::int64_t>& size,
                Update update,
                const Mesh& mesh)
      : settings_(settings), model_(options_of(settings), mesh, settings.dtype()) {
    std::vector<nn::Structure> structures = made_up(size, settings.batch_size);
    graph_ = nn::batch_graph(structures, mesh, batch_options(mesh, model_.options().r_max));
    labels_ = nn::batch_labels(structures, graph_);
    if (!dry_run()) number_rows();
    const optim::AdamWOptions adamw = optimizer_options(settings);
    updater_.emplace(model_.parameters(), update,
                     std::make_unique<optim::AdamW>(model_.parameters(), adamw), adamw.weight_decay,
                     settings.clip_grad,
                     settings.ema ? std::optional(settings.ema_decay) : std::nullopt);
  }

  nn::Module& model() override { return model_; }

  Tensor loss(std::int64_t) override {
    const nn::AtomLossOptions options = settings_.loss_options(false);
    const bool stress = options.stress != 0.0 || options.virials != 0.0;
    return nn::atom_loss(model_.compute(graph_, {.stress = stress, .create_graph = true}), labels_,
                         options);
  }

  Tensor in_order(const Tensor& gathered, const Layout& layout) const override {
    if (layout.dims() == 0 || !layout.is_split(0)) return gathered;
    const std::int64_t rows = layout.shape()[0];
    const std::vector<std::int64_t>* order = nullptr;
    if (rows == graph_.node_count()) order = &node_order_;
    if (rows == graph_.edge_count()) order = &edge_order_;
    if (order == nullptr) return {};
    return Tensor::from_function(
        gathered.layout(),
        [&](const Index& i) {
          Index from = i;
          from[0] = (*order)[static_cast<std::size_t>(i[0])];
          return gathered.at(from);
        },
        gathered.dtype());
  }

  void update() override { updater_->step(); }

 private:
  /// Rows by structure and atom; edges by their receiver, at which they are in the same order on
  /// any mesh.
  void number_rows() {
    const Tensor ids = replicate(graph_.ids);
    const Tensor graphs = replicate(graph_.graph_of_node);
    const Tensor receivers = replicate(graph_.receivers);
    const auto number = [](const Tensor& x, std::int64_t i) {
      return x.local().as<const std::int64_t>()[i];
    };
    node_order_.resize(static_cast<std::size_t>(graph_.node_count()));
    std::iota(node_order_.begin(), node_order_.end(), 0);
    std::sort(node_order_.begin(), node_order_.end(), [&](std::int64_t a, std::int64_t b) {
      return std::pair(number(graphs, a), number(ids, a)) <
             std::pair(number(graphs, b), number(ids, b));
    });
    std::vector<std::int64_t> place(node_order_.size());
    for (std::size_t i = 0; i < place.size(); ++i)
      place[static_cast<std::size_t>(node_order_[i])] = static_cast<std::int64_t>(i);
    edge_order_.resize(static_cast<std::size_t>(graph_.edge_count()));
    std::iota(edge_order_.begin(), edge_order_.end(), 0);
    const auto receiver = [&](std::int64_t e) {
      return place[static_cast<std::size_t>(number(receivers, e))];
    };
    std::stable_sort(edge_order_.begin(), edge_order_.end(),
                     [&](std::int64_t a, std::int64_t b) { return receiver(a) < receiver(b); });
  }

  const AtomsSettings& settings_;
  models::Mace model_;
  nn::Graph graph_;
  nn::AtomLabels labels_;
  std::vector<std::int64_t> node_order_;  ///< the row of each place
  std::vector<std::int64_t> edge_order_;
  std::optional<Updater> updater_;
};

}  // namespace

nn::MakeWorkload atoms_workload(const AtomsSettings& settings,
                                const std::vector<std::int64_t>& size,
                                Update update) {
  options_of(settings);  // throws what does not fit
  return [&settings, size, update](const Mesh& mesh) {
    return std::make_unique<AtomsWorkload>(settings, size, update, mesh);
  };
}

}  // namespace tessera::app
