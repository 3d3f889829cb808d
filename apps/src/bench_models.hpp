#pragma once

#include <cstdint>
#include <memory>
#include <tessera/core/dtype.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/nn/optim.hpp>

#include "network.hpp"

namespace tessera::app {

/// What a benchmark trains.
struct BenchCase {
  Mesh mesh;
  Shape domain;            ///< elements along each domain dimension, globally
  std::int64_t batch = 1;  ///< samples, globally
  std::int64_t width = 0;  ///< channels of the model's first level
  DType dtype = DType::kFloat32;
};

/// A model with its optimiser and made-up data, the same on any mesh: it learns to smooth a field
/// on a periodic domain.
class BenchModel {
 public:
  BenchModel(const ModelEntry& entry, const BenchCase& c);
  /// One optimiser step; returns the loss.
  double step();
  std::int64_t parameter_count() { return network_->layer().parameter_count(); }

 private:
  std::unique_ptr<Network> network_;
  optim::AdamW optimizer_;
  Tensor input_;
  Tensor target_;
};

}  // namespace tessera::app
