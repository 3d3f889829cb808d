#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/core/layout.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/io/settings.hpp>
#include <vector>

#include "network.hpp"

namespace tessera::app {

struct RunSettings;
struct Trained;
struct EvaluateOptions;
struct PredictOptions;

/// What a network is trained on: an input and what is to come out. `mask` is undefined where every
/// point counts.
struct Batch {
  Tensor input;
  Tensor target;
  Tensor mask;
};

/// What `tessera train` learns.
class Task {
 public:
  virtual ~Task() = default;
  /// What the model has to do in training: dimensions, channels, edges.
  virtual Transform transform() const = 0;
  /// Fixes the layouts of all batches. Collective.
  virtual void place(const Mesh& mesh, std::int64_t stride) = 0;
  /// Samples first, first + 1, ...
  virtual Batch batch(std::int64_t first) const = 0;
  /// What the training minimises: by default the error that the settings name; points that the mask
  /// leaves out do not count.
  virtual Tensor loss(const RunSettings& settings, const Tensor& output, const Batch& batch) const;
  /// What the trained model sees beyond the edges of the whole field.
  virtual std::vector<EdgeRule> edges() const = 0;
  /// Numbers that the weights file keeps.
  virtual io::Metadata numbers() const = 0;
};

/// Kind of data that a model learns from: its settings `data.*`, and everything that is done with
/// such data.
class DataSettings {
 public:
  virtual ~DataSettings() = default;
  virtual void declare(io::Settings& settings) = 0;
  /// Further settings `model.*`: of what stands around the network.
  virtual void declare_around(io::Settings&) {}
  /// The data file.
  virtual const std::string& file_name() const = 0;
  /// Throws what opening the data throws. Collective.
  virtual std::unique_ptr<Task> open(const RunSettings& settings, const Mesh& mesh) const = 0;
  /// The task on made-up data of this size, for `plan` and `compare`. Throws UsageError for sizes
  /// and settings that do not fit.
  virtual std::unique_ptr<Task> imitate(const RunSettings& settings,
                                        const std::vector<std::int64_t>& size) const = 0;
  /// Help of `plan --size`.
  virtual const char* size_help() const = 0;
  /// Adds to dimensions, channels and edges what else the task asks of a model.
  virtual void complete(Transform& transform) const = 0;
  /// See evaluate() and predict(). Collective.
  virtual int evaluate(const EvaluateOptions& options,
                       const Trained& trained,
                       const Mesh& mesh) const = 0;
  virtual int predict(const PredictOptions& options,
                      const Trained& trained,
                      const Mesh& mesh) const = 0;
};

}  // namespace tessera::app
