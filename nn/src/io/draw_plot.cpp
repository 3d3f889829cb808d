#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/plot.hpp>

namespace tessera::io {
namespace {

// Distinguishable with any kind of colour vision (M. Okabe, K. Ito, 2008).
constexpr Color kPalette[] = {{0, 114, 178}, {213, 94, 0},   {0, 158, 115}, {204, 121, 167},
                              {230, 159, 0}, {86, 180, 233}, {60, 60, 60}};
constexpr Color kGrid{225, 225, 225};

/// One axis: which values it spans and where they lie.
struct Axis {
  bool log = false;
  double low = 0.0;  // logarithms (base 10) on a logarithmic axis
  double high = 1.0;
  double pixel_low = 0.0;
  double pixel_high = 1.0;

  bool shows(double value) const { return std::isfinite(value) && (!log || value > 0); }
  double pixel(double value) const {
    const double v = log ? std::log10(value) : value;
    return pixel_low + (v - low) / (high - low) * (pixel_high - pixel_low);
  }
};

Axis make_axis(const std::vector<PlotSeries>& series,
               std::vector<double> PlotSeries::*values,
               bool log) {
  Axis axis;
  axis.log = log;
  bool any = false;
  for (const PlotSeries& s : series) {
    for (const double v : s.*values) {
      if (!axis.shows(v)) continue;
      const double u = log ? std::log10(v) : v;
      axis.low = any ? std::min(axis.low, u) : u;
      axis.high = any ? std::max(axis.high, u) : u;
      any = true;
    }
  }
  if (!any) {
    axis.low = 0.0;
    axis.high = 1.0;
  }
  if (!(axis.high - axis.low > 1e-12 * std::max(1.0, std::abs(axis.low)))) {
    const double pad = log ? 0.5 : std::max(0.5, 0.1 * std::abs(axis.low));
    axis.low -= pad;
    axis.high += pad;
  }
  const double room = 0.03 * (axis.high - axis.low);
  axis.low -= room;
  axis.high += room;
  return axis;
}

struct Tick {
  double value = 0.0;
  std::string label;
};

std::vector<Tick> ticks_of(const Axis& axis, int count) {
  std::vector<Tick> ticks;
  const auto add = [&](double value, bool labelled) {
    char text[32] = "";
    if (labelled) std::snprintf(text, sizeof(text), "%g", value);
    ticks.push_back({value, text});
  };
  if (!axis.log) {
    for (const double v : round_ticks(axis.low, axis.high, count)) add(v, true);
    return ticks;
  }
  const int first = static_cast<int>(std::floor(axis.low));
  const int last = static_cast<int>(std::ceil(axis.high));
  const int every = std::max(1, (last - first) / count);
  const bool narrow = axis.high - axis.low < 2.0;
  for (int e = first; e <= last; ++e) {
    for (int m = 1; m < 10; ++m) {
      const double value = m * std::pow(10.0, e);
      const double at = std::log10(value);
      if (at < axis.low || at > axis.high || (m > 1 && every > 1)) continue;
      add(value, m == 1 ? (e - first) % every == 0 : narrow && (m == 2 || m == 5));
    }
  }
  return ticks;
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  if (!(high > low) || !std::isfinite(high - low) || count < 1) return ticks;
  const double least = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  double step = 10 * power;
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= least) {
      step = m * power;
      break;
    }
  }
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k)
    ticks.push_back(k == 0 ? 0.0 : k * step);
  return ticks;
}

Image draw_plot(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  for (const PlotSeries& s : series)
    if (s.x.size() != s.y.size())
      throw ShapeError(str("draw_plot: series \"", s.label, "\" has ", s.x.size(), " x and ",
                           s.y.size(), " y values."));
  Axis x = make_axis(series, &PlotSeries::x, options.log_x);
  Axis y = make_axis(series, &PlotSeries::y, options.log_y);

  Image image(options.width, options.height);
  const int left = 78;
  const int right = options.width - 16;
  const int top = options.title.empty() ? 14 : 36;
  const int bottom = options.height - 44;
  x.pixel_low = left;
  x.pixel_high = right;
  y.pixel_low = bottom;
  y.pixel_high = top;

  image.text(left, 12, options.title, kBlack, 2);
  for (const Tick& tick : ticks_of(x, std::max(2, (right - left) / 90))) {
    const int at = static_cast<int>(std::lround(x.pixel(tick.value)));
    image.fill(at, top, 1, bottom - top, kGrid);
    if (tick.label.empty()) continue;
    image.fill(at, bottom, 1, 5, kBlack);
    image.text(at - Image::text_width(tick.label) / 2, bottom + 8, tick.label);
  }
  for (const Tick& tick : ticks_of(y, std::max(2, (bottom - top) / 50))) {
    const int at = static_cast<int>(std::lround(y.pixel(tick.value)));
    image.fill(left, at, right - left, 1, kGrid);
    if (tick.label.empty()) continue;
    image.fill(left - 4, at, 5, 1, kBlack);
    image.text(left - 8 - Image::text_width(tick.label), at - 3, tick.label);
  }
  image.text((left + right - Image::text_width(options.x_label)) / 2, options.height - 16,
             options.x_label);
  image.text_upwards(8, (top + bottom + Image::text_width(options.y_label)) / 2, options.y_label);

  for (std::size_t s = 0; s < series.size(); ++s) {
    const Color color = kPalette[s % std::size(kPalette)];
    const PlotSeries& line = series[s];
    for (std::size_t i = 0; i < line.x.size(); ++i) {
      if (!x.shows(line.x[i]) || !y.shows(line.y[i])) continue;
      const bool joined = !line.points && i > 0 && x.shows(line.x[i - 1]) && y.shows(line.y[i - 1]);
      const std::size_t from = joined ? i - 1 : i;  // a point on its own is a dot
      image.line(x.pixel(line.x[from]), y.pixel(line.y[from]), x.pixel(line.x[i]),
                 y.pixel(line.y[i]), color, line.points ? 2.5 : 1.6);
    }
  }
  image.frame(left, top, right - left + 1, bottom - top + 1, kBlack);

  int legend_width = 0;
  int entries = 0;
  for (const PlotSeries& s : series) {
    legend_width = std::max(legend_width, Image::text_width(s.label));
    entries += s.label.empty() ? 0 : 1;
  }
  if (entries > 0) {
    const int width = legend_width + 38;
    const int height = 14 * entries + 6;
    const int x0 = right - width - 8;
    int y0 = top + 8;
    image.fill(x0, y0, width, height, kWhite);
    image.frame(x0, y0, width, height, kGrey);
    y0 += 10;
    for (std::size_t s = 0; s < series.size(); ++s) {
      if (series[s].label.empty()) continue;
      image.line(x0 + 6, y0, x0 + 24, y0, kPalette[s % std::size(kPalette)], 2.0);
      image.text(x0 + 30, y0 - 3, series[s].label);
      y0 += 14;
    }
  }
  return image;
}

}  // namespace tessera::io
