#include "weights.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <tessera/models/weight_names.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/weight_names.hpp>

#include "mesh_option.hpp"
#include "trained.hpp"

namespace tessera::app {
namespace {

nn::WeightNames names_of(const WeightsOptions& options, const Mesh& mesh) {
  nn::WeightNames names;
  nn::collective(mesh).together([&] { names = models::weight_names(options.names); });
  return names;
}

}  // namespace

int list_weights(const std::string& file) {
  const Mesh mesh = parse_mesh("");
  nn::collective(mesh).together([&] {
    const io::SafetensorsReader reader(file);
    if (mesh.rank() != 0) return;
    std::int64_t elements = 0;
    for (const auto& entry : reader.entries()) {
      fmt::print("{:48} {:5} {}\n", entry.name, io::safetensors_name(entry.dtype),
                 entry.shape.str());
      elements += entry.shape.product();
    }
    for (const auto& [key, text] : reader.metadata()) {
      const std::string line = text.substr(0, text.find('\n'));
      fmt::print("# {} = {}{}\n", key, line, line.size() < text.size() ? " ..." : "");
    }
    fmt::print("{} tensors, {} elements\n", reader.entries().size(), elements);
    std::cout << std::flush;
  });
  return 0;
}

int import_weights(const WeightsOptions& options) {
  const Mesh mesh = parse_mesh("");
  Trained trained = load_trained(RunFiles{options.run}.weights(), mesh);
  nn::import_weights(options.file, trained.model->network(), names_of(options, mesh));
  const RunFiles files{options.out};
  nn::collective(mesh).together([&] {
    if (mesh.rank() != 0) return;
    if (std::filesystem::exists(files.weights()))
      throw UsageError(
          str("weights: ", files.dir, " holds a model already. Choose another directory."));
    open_run(files, false);
    io::Settings all;
    trained.settings->declare(all);
    io::write_text(files.config(), all.toml());
  });
  save_trained(files.weights(), *trained.model, *trained.settings, trained.metadata);
  return 0;
}

int export_weights(const WeightsOptions& options) {
  const Mesh mesh = parse_mesh("");
  const Trained trained = load_trained(RunFiles{options.run}.weights(), mesh);
  nn::export_weights(options.file, trained.model->network(), names_of(options, mesh));
  return 0;
}

}  // namespace tessera::app
