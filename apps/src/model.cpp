#include "model.hpp"

#include "run_settings.hpp"

namespace tessera::app {

Model::Model(const RunSettings& settings, Transform transform, const Mesh& mesh)
    : transform_(std::move(transform)) {
  transform_.seed = settings.seed;
  settings.data->complete(transform_);
  network_ = settings.network->make(transform_, mesh, settings.dtype());
}

void Model::set_edges(const std::vector<EdgeRule>& edges) {
  transform_.edges = edges;
  network_->set_edges(edges);
}

}  // namespace tessera::app
