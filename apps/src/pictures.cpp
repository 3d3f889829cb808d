#include "pictures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <tessera/nn/io/plot.hpp>

namespace tessera::app {
namespace {

View view_of(const std::vector<double>& values, std::int64_t rows, std::int64_t columns) {
  return View::dense(const_cast<double*>(values.data()), DType::kFloat64, {rows, columns});
}

/// Whether the values look like heights about a sea level: colours then tell land from sea.
io::ColorMap map_of(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *low < 0.0 && *high > 0.0 ? io::ColorMap::kRelief : io::ColorMap::kViridis;
}

/// The coordinates of `part`, which runs on across the end of a periodic dimension.
std::vector<double> of_part(const std::vector<double>& coordinates, Interval part) {
  std::vector<double> values;
  const std::int64_t n = std::ssize(coordinates);
  for (std::int64_t i = part.lo; n > 0 && i < part.hi; ++i)
    values.push_back(coordinates[static_cast<std::size_t>((i % n + n) % n)]);
  return values;
}

/// Coordinates in the middle of `count` runs of equal length.
std::vector<double> thinned(const std::vector<double>& x, std::int64_t count) {
  std::vector<double> values;
  const auto n = static_cast<double>(x.size());
  for (std::int64_t i = 0; !x.empty() && i < count; ++i) {
    const double at = std::clamp(
        (static_cast<double>(i) + 0.5) * n / static_cast<double>(count) - 0.5, 0.0, n - 1.0);
    const auto k = static_cast<std::size_t>(at);
    const double next = x[std::min(k + 1, x.size() - 1)];
    values.push_back(x[k] + (at - std::floor(at)) * (next - x[k]));
  }
  return values;
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

bool is_degrees(const std::string& unit, char way) {
  std::string text;
  for (const char c : unit)
    if (std::isalpha(static_cast<unsigned char>(c)))
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string full = way == 'n' ? "north" : "east";
  for (const std::string degrees : {"degree", "degrees"})
    if (text == degrees + full || text == degrees + way) return true;
  return false;
}

bool ascending(const data::GridField& field, int dim) {
  const std::vector<double>& x = field.coordinates(dim);
  return x.size() < 2 || x.front() < x.back();
}

Degrees degrees_of(const data::GridField& field, int rows_dim) {
  const Degrees degrees = {field.coordinates(rows_dim), field.coordinates(rows_dim + 1)};
  if (degrees.latitudes.empty() || degrees.longitudes.empty() ||
      !is_degrees(field.coordinate_attribute(rows_dim, "units"), 'n') ||
      !is_degrees(field.coordinate_attribute(rows_dim + 1, "units"), 'e'))
    return {};
  return degrees;
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
  const Degrees degrees = degrees_of(field, 0);
  const std::vector<double> latitudes = of_part(degrees.latitudes, picture.tile[0]);
  const std::vector<double> longitudes = of_part(degrees.longitudes, picture.tile[1]);
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
                          .hillshade = map == io::ColorMap::kRelief,
                          .latitudes = latitudes,
                          .longitudes = longitudes,
                          .coastlines = map != io::ColorMap::kRelief};
  };
  const auto error_panel = [&](const std::vector<double>& values, const char* of) {
    return io::FieldPanel{
        .values = view_of(values, rows, columns),
        .title = fmt::format("{}: prediction - truth, RMSE {:.1f} {}", of, rms(values), unit),
        .map = io::ColorMap::kDiverging,
        .low = -range,
        .high = range,
        .unit = unit,
        .first_row_below = below,
        .latitudes = latitudes,
        .longitudes = longitudes,
        .coastlines = true};
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
  constexpr int kWidth = 400;  // room for a title
  const std::int64_t rows = field.shape()[rows_dim];
  const std::int64_t columns = field.shape()[rows_dim + 1];
  const Degrees degrees = degrees_of(field, rows_dim);
  const std::string unit = unit_of(field.variable());
  const std::string& name = field.variable().name;
  const auto [low, high] = std::minmax_element(picture.truth.begin(), picture.truth.end());
  const bool below = ascending(field, rows_dim);
  const std::vector<double>& truth = picture.truth;
  const std::vector<double>& model = picture.model;
  std::vector<double> model_error = model;
  std::vector<double> base_error = picture.base;
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
                          .first_row_below = below,
                          .latitudes = degrees.latitudes,
                          .longitudes = degrees.longitudes,
                          .coastlines = true};
  };
  const auto error_panel = [&](const std::vector<double>& values, const std::string& of) {
    return io::FieldPanel{.values = view_of(values, rows, columns),
                          .title = fmt::format("{} - truth, RMSE {:.3g} {}", of, rms(values), unit),
                          .map = io::ColorMap::kDiverging,
                          .low = -range,
                          .high = range,
                          .unit = unit,
                          .first_row_below = below,
                          .latitudes = degrees.latitudes,
                          .longitudes = degrees.longitudes,
                          .coastlines = true};
  };
  io::draw_fields(
      {panel(truth, "Truth"), panel(model, "Model"), error_panel(model_error, "Model"),
       error_panel(base_error, picture.base_name)},
      {.title = fmt::format("{}, {}", name, picture.title), .columns = 2, .min_width = kWidth})
      .save(path);
}

void draw_field(const std::string& path, const WholeField& field) {
  const io::ColorMap map = field.relief ? map_of(field.values) : io::ColorMap::kViridis;
  const std::int64_t rows = field.shape[0];
  const std::int64_t columns = field.shape[1];
  io::draw_fields({{.values = view_of(field.values, rows, columns),
                    .title = field.title,
                    .map = map,
                    .unit = field.unit,
                    .first_row_below = field.first_row_below,
                    .hillshade = map == io::ColorMap::kRelief,
                    .latitudes = thinned(field.degrees.latitudes, rows),
                    .longitudes = thinned(field.degrees.longitudes, columns),
                    .coastlines = map != io::ColorMap::kRelief}},
                  {.columns = 1, .max_width = 1440, .min_width = 560})
      .save(path);
}

void draw_segments(const std::string& path,
                   const std::vector<SegmentPlane>& planes,
                   std::int64_t classes) {
  std::vector<io::FieldPanel> panels;
  for (const SegmentPlane& p : planes) {
    const auto panel = [&](const std::vector<double>& values, const char* title) {
      panels.push_back({.values = view_of(values, p.size[0], p.size[1]),
                        .title = p.title + title,
                        .map = io::ColorMap::kViridis,
                        .low = 0.0,
                        .high = static_cast<double>(classes - 1),
                        .first_row_below = true});
    };
    if (!p.truth.empty()) panel(p.truth, ": truth");
    panel(p.model, ": model");
    if (p.truth.empty()) continue;
    panel(p.errors, ": wrong");
    panels.back().map = io::ColorMap::kDiverging;
    panels.back().low = -1.0;
    panels.back().high = 1.0;
  }
  io::draw_fields(panels, {.columns = 3, .max_width = 400}).save(path);
}

}  // namespace tessera::app
