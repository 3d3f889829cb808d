#include "point_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <tessera/nn/checkpoint.hpp>

#include "imitation.hpp"
#include "mesh_option.hpp"
#include "run_settings.hpp"

namespace tessera::app {
namespace {

/// Targets at points of the training, in each step other ones.
class PointTask : public Task {
 public:
  PointTask(const RunSettings& settings, const Mesh& mesh)
      : samples_(settings.batch),
        drawn_(PointSettings::of(settings).points),
        dtype_(settings.dtype()),
        data_(open_points(settings, mesh)) {
    if (drawn_ == 0) drawn_ = data_.training_points();
    if (drawn_ > data_.training_points()) {
      throw UsageError(str("data.points: ", drawn_, " points of ", data_.training_points(),
                           " in training. Draw fewer, or hold out less."));
    }
  }

  Transform transform() const override {
    return {.dims = 1,
            .in_channels = data_.input_channels(),
            .out_channels = data_.targets(),
            .edges = edges()};
  }
  void place(const Mesh& mesh, std::int64_t) override {
    layout_ = point_layout(mesh, samples_, drawn_, data_.input_channels());
  }
  Batch batch(std::int64_t first) const override {
    const data::PointBatch b = data_.batch(first, layout_, dtype_);
    return {b.input, b.target, b.mask};
  }
  std::vector<EdgeRule> edges() const override { return {EdgeRule::kReplicate}; }
  io::Metadata numbers() const override {
    std::string text;
    for (const data::PointScale& s : data_.scales())
      text += fmt::format("{}{} {}", text.empty() ? "" : " ", s.mean, s.std);
    return {{"scales", text}};
  }

 private:
  std::int64_t samples_;
  std::int64_t drawn_;
  DType dtype_;
  data::PointCloud data_;
  Layout layout_;
};

}  // namespace

const PointSettings& PointSettings::of(const RunSettings& settings) {
  return dynamic_cast<const PointSettings&>(*settings.data);
}

void PointSettings::declare(io::Settings& s) {
  s.add("data.file", file, "File with variables (..., points): .nc, .h5, .zarr, .npz...");
  s.add("data.grid", grid, "File with the coordinates of the points; empty: the same.");
  s.add("data.coordinates", coordinates,
        "Coordinate variables of the points; empty: longitude and latitude.");
  s.add("data.inputs", inputs, "Variables that are known, beside the position.");
  s.add("data.targets", targets, "Variables that are predicted.");
  s.add("data.points", points, "Points that each sample of a step draws; 0: all of the training.",
        {.min = 0});
  s.add("data.holdout", holdout, "Share of the points that training never sees.",
        {.min = 0, .max = 1});
}

std::unique_ptr<Task> PointSettings::open(const RunSettings& settings, const Mesh& mesh) const {
  return std::make_unique<PointTask>(settings, mesh);
}

std::unique_ptr<Task> PointSettings::imitate(const RunSettings& settings,
                                             const std::vector<std::int64_t>& size) const {
  if (size.size() != 1) {
    throw UsageError(str("size: ", size.size(), " numbers. Give one, the points, e.g. 20480."));
  }
  constexpr std::int64_t kPosition = 3;
  const auto outputs = std::max<std::int64_t>(static_cast<std::int64_t>(targets.size()), 1);
  const Transform transform = {.dims = 1,
                               .in_channels = kPosition + static_cast<std::int64_t>(inputs.size()),
                               .out_channels = outputs,
                               .edges = {EdgeRule::kReplicate}};
  const auto place = [samples = settings.batch, points = size[0], in = transform.in_channels,
                      outputs](const Mesh& mesh, std::int64_t) {
    return Imitation::Layouts{point_layout(mesh, samples, points, in),
                              point_layout(mesh, samples, points, outputs)};
  };
  return std::make_unique<Imitation>(settings, transform, place);
}

std::unique_ptr<DataSettings> point_data() { return std::make_unique<PointSettings>(); }

data::PointCloud open_points(const RunSettings& settings,
                             const Mesh& mesh,
                             const std::vector<data::PointScale>& scales) {
  const PointSettings& s = PointSettings::of(settings);
  std::optional<data::PointCloud> cloud;
  nn::collective(mesh).together([&] {
    cloud.emplace(data::PointCloudOptions{.path = s.file,
                                          .grid = s.grid,
                                          .coordinates = s.coordinates,
                                          .inputs = s.inputs,
                                          .targets = s.targets,
                                          .holdout = s.holdout,
                                          .seed = settings.seed},
                  scales);
  });
  return std::move(*cloud);
}

std::vector<data::PointScale> point_scales(const Trained& trained) {
  std::vector<data::PointScale> scales;
  std::istringstream numbers(trained.text("scales"));
  for (data::PointScale s; numbers >> s.mean >> s.std;) scales.push_back(s);
  return scales;
}

Layout point_layout(const Mesh& mesh,
                    std::int64_t samples,
                    std::int64_t points,
                    std::int64_t channels) {
  return field_placement(mesh, 1).resolve({samples, points, channels}, {});
}

}  // namespace tessera::app
