#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "task.hpp"

namespace tessera::app {

struct RunSettings;
struct GridTask;

/// Fields on grids: settings of the tasks `refine`, `forecast` and `segment`, or of some of them.
struct GridSettings : DataSettings {
  /// The first of `tasks` is the default.
  explicit GridSettings(std::vector<std::string> tasks)
      : task(tasks.front()), tasks_(std::move(tasks)) {}

  std::string task;
  std::string file;
  std::string variable;
  std::vector<std::string> variables;
  std::string time = "time";
  std::int64_t history = 1;
  std::int64_t lead = 1;
  std::int64_t season = 0;
  std::int64_t season_harmonics = 0;
  std::int64_t test = 0;
  std::int64_t factor = 4;
  std::int64_t crop = 192;
  std::vector<double> holdout;
  std::vector<std::string> periodic;
  bool flips = true;
  bool coordinates = false;
  std::string labels;
  std::vector<std::string> classes;
  std::vector<std::int64_t> slabs;
  std::string slab_axis = "y";
  std::vector<std::string> mirror;
  bool trim = true;
  double dice = 1.0;

  // around the network
  std::string input_skip = "cubic";
  bool conserve_means = true;
  double detail_scale = 0.05;

  /// Those of a run whose model learns from grids.
  static const GridSettings& of(const RunSettings& settings);

  void declare(io::Settings& settings) override;
  void declare_around(io::Settings& settings) override;
  const std::string& file_name() const override { return file; }
  std::unique_ptr<Task> open(const RunSettings& settings, const Mesh& mesh) const override;
  std::unique_ptr<Task> imitate(const RunSettings& settings,
                                const std::vector<std::int64_t>& size) const override;
  const char* size_help() const override;
  void complete(Transform& transform) const override;
  int evaluate(const EvaluateOptions& options,
               const Trained& trained,
               const Mesh& mesh) const override;
  int predict(const PredictOptions& options,
              const Trained& trained,
              const Mesh& mesh) const override;

 private:
  const GridTask& entry() const;
  bool knows(const char* name) const;

  std::vector<std::string> tasks_;
};

/// For models of all tasks.
std::unique_ptr<DataSettings> grid_data();
/// For models of forecasts only.
std::unique_ptr<DataSettings> forecast_data();

}  // namespace tessera::app
