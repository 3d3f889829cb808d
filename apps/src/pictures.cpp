#include "pictures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tessera/nn/io/plot.hpp>

namespace tessera::app {
namespace {

bool ascending(const data::GridField& field, int dim) {
  const std::vector<double>& x = field.coordinates(dim);
  return x.size() < 2 || x.front() < x.back();
}

View view_of(const std::vector<double>& values, std::int64_t rows, std::int64_t columns) {
  return View::dense(const_cast<double*>(values.data()), DType::kFloat64, {rows, columns});
}

/// Whether the values look like heights about a sea level: colours then tell land from sea.
io::ColorMap map_of(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low < 0.0 && *high > 0.0 ? io::ColorMap::kRelief : io::ColorMap::kViridis;
}

/// Each point as a square of `k` x `k` points.
std::vector<double> enlarged(const std::vector<double>& values,
                             std::int64_t rows,
                             std::int64_t columns,
                             std::int64_t k) {
  std::vector<double> large;
  large.reserve(static_cast<std::size_t>(rows * columns * k * k));
  for (std::int64_t r = 0; r < rows * k; ++r)
    for (std::int64_t c = 0; c < columns * k; ++c)
      large.push_back(values[static_cast<std::size_t>(r / k * columns + c / k)]);
  return large;
}

double rms(const std::vector<double>& values) {
  double sum = 0.0;
  double count = 0.0;
  for (const double v : values) {
    if (std::isnan(v)) continue;
    sum += v * v;
    count += 1.0;
  }
  return count > 0.0 ? std::sqrt(sum / count) : 0.0;
}

}  // namespace

std::string unit_of(const io::FieldVariable& variable) {
  const auto it = variable.attributes.find("units");
  if (it == variable.attributes.end()) return "";
  const std::string* const text = std::get_if<std::string>(&it->second);
  return text != nullptr ? *text : "";
}

void draw_losses(const std::string& path, const std::vector<std::vector<double>>& curves) {
  const std::vector<double>& steps = curves[0];
  const std::vector<double>& losses = curves[1];
  io::PlotSeries each = {.label = "single step", .x = {}, .y = {}};
  io::PlotSeries mean = {.label = "mean of the last 5 %", .x = {}, .y = {}};
  const std::size_t window = std::max<std::size_t>(losses.size() / 20, 1);
  double sum = 0.0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i];
    if (i >= window) sum -= losses[i - window];
    each.x.push_back(steps[i]);
    each.y.push_back(losses[i]);
    if (i + 1 < window) continue;
    mean.x.push_back(steps[i]);
    mean.y.push_back(sum / static_cast<double>(window));
  }
  io::draw_plot({each, mean},
                {.title = "Training loss", .x_label = "step", .y_label = "loss", .log_y = true})
      .save(path);
}

void draw_prediction(const std::string& path,
                     const PredictionPicture& picture,
                     const data::GridField& field) {
  const std::int64_t rows = picture.tile[0].size();
  const std::int64_t columns = picture.tile[1].size();
  const bool below = ascending(field, 0);
  const std::string unit = unit_of(field.variable());
  const auto [low, high] = std::minmax_element(picture.truth.begin(), picture.truth.end());
  const io::ColorMap map = map_of(picture.truth);
  const auto difference = [&](const std::vector<double>& from) {
    std::vector<double> d(from.size());
    for (std::size_t i = 0; i < d.size(); ++i) d[i] = from[i] - picture.truth[i];
    return d;
  };
  const std::vector<double> model_error = difference(picture.model);
  const std::vector<double> bicubic_error = difference(picture.bicubic);
  // Both errors on one scale, that of the interpolation.
  const double range = 3.0 * rms(bicubic_error);
  const auto panel = [&](const std::vector<double>& values, const std::string& title) {
    return io::FieldPanel{.values = view_of(values, rows, columns),
                          .title = title,
                          .map = map,
                          .low = *low,
                          .high = *high,
                          .unit = unit,
                          .first_row_below = below,
                          .hillshade = map == io::ColorMap::kRelief};
  };
  const auto error_panel = [&](const std::vector<double>& values, const char* of) {
    return io::FieldPanel{
        .values = view_of(values, rows, columns),
        .title = fmt::format("{}: prediction - truth, RMSE {:.1f} {}", of, rms(values), unit),
        .map = io::ColorMap::kDiverging,
        .low = -range,
        .high = range,
        .unit = unit,
        .first_row_below = below};
  };
  io::draw_fields({panel(picture.truth, "Truth"), panel(picture.model, "Model"),
                   error_panel(model_error, "Model"), error_panel(bicubic_error, "Bicubic")},
                  {.title = "Held-out part", .columns = 2})
      .save(path);
}

void draw_forecast(const std::string& path,
                   const ForecastPicture& picture,
                   const data::GridField& field) {
  const int rows_dim = field.dims() - 2;
  constexpr std::int64_t kWidth = 400;  // room for a title
  const std::int64_t k = std::max<std::int64_t>(kWidth / field.shape()[rows_dim + 1], 1);
  const std::int64_t rows = field.shape()[rows_dim] * k;
  const std::int64_t columns = field.shape()[rows_dim + 1] * k;
  const auto large = [&](const std::vector<double>& values) {
    return enlarged(values, rows / k, columns / k, k);
  };
  const std::string unit = unit_of(field.variable());
  const std::string& name = field.variable().name;
  const auto [low, high] = std::minmax_element(picture.truth.begin(), picture.truth.end());
  const bool below = ascending(field, rows_dim);
  const std::vector<double> truth = large(picture.truth);
  const std::vector<double> model = large(picture.model);
  std::vector<double> model_error = model;
  std::vector<double> base_error = large(picture.base);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    model_error[i] -= truth[i];
    base_error[i] -= truth[i];
  }
  const double range = 3.0 * rms(base_error);
  const auto panel = [&](const std::vector<double>& values, const std::string& title) {
    return io::FieldPanel{.values = view_of(values, rows, columns),
                          .title = title,
                          .map = io::ColorMap::kViridis,
                          .low = *low,
                          .high = *high,
                          .unit = unit,
                          .first_row_below = below};
  };
  const auto error_panel = [&](const std::vector<double>& values, const std::string& of) {
    return io::FieldPanel{.values = view_of(values, rows, columns),
                          .title = fmt::format("{} - truth, RMSE {:.3g} {}", of, rms(values), unit),
                          .map = io::ColorMap::kDiverging,
                          .low = -range,
                          .high = range,
                          .unit = unit,
                          .first_row_below = below};
  };
  io::draw_fields({panel(truth, "Truth"), panel(model, "Model"), error_panel(model_error, "Model"),
                   error_panel(base_error, picture.base_name)},
                  {.title = fmt::format("{}, {}", name, picture.title), .columns = 2})
      .save(path);
}

void draw_field(const std::string& path,
                const Shape& shape,
                const std::vector<double>& values,
                const std::string& title,
                const std::string& unit,
                bool first_row_below) {
  const io::ColorMap map = map_of(values);
  io::draw_fields({{.values = view_of(values, shape[0], shape[1]),
                    .title = title,
                    .map = map,
                    .unit = unit,
                    .first_row_below = first_row_below,
                    .hillshade = map == io::ColorMap::kRelief}},
                  {.columns = 1, .max_width = 1440})
      .save(path);
}

}  // namespace tessera::app
