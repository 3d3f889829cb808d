#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tessera/core/dtype.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/core/tensor.hpp>
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
  double step();
  virtual std::int64_t parameter_count() = 0;

 protected:
  virtual Tensor loss() = 0;
  virtual void update() = 0;
};

/// A model that `bench scaling` trains.
struct BenchEntry {
  std::string name;
  int dims;             ///< its most domain dimensions
  std::int64_t width;   ///< by default
  std::int64_t points;  ///< voxels, or atoms, of an element of the domain
  std::function<std::unique_ptr<BenchModel>(const BenchCase&)> make;
};
/// Networks, which learn to smooth a field on a periodic domain; and `mace`, which learns made-up
/// labels of quartz, the domain counted in cells.
std::vector<BenchEntry> bench_entries();
/// Throws UsageError for a name that is unknown.
BenchEntry bench_entry(const std::string& name);

}  // namespace tessera::app
