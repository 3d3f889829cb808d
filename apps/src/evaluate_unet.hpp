#pragma once

#include <string>
#include <tessera/core/mesh.hpp>

namespace tessera::app {

struct TrainedUNet;

/// How a run is evaluated.
struct EvaluateOptions {
  std::string mesh;
  std::string run;
};

/// Scores the run's network and the interpolations on the held-out part (everything where nothing
/// was held out), writes RUN/evaluation.json and RUN/prediction.png, and prints a table.
int evaluate_unet(const EvaluateOptions& options);
/// The same for a network that makes forecasts, beside persistence, a linear stencil and, where
/// there is a season, climatology and the damped anomaly.
int evaluate_forecast(const std::string& run, const TrainedUNet& trained, const Mesh& mesh);

/// How a field is refined.
struct PredictOptions {
  std::string mesh;
  std::string run;
  std::string input;  ///< NetCDF file; empty: the file of the training
  std::string
      variable;        ///< empty: as in the training where the file is the same, else the only one
  std::string output;  ///< NetCDF file; a picture of the same name with .png is written beside it
  bool coarsen = false;  ///< refine the block means of the input instead of the input itself
};

/// Refines a whole field in one piece, split over the mesh.
int predict_unet(const PredictOptions& options);
/// Foretells the frame after the last one of each sequence in the file of the training.
int predict_forecast(const PredictOptions& options, const TrainedUNet& trained, const Mesh& mesh);

}  // namespace tessera::app
