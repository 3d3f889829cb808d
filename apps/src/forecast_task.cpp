#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <tessera/nn/checkpoint.hpp>

#include "grid_tasks.hpp"
#include "imitation.hpp"
#include "mesh_option.hpp"
#include "run_settings.hpp"

namespace tessera::app {
namespace {

class ForecastTask : public Task {
 public:
  ForecastTask(const RunSettings& settings, const Mesh& mesh)
      : samples_(settings.batch), dtype_(settings.dtype()), data_(open_forecast(settings, mesh)) {}

  Transform transform() const override {
    return {.dims = data_.dims(),
            .in_channels = data_.input_channels(),
            .out_channels = data_.variables(),
            .edges = edges()};
  }
  void place(const Mesh& mesh, std::int64_t stride) override {
    place_forecast(data_, mesh, samples_, stride);
  }
  Batch batch(std::int64_t first) const override {
    const data::ForecastBatch b = data_.batch(first, dtype_);
    return {b.input, b.target, {}};
  }
  std::vector<EdgeRule> edges() const override { return edges_of(data_.field(0)); }
  io::Metadata numbers() const override {
    std::string text;
    for (const data::ForecastScale& s : data_.scales()) {
      text += fmt::format("{}{} {} {}", text.empty() ? "" : " ", s.mean, s.std, s.residual);
    }
    return {{"scales", text}};
  }

 private:
  std::int64_t samples_;
  DType dtype_;
  data::Forecast data_;
};

}  // namespace

data::Forecast open_forecast(const RunSettings& settings, const Mesh& mesh) {
  const GridSettings& grid = GridSettings::of(settings);
  const data::ForecastOptions o = {.path = grid.file,
                                   .variables = grid.variables,
                                   .time = grid.time,
                                   .periodic = grid.periodic,
                                   .history = grid.history,
                                   .lead = grid.lead,
                                   .season = grid.season,
                                   .season_harmonics = grid.season_harmonics,
                                   .test = grid.test,
                                   .coordinate_channels = grid.coordinates,
                                   .seed = settings.seed};
  // The ranks agree that the file is usable before any of them relies on it.
  nn::collective(mesh).together([&] { data::Forecast{o}; });
  return data::Forecast(o);
}

void place_forecast(data::Forecast& data,
                    const Mesh& mesh,
                    std::int64_t samples,
                    std::int64_t stride,
                    const std::vector<data::ForecastScale>& scales) {
  data.prepare(field_layout(mesh, samples, data.grid(), data.input_channels(), stride),
               nn::collective(mesh), scales);
}

std::vector<data::ForecastScale> forecast_scales(const Trained& trained) {
  std::vector<data::ForecastScale> scales;
  std::istringstream numbers(trained.text("scales"));
  for (data::ForecastScale s; numbers >> s.mean >> s.std >> s.residual;) scales.push_back(s);
  return scales;
}

void complete_forecast(const GridSettings& settings, Transform& transform) {
  transform.zero_head = true;
  // Frames, damped anomalies, phase of the season: see data::Forecast.
  const std::int64_t phase = transform.out_channels * (settings.history + 1);
  if (settings.season > 0) transform.constants = {phase, phase + 2};
}

std::unique_ptr<Task> open_forecast_task(const RunSettings& settings, const Mesh& mesh) {
  return std::make_unique<ForecastTask>(settings, mesh);
}

std::unique_ptr<Task> imitate_forecast(const RunSettings& settings,
                                       const std::vector<std::int64_t>& size) {
  const GridSettings& grid = GridSettings::of(settings);
  Transform transform = {.dims = static_cast<int>(size.size()),
                         .edges = imitated_edges(grid.periodic, size.size())};
  const auto variables =
      std::max<std::int64_t>(static_cast<std::int64_t>(grid.variables.size()), 1);
  transform.in_channels = variables * grid.history + (grid.season > 0 ? variables + 2 : 0);
  if (grid.coordinates) {
    for (const EdgeRule edge : transform.edges)
      transform.in_channels += edge != EdgeRule::kCircular ? 1 : 0;
  }
  transform.out_channels = variables;
  const auto place = [samples = settings.batch, size, channels = transform.in_channels, variables](
                         const Mesh& mesh, std::int64_t stride) {
    const Layout input = field_layout(mesh, samples, size, channels, stride);
    return Imitation::Layouts{input, input.with_dim(input.dims() - 1, variables, {})};
  };
  return std::make_unique<Imitation>(settings, transform, place);
}

}  // namespace tessera::app
