#pragma once

#include <memory>
#include <optional>
#include <tessera/nn/data/forecast.hpp>
#include <tessera/nn/data/segmentation.hpp>
#include <tessera/nn/data/super_resolution.hpp>
#include <vector>

#include "grid_settings.hpp"
#include "tiles.hpp"
#include "trained.hpp"

namespace tessera::app {

/// What can be learnt from fields on a grid; `data.task` names it. Adding a task adds a line to
/// grid_tasks().
struct GridTask {
  const char* name;
  void (*complete)(const GridSettings& settings, Transform& transform);
  std::unique_ptr<Task> (*open)(const RunSettings& settings, const Mesh& mesh);
  std::unique_ptr<Task> (*imitate)(const RunSettings& settings,
                                   const std::vector<std::int64_t>& size);
  int (*evaluate)(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh);
  int (*predict)(const PredictOptions& options, const Trained& trained, const Mesh& mesh);
};
const std::vector<GridTask>& grid_tasks();

// Super-resolution: the field from its block means.

void complete_refine(const GridSettings& settings, Transform& transform);
std::unique_ptr<Task> open_refine(const RunSettings& settings, const Mesh& mesh);
std::unique_ptr<Task> imitate_refine(const RunSettings& settings,
                                     const std::vector<std::int64_t>& size);
/// A field, and what is held out of it.
struct RefinedField {
  data::GridFieldOptions field;
  std::vector<double> holdout = {};
};
/// That of the training.
RefinedField refined_field(const RunSettings& settings);
/// The pairs that `settings` make of a field; `normalization` is computed where it is not given.
data::SuperResolution open_refine_data(
    const RunSettings& settings,
    const RefinedField& from,
    const Mesh& mesh,
    const std::optional<data::Normalization>& normalization = {});
/// What a weights file says of it; throws DataError.
data::Normalization normalization_of(const Trained& trained);
/// Tiles of `side` fine points in which a trained model works through a field of `coarse` points,
/// in coarse points; 0: one tile, or those of the training where the model needs it. The model
/// sees their edges from now on. Throws UsageError for sides that do not fit.
std::vector<Tile> tiles_for(std::int64_t side, const Trained& trained, const Shape& coarse);
/// Scores of the model and of interpolations on the held-out part (everything where nothing was
/// held out).
int evaluate_refine(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh);
/// Refines a whole field, in one piece or in tiles, split over the mesh.
int predict_refine(const PredictOptions& options, const Trained& trained, const Mesh& mesh);

// Forecasts: the field some frames later.

void complete_forecast(const GridSettings& settings, Transform& transform);
std::unique_ptr<Task> open_forecast_task(const RunSettings& settings, const Mesh& mesh);
std::unique_ptr<Task> imitate_forecast(const RunSettings& settings,
                                       const std::vector<std::int64_t>& size);
/// Forecasts as the settings describe them.
data::Forecast open_forecast(const RunSettings& settings, const Mesh& mesh);
/// Lays batches of `samples` fields out for a network of this stride and reads what scaling needs
/// (see data::Forecast::prepare). Collective.
void place_forecast(data::Forecast& data,
                    const Mesh& mesh,
                    std::int64_t samples,
                    std::int64_t stride,
                    const std::vector<data::ForecastScale>& scales = {});
/// What a weights file says of the scales; throws DataError.
std::vector<data::ForecastScale> forecast_scales(const Trained& trained);
/// Scores of the model beside persistence, a linear stencil and, where there is a season,
/// climatology and the damped anomaly.
int evaluate_forecast(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh);
/// Foretells the frame after the last one of each sequence in the file of the training.
int predict_forecast(const PredictOptions& options, const Trained& trained, const Mesh& mesh);

// Segmentation: the class of each point of a volume.

void complete_segment(const GridSettings& settings, Transform& transform);
std::unique_ptr<Task> open_segment_task(const RunSettings& settings, const Mesh& mesh);
std::unique_ptr<Task> imitate_segment(const RunSettings& settings,
                                      const std::vector<std::int64_t>& size);
/// The volume of the training, or `file` without labels, scaled as the weights file says where
/// `trained` is given. Collective.
data::Segmentation open_segmentation(const RunSettings& settings,
                                     const Mesh& mesh,
                                     const Trained* trained = nullptr,
                                     const std::string& file = {});
/// Classes that the model gives the points of this rank's part of the whole volume, row-major.
std::vector<std::int32_t> segmented(const Trained& trained,
                                    data::Segmentation& data,
                                    const Layout& layout);
/// Dice coefficients of the model, and of the nearest labelled plane, on held-out slabs.
int evaluate_segment(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh);
/// Writes the classes of a whole volume as a NIfTI file.
int predict_segment(const PredictOptions& options, const Trained& trained, const Mesh& mesh);

/// What the network sees beyond the edges of the whole field: circular where it is periodic, else
/// the border element again.
std::vector<EdgeRule> edges_of(const data::GridField& field);

}  // namespace tessera::app
