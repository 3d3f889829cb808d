#include "model.hpp"

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

}  // namespace tessera::app
