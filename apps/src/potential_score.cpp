#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <tessera/autograd/autograd.hpp>
#include <tessera/models/mace_file.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/plot.hpp>

#include "mesh_option.hpp"
#include "potential.hpp"
#include "trained.hpp"

namespace tessera::app {
namespace {

std::string number(double value) { return fmt::format("{}", value); }

/// Adds the predictions of a batch to copies of its structures, in order of ids.
void keep_predictions(std::span<const nn::Structure* const> structures,
                      const models::MaceResult& result,
                      const nn::Graph& graph,
                      std::vector<nn::Structure>& kept) {
  const Tensor forces = replicate(result.forces);
  const Tensor ids = replicate(graph.ids);
  const Tensor graphs = replicate(graph.graph_of_node);
  const std::size_t first = kept.size();
  for (std::size_t g = 0; g < structures.size(); ++g) {
    nn::Structure s = *structures[g];
    const auto i = static_cast<std::int64_t>(g);
    s.info.emplace_back("MACE_energy", number(result.energy.at({i})));
    if (s.stress || s.virials) {
      std::string text;
      for (std::int64_t k = 0; k < 9; ++k) {
        if (k > 0) text += ' ';
        text += number(result.stress.at({i, k / 3, k % 3}));
      }
      s.info.emplace_back("MACE_stress", text);
    }
    s.columns.push_back({.name = "MACE_forces",
                         .type = 'R',
                         .width = 3,
                         .values = std::vector<std::string>(s.positions.size())});
    kept.push_back(std::move(s));
  }
  for (std::int64_t n = 0; n < ids.numel(); ++n) {
    nn::Structure& s = kept[first + static_cast<std::size_t>(graphs.at({n}))];
    const auto atom = static_cast<std::size_t>(ids.at({n}));
    for (std::size_t c = 0; c < 3; ++c) {
      s.columns.back().values[3 * atom + c] = number(forces.at({n, static_cast<std::int64_t>(c)}));
    }
  }
}

/// Predicted force components over labels, by element; nothing where no structure has forces.
void draw_forces(const std::string& path, const std::vector<nn::Structure>& predicted) {
  std::map<std::int32_t, io::PlotSeries> elements;
  double low = 0.0, high = 0.0;
  for (const nn::Structure& s : predicted) {
    for (std::size_t i = 0; i < s.forces.size(); ++i) {
      io::PlotSeries& dots = elements[s.species[i / 3]];
      dots.x.push_back(s.forces[i]);
      dots.y.push_back(std::stod(s.columns.back().values[i]));
      low = std::min(low, s.forces[i]);
      high = std::max(high, s.forces[i]);
    }
  }
  if (elements.empty()) return;
  std::vector<io::PlotSeries> series;
  for (auto& [z, dots] : elements) {
    dots.label = nn::element_symbol(z);
    dots.points = true;
    series.push_back(std::move(dots));
  }
  series.push_back({.label = "equal", .x = {low, high}, .y = {low, high}});
  io::draw_plot(series, {.title = "Forces",
                         .x_label = "label, eV/A",
                         .y_label = "model, eV/A",
                         .width = 640,
                         .height = 600})
      .save(path);
}

}  // namespace

Mesh parse_atoms_mesh(const std::string& text) {
  return parse_mesh(text.empty() ? "data=" + std::to_string(process().count) : text);
}

nn::BatchOptions batch_options(const Mesh& mesh, double cutoff) {
  nn::BatchOptions options{.cutoff = cutoff};
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (mesh.axis_name(a) != options.data_axis) options.domain_axes.push_back(mesh.axis_name(a));
  return options;
}

AtomsScore score_atoms(const models::Mace& model,
                       const std::vector<nn::Structure>& structures,
                       const Mesh& mesh,
                       std::int64_t batch_size,
                       const nn::AtomLossOptions* loss,
                       bool keep) {
  const NoGrad no_grad;
  AtomsScore score;
  const nn::BatchOptions options = batch_options(mesh, model.options().r_max);
  const auto size = static_cast<std::size_t>(batch_size);
  std::int64_t batches = 0;
  for (std::size_t from = 0; from < structures.size(); from += size) {
    std::vector<const nn::Structure*> batch;
    for (std::size_t i = from; i < std::min(from + size, structures.size()); ++i)
      batch.push_back(&structures[i]);
    const bool stress = std::any_of(batch.begin(), batch.end(),
                                    [](const nn::Structure* s) { return s->stress || s->virials; });
    const nn::Graph graph = nn::batch_graph(batch, mesh, options);
    const nn::AtomLabels labels = nn::batch_labels(batch, graph);
    const models::MaceResult result = model.compute(graph, {.stress = stress});
    score.errors.add(result, labels);
    if (loss != nullptr) {
      score.loss += reduced(nn::atom_loss(result, labels, *loss)).item();
      ++batches;
    }
    if (keep) keep_predictions(batch, result, graph, score.predicted);
  }
  if (batches > 0) score.loss /= static_cast<double>(batches);
  return score;
}

void check_elements(const std::vector<nn::Structure>& structures,
                    const std::string& file,
                    const std::vector<std::int64_t>& elements) {
  const auto names = [&] {
    std::string list;
    for (const std::int64_t z : elements)
      list += (list.empty() ? "" : ", ") + std::string(nn::element_symbol(static_cast<int>(z)));
    return list;
  };
  for (const nn::Structure& s : structures) {
    for (std::size_t i = 0; i < s.species.size(); ++i) {
      if (std::binary_search(elements.begin(), elements.end(), s.species[i])) continue;
      throw DataError(str("potential: ", file, ":", s.line, ": atom ", i + 1, " is of ",
                          nn::element_symbol(s.species[i]), ", which the model does not know (it ",
                          "knows ", names(),
                          "). Leave the structure out, or train with such atoms."));
    }
  }
}

void print_errors(const std::vector<NamedScore>& scores) {
  fmt::print("\n  {:<24} {:>22} {:>18} {:>24}\n", "set", "RMSE E / meV / atom", "RMSE F / meV / A",
             "RMSE stress / meV / A^3");
  for (const NamedScore& s : scores) {
    // Not a number: no structure has such a label.
    const auto text = [](double rmse, int digits) {
      return std::isnan(rmse) ? "-" : fmt::format("{:.{}f}", 1e3 * rmse, digits);
    };
    fmt::print("  {:<24} {:>22} {:>18} {:>24}\n", s.name, text(s.errors.energy_per_atom().rmse, 2),
               text(s.errors.forces().rmse, 2), text(s.errors.stress().rmse, 3));
  }
  std::fflush(stdout);
}

std::string model_file(const std::string& run) {
  return run.ends_with(".safetensors") || std::filesystem::is_regular_file(run)
             ? run
             : RunFiles{run}.weights();
}

PotentialFile::PotentialFile(const std::string& run)
    : path(model_file(run)), options(models::read_mace_options(path)) {
  dtype = io::SafetensorsReader(path).entry("embedding.weight").dtype;
}

bool is_atoms_run(const std::string& run) {
  const io::Metadata metadata = io::SafetensorsReader(model_file(run)).metadata();
  const auto kind = metadata.find("tessera.model");
  return kind != metadata.end() && kind->second == "mace";
}

int evaluate_atoms(const EvaluateAtomsOptions& options) {
  const Mesh mesh = parse_atoms_mesh(options.mesh);
  const io::Collective ranks = nn::collective(mesh);
  AtomsSettings settings;
  std::vector<nn::Structure> structures;
  std::string name = options.configs;
  PotentialFile file;
  ranks.together([&] {
    file = PotentialFile(options.run);
    io::Settings all;
    settings.declare(all);
    if (file.path != options.run) all.load(RunFiles{options.run}.config());
    if (name.empty()) name = settings.test_file.empty() ? settings.valid_file : settings.test_file;
    if (name.empty()) {
      throw UsageError(str("evaluate: ", options.run,
                           " names neither a test file nor a validation file. Give structures with "
                           "--configs."));
    }
    structures = io::read_extxyz(name, settings.keys);
    if (structures.empty())
      throw DataError(str("evaluate: ", name, " has no structures. Give others with --configs."));
    check_elements(structures, name, file.options.elements);
  });
  const models::Mace model = models::load_mace(file.path, file.options, mesh, file.dtype);
  AtomsScore score = score_atoms(model, structures, mesh, options.batch_size, nullptr, true);
  ranks.together([&] {
    if (mesh.rank() != 0) return;
    const std::string beside = options.run + (file.path == options.run ? "." : "/");
    io::write_extxyz(options.output.empty() ? beside + "predictions.xyz" : options.output,
                     score.predicted);
    draw_forces(beside + "forces.png", score.predicted);
    const nn::AtomErrors& e = score.errors;
    std::vector<std::pair<std::string, io::JsonValue>> fields = {
        {"configs", name}, {"structures", static_cast<std::int64_t>(structures.size())}};
    const auto add = [&](const char* label, const char* unit, const nn::AtomErrors::Error& error) {
      if (std::isnan(error.rmse)) return;  // no structure has such a label
      fields.emplace_back(str(label, ".rmse_", unit), 1e3 * error.rmse);
      fields.emplace_back(str(label, ".mae_", unit), 1e3 * error.mae);
    };
    add("energy", "meV_per_atom", e.energy_per_atom());
    add("forces", "meV_per_A", e.forces());
    add("stress", "meV_per_A3", e.stress());
    io::write_json(beside + "evaluation.json", fields);
    print_errors({{name.substr(name.find_last_of('/') + 1), e}});
  });
  return 0;
}

}  // namespace tessera::app
