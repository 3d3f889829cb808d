#pragma once

#include <memory>
#include <tessera/nn/layers.hpp>

#include "network.hpp"
#include "spread.hpp"

namespace tessera::app {

struct RunSettings;

/// The network of a run, for what its task asks.
class Model {
 public:
  /// `transform` need not be complete. Throws what making the network throws.
  Model(const RunSettings& settings, Transform transform, const Mesh& mesh);

  /// The network: all parameters and names.
  nn::Layer& network() const { return network_->layer(); }
  const Transform& transform() const { return transform_; }
  std::int64_t total_stride() const { return network_->total_stride(); }
  void set_edges(const std::vector<EdgeRule>& edges);
  /// Places the parameters, for training; before the first use. Throws LayoutError when the mesh
  /// lacks the axis of tensor parallelism, UsageError when the model has nothing that it splits.
  void spread(const Spread& spread, const Mesh& mesh);
  Tensor operator()(const Tensor& x) const { return network()(x); }

 private:
  Transform transform_;
  std::unique_ptr<Network> network_;
};

}  // namespace tessera::app
