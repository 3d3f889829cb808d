#include "grid_settings.hpp"

#include <algorithm>

#include "grid_tasks.hpp"
#include "run_settings.hpp"

namespace tessera::app {

const GridSettings& GridSettings::of(const RunSettings& settings) {
  return dynamic_cast<const GridSettings&>(*settings.data);
}

void GridSettings::declare(io::Settings& s) {
  const io::Settings::Rule positive = {.min = 1};
  const io::Settings::Rule not_negative = {.min = 0};
  s.add("data.task", task,
        "What is learnt: refine, a field from its block means; forecast, fields some frames later; "
        "segment, the class of each point of a volume.",
        {.choices = tasks_});
  s.add("data.file", file,
        "File that holds the field: .nc, .h5, .zarr, .npy, .npz, .raw, .nii; *: several, one after "
        "the other in time. Segment: a .nii or .nii.gz with the volume.");
  if (knows("refine")) {
    s.add("data.variable", variable, "Refine: variable in the file; empty: the only field in it.");
  }
  s.add("data.variables", variables,
        "Forecast: variables of one shape; empty: all with the time dimension.");
  s.add("data.time", time, "Forecast: name of the time dimension, capitals or not.");
  s.add("data.history", history, "Forecast: frames that are seen.", positive);
  s.add("data.lead", lead, "Forecast: frames from the last one seen to the one foretold.",
        positive);
  s.add(
      "data.season", season,
      "Forecast: frames of a cycle (12 months); inputs are then anomalies and the network corrects "
      "the damped anomaly. 0: no cycle; it corrects persistence.",
      not_negative);
  s.add("data.season_harmonics", season_harmonics,
        "Forecast: the climatology is so many harmonics of the cycle; 0: the mean of each phase.",
        not_negative);
  s.add("data.test", test,
        "Forecast: the last frames that training never aims at; of several samples, the last "
        "samples.",
        not_negative);
  if (knows("refine")) {
    s.add("data.factor", factor, "Refine: fine points per coarse point in each dimension.",
          positive);
    s.add("data.crop", crop,
          "Fine points of a training crop in each dimension; segment: at most, so that smaller "
          "volumes are one sample.",
          positive);
    s.add(
        "data.holdout", holdout,
        "Refine: coordinates of the last dimension, from and to, that training never sees; empty: "
        "none.");
  }
  s.add("data.periodic", periodic,
        "Periodic dimensions; a longitude around the globe is found without being named.");
  if (knows("refine")) {
    s.add("data.flips", flips, "Refine: mirror half of the crops along each dimension.");
  }
  s.add("data.coordinates", coordinates, "Give the network the coordinates as further channels.");
  if (knows("segment")) {
    s.add("data.labels", labels, "Segment: NIfTI file with a label for each point.");
    s.add("data.classes", classes,
          "Segment: classes and their labels, as frontal=1-16+19,cerebellum=91-116; all others are "
          "background. Empty: each label is a class.");
    s.add("data.slabs", slabs,
          "Segment: slabs that training learns no labels of: thickness, distance from one to the "
          "next, margin (points beside them that count for neither part). Empty: none.",
          not_negative);
    s.add("data.slab_axis", slab_axis, "Segment: dimension across which they lie.",
          {.choices = {"x", "y", "z"}});
    s.add("data.mirror", mirror,
          "Segment: dimensions (x, y, z) along which half of the samples are mirrored.");
    s.add("data.trim", trim, "Segment: leave out planes at the edges that are all 0.");
    s.add("data.dice", dice, "Segment: weight of the Dice loss beside that of the cross-entropy.",
          not_negative);
  }
}

void GridSettings::declare_around(io::Settings& s) {
  if (!knows("refine")) return;
  s.add("model.input_skip", input_skip,
        "Refine: interpolation of the input that is added to the output.",
        {.choices = {"none", "nearest", "linear", "cubic"}});
  s.add("model.conserve_means", conserve_means,
        "Refine: keep the means over coarse points exactly.");
  s.add("model.detail_scale", detail_scale,
        "Refine: size of details relative to the normalised values; the network works in this "
        "unit. 0: no distinction.",
        {.min = 0});
}

void GridSettings::complete(Transform& transform) const { entry().complete(*this, transform); }

bool GridSettings::knows(const char* name) const {
  return std::find(tasks_.begin(), tasks_.end(), name) != tasks_.end();
}

const GridTask& GridSettings::entry() const {
  for (const GridTask& t : grid_tasks())
    if (task == t.name) return t;
  throw UsageError(str("data.task: \"", task, "\" is unknown."));
}

std::unique_ptr<Task> GridSettings::open(const RunSettings& settings, const Mesh& mesh) const {
  return entry().open(settings, mesh);
}

std::unique_ptr<Task> GridSettings::imitate(const RunSettings& settings,
                                            const std::vector<std::int64_t>& size) const {
  if (size.empty() || size.size() > 3) {
    throw UsageError(str("size: ", size.size(), " dimensions. Give 1 to 3 numbers, e.g. 512x512."));
  }
  return entry().imitate(settings, size);
}

const char* GridSettings::size_help() const {
  return "Points of the field (the output) in each dimension, e.g. 512x512; what --crop is in "
         "training.";
}

int GridSettings::evaluate(const EvaluateOptions& options,
                           const Trained& trained,
                           const Mesh& mesh) const {
  return entry().evaluate(options, trained, mesh);
}

int GridSettings::predict(const PredictOptions& options,
                          const Trained& trained,
                          const Mesh& mesh) const {
  return entry().predict(options, trained, mesh);
}

std::unique_ptr<DataSettings> grid_data() {
  return std::make_unique<GridSettings>(std::vector<std::string>{"refine", "forecast", "segment"});
}

std::unique_ptr<DataSettings> forecast_data() {
  return std::make_unique<GridSettings>(std::vector<std::string>{"forecast"});
}

}  // namespace tessera::app
