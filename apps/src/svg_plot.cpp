#include "svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace tessera::app {
namespace {

constexpr const char* kPalette[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#3c3c3c"};

struct Axis {
  bool log;
  double low;
  double high;
  double pixel_low;
  double pixel_high;

  double pixel(double value) const {
    const double v = log ? std::log10(value) : value;
    return pixel_low + (v - low) / (high - low) * (pixel_high - pixel_low);
  }
};

bool shows(double v, bool log) { return std::isfinite(v) && (!log || v > 0.0); }

Axis make_axis(const std::vector<io::PlotSeries>& series,
               std::vector<double> io::PlotSeries::*values,
               bool log,
               double pixel_low,
               double pixel_high) {
  Axis axis = {log, 1e300, -1e300, pixel_low, pixel_high};
  for (const io::PlotSeries& s : series) {
    for (const double v : s.*values) {
      if (!shows(v, log)) continue;
      axis.low = std::min(axis.low, log ? std::log10(v) : v);
      axis.high = std::max(axis.high, log ? std::log10(v) : v);
    }
  }
  if (axis.low > axis.high) axis.low = axis.high = 0.0;
  const double room = axis.high > axis.low ? 0.05 * (axis.high - axis.low) : 0.5;
  axis.low -= room;
  axis.high += room;
  return axis;
}

std::vector<double> ticks_of(const Axis& axis) {
  if (!axis.log) return io::round_ticks(axis.low, axis.high, 6);
  std::vector<double> ticks;
  for (int e = static_cast<int>(std::floor(axis.low)); e <= std::ceil(axis.high); ++e) {
    for (const double m : {1.0, 2.0, 5.0}) {
      const double v = m * std::pow(10.0, e);
      if (std::log10(v) >= axis.low && std::log10(v) <= axis.high) ticks.push_back(v);
    }
  }
  return ticks;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (c == '"') {
      result += "&quot;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string svg_plot(const std::vector<io::PlotSeries>& series,
                     const io::PlotOptions& options,
                     int x,
                     int y) {
  const double left = 62;
  const double right = options.width - 14;
  const double top = 34;
  const double bottom = options.height - 44;
  const Axis ax = make_axis(series, &io::PlotSeries::x, options.log_x, left, right);
  const Axis ay = make_axis(series, &io::PlotSeries::y, options.log_y, bottom, top);
  std::string svg = fmt::format(
      "<g transform=\"translate({},{})\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<text x=\"{}\" y=\"20\" font-size=\"15\">{}</text>\n",
      x, y, left, escaped(options.title));

  std::set<double> values;
  for (const io::PlotSeries& s : series)
    for (const double v : s.x)
      if (shows(v, options.log_x)) values.insert(v);
  double last = -1e300;
  for (const double v : values) {
    const double at = ax.pixel(v);
    if (at - last < 24.0) continue;
    last = at;
    svg += fmt::format(
        "<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4:g}</text>\n",
        at, top, bottom, bottom + 16, v);
  }
  for (const double v : ticks_of(ay)) {
    const double at = ay.pixel(v);
    svg += fmt::format(
        "<path d=\"M{0} {1:.1f}H{2}\" stroke=\"#ddd\"/><text x=\"{3}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:g}</text>\n",
        left, at, right, left - 6, at + 4, v);
  }
  svg += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#222\"/>\n"
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n"
      "<text transform=\"translate(14,{}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      left, top, right - left, bottom - top, (left + right) / 2, options.height - 8,
      escaped(options.x_label), (top + bottom) / 2, escaped(options.y_label));

  double legend = top + 16;
  for (std::size_t s = 0; s < series.size(); ++s) {
    const char* const color = kPalette[s % std::size(kPalette)];
    std::string path;
    std::string dots;
    bool joined = false;
    for (std::size_t i = 0; i < series[s].x.size(); ++i) {
      const double vx = series[s].x[i];
      const double vy = series[s].y[i];
      if (!shows(vx, options.log_x) || !shows(vy, options.log_y)) {
        joined = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", joined ? "L" : "M", ax.pixel(vx), ay.pixel(vy));
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>", ax.pixel(vx),
                          ay.pixel(vy), color);
      joined = true;
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>{}\n", path,
                       color, dots);
    if (series[s].label.empty()) continue;
    svg += fmt::format(
        "<path d=\"M{} {}h18\" stroke=\"{}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{}\">{}</text>"
        "\n",
        left + 8, legend - 4, color, left + 32, legend, escaped(series[s].label));
    legend += 16;
  }
  return svg + "</g>\n";
}

}  // namespace tessera::app
