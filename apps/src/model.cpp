#include "model.hpp"

#include <tessera/models/tensor_parallel.hpp>
#include <tessera/nn/shard.hpp>

#include "run_settings.hpp"

namespace tessera::app {

Model::Model(const RunSettings& settings, Transform transform, const Mesh& mesh)
    : transform_(std::move(transform)) {
  transform_.seed = settings.seed;
  settings.data->complete(transform_);
  network_ = settings.network->make(transform_, mesh, settings.dtype());
  if (settings.compute == "bf16") nn::compute_in(network(), DType::kBFloat16);
  for (const std::string& pattern : settings.recompute) nn::recompute(network(), pattern);
}

void Model::set_edges(const std::vector<EdgeRule>& edges) {
  transform_.edges = edges;
  network_->set_edges(edges);
}

void Model::spread(const Spread& spread, const Mesh& mesh) {
  if (mesh.size() == 1) return;  // the one rank that compare sets beside a mesh, too
  if (!spread.tensor.empty()) {
    mesh.axis(spread.tensor);
    nn::place(network(), models::tensor_parallel(network(), spread.tensor));
  }
  if (spread.stage() > 0) nn::shard(network(), {.stage = spread.stage()});
}

}  // namespace tessera::app
