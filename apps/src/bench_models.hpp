#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tessera/core/dtype.hpp>
#include <tessera/core/layout.hpp>
#include <vector>

namespace tessera::app {

/// What a benchmark trains.
struct BenchCase {
  Mesh mesh;
  Shape domain;            ///< elements along each domain dimension, globally
  std::int64_t batch = 1;  ///< samples, globally
  std::int64_t width = 0;  ///< channels of the model's first level
  DType dtype = DType::kFloat32;
};

/// A model with its optimiser and made-up data, the same on any mesh.
class BenchModel {
 public:
  virtual ~BenchModel() = default;
  /// One optimiser step; returns the loss.
  virtual double step() = 0;
  virtual std::int64_t parameter_count() = 0;
};

/// A model that can be benchmarked; adding one adds a line to bench_models().
struct BenchModelEntry {
  std::string name;
  std::int64_t width;  ///< by default
  int most_dims;       ///< domain dimensions, 1 to most_dims
  std::function<std::unique_ptr<BenchModel>(const BenchCase&)> make;
};
const std::vector<BenchModelEntry>& bench_models();
/// Throws UsageError for a name that is unknown.
const BenchModelEntry& bench_model(const std::string& name);

}  // namespace tessera::app
