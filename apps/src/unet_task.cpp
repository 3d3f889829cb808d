#include "unet_task.hpp"

#include <fmt/format.h>

#include <tessera/nn/checkpoint.hpp>

#include "unet_run.hpp"

namespace tessera::app {
namespace {

/// Super-resolution: the field from its block means.
class RefineTask : public UNetTask {
 public:
  RefineTask(const UNetSettings& settings, const Mesh& mesh)
      : settings_(settings), data_(open_data(settings, mesh)) {}
  models::UNetOptions model() const override {
    return settings_.model(data_.field().dims(), edges_of_crops(data_));
  }
  void place(const Mesh& mesh, std::int64_t stride) override {
    input_ = field_placement(mesh, data_.field().dims())
                 .resolve(data_.input_shape(settings_.batch), {.multiple = stride});
    target_ = data_.fine_layout(input_);
  }
  UNetBatch batch(std::int64_t first) const override {
    const data::SuperResolutionBatch b = data_.batch(first, input_, target_, settings_.dtype());
    return {b.input, b.target, b.mask};
  }
  std::vector<EdgeRule> edges() const override { return edges_of(data_.field()); }
  io::Metadata numbers() const override {
    const data::Normalization& n = data_.normalization();
    return {{"mean", fmt::format("{}", n.mean)},
            {"std", fmt::format("{}", n.std)},
            {"missing", n.missing ? "1" : "0"}};
  }

 private:
  UNetSettings settings_;
  data::SuperResolution data_;
  Layout input_;
  Layout target_;
};

/// The field some frames later.
class ForecastTask : public UNetTask {
 public:
  ForecastTask(const UNetSettings& settings, const Mesh& mesh)
      : settings_(settings), data_(open_forecast(settings, mesh)) {}
  models::UNetOptions model() const override {
    models::UNetOptions o = settings_.model(data_.dims(), edges());
    o.in_channels = data_.input_channels();
    o.out_channels = data_.variables();
    return o;
  }
  void place(const Mesh& mesh, std::int64_t stride) override {
    place_forecast(data_, mesh, settings_.batch, stride);
  }
  UNetBatch batch(std::int64_t first) const override {
    const data::ForecastBatch b = data_.batch(first, settings_.dtype());
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
  UNetSettings settings_;
  data::Forecast data_;
};

}  // namespace

data::Forecast open_forecast(const UNetSettings& settings, const Mesh& mesh) {
  const data::ForecastOptions o = {.path = settings.file,
                                   .variables = settings.variables,
                                   .time = settings.time,
                                   .periodic = settings.periodic,
                                   .history = settings.history,
                                   .lead = settings.lead,
                                   .season = settings.season,
                                   .test = settings.test,
                                   .coordinate_channels = settings.coordinates,
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
  Shape shape = {samples};
  for (const std::int64_t n : data.grid()) shape.push_back(n);
  shape.push_back(data.input_channels());
  data.prepare(field_placement(mesh, data.dims()).resolve(shape, {.multiple = stride}),
               nn::collective(mesh), scales);
}

std::unique_ptr<UNetTask> open_task(const UNetSettings& settings, const Mesh& mesh) {
  if (settings.forecasts()) return std::make_unique<ForecastTask>(settings, mesh);
  return std::make_unique<RefineTask>(settings, mesh);
}

}  // namespace tessera::app
