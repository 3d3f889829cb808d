#pragma once

#include <string>
#include <tessera/nn/data/points.hpp>
#include <vector>

#include "task.hpp"
#include "trained.hpp"

namespace tessera::app {

/// Values on points of unstructured meshes: some variables from the position and from others.
struct PointSettings : DataSettings {
  std::string file;
  std::string grid;
  std::vector<std::string> coordinates;
  std::vector<std::string> inputs;
  std::vector<std::string> targets;
  std::int64_t points = 0;
  double holdout = 0.2;

  /// Those of a run whose model learns from points.
  static const PointSettings& of(const RunSettings& settings);

  void declare(io::Settings& settings) override;
  const std::string& file_name() const override { return file; }
  std::unique_ptr<Task> open(const RunSettings& settings, const Mesh& mesh) const override;
  std::unique_ptr<Task> imitate(const RunSettings& settings,
                                const std::vector<std::int64_t>& size) const override;
  const char* size_help() const override { return "Points, e.g. 20480."; }
  void complete(Transform&) const override {}
  int evaluate(const EvaluateOptions& options,
               const Trained& trained,
               const Mesh& mesh) const override;
  int predict(const PredictOptions& options,
              const Trained& trained,
              const Mesh& mesh) const override;
};

std::unique_ptr<DataSettings> point_data();

/// The points that the settings describe. Collective.
data::PointCloud open_points(const RunSettings& settings,
                             const Mesh& mesh,
                             const std::vector<data::PointScale>& scales = {});
/// What a weights file says of the scales; throws DataError.
std::vector<data::PointScale> point_scales(const Trained& trained);
/// The layout of `samples` clouds of `points` points with `channels`.
Layout point_layout(const Mesh& mesh,
                    std::int64_t samples,
                    std::int64_t points,
                    std::int64_t channels);

}  // namespace tessera::app
