#pragma once

#include <string>
#include <tessera/core/mesh.hpp>

namespace tessera::app {

/// How a run is evaluated.
struct EvaluateOptions {
  std::string mesh;
  std::string run;
  std::int64_t tile = 0;  ///< fine points of the tiles in which fields are refined; see tiles_for()
  bool mirrors = false;   ///< refine fields with Trained::over_mirrors()
  std::int64_t last = 0;  ///< of a forecast: so many of the last test frames; 0: all
  std::string configs;    ///< of a potential: see EvaluateAtomsOptions
  std::string output;
};
/// Scores the run's model beside plain answers on the part that training never saw, writes
/// RUN/evaluation.json and RUN/prediction.png, and prints a table.
int evaluate(const EvaluateOptions& options);

/// How a run's model is used.
struct PredictOptions {
  std::string mesh;
  std::string run;
  std::string input;  ///< NetCDF file; empty: the file of the training
  std::string
      variable;        ///< empty: as in the training where the file is the same, else the only one
  std::string output;  ///< NetCDF file or Zarr store; a picture of the same name with .png is
                       ///< written beside it
  std::int64_t tile = 0;  ///< as in EvaluateOptions
  bool mirrors = false;   ///< as in EvaluateOptions
  bool coarsen = false;   ///< refine the block means of the input instead of the input itself
};
/// Applies the run's model to a whole file.
int predict(const PredictOptions& options);

}  // namespace tessera::app
