#include "io/map_frame.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "io/coastline.hpp"

namespace tessera::io {
namespace {

constexpr Color kCoast{30, 30, 30};

/// Round degrees within [low, high], at most about `count` of them.
std::vector<double> degree_ticks(double low, double high, int count) {
  for (const double step : {1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 180.0}) {
    if ((high - low) / step > count && step < 180.0) continue;
    std::vector<double> ticks;
    for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9; ++k)
      ticks.push_back(k * step);
    // A small region has none of these.
    return ticks.size() > 1 ? ticks : round_ticks(low, high, count);
  }
  return {};
}

/// 60N, 120W, 0
std::string degree_label(double degree, bool longitude) {
  double d = degree;
  if (longitude) d -= 360.0 * std::round(d / 360.0);
  char text[32];
  std::snprintf(text, sizeof(text), "%g", std::abs(d));
  std::string label = text;
  const bool none = label == "0" || (longitude && label == "180");
  if (!none) label += longitude ? (d < 0 ? "W" : "E") : (d < 0 ? "S" : "N");
  return label;
}

}  // namespace

double MapFrame::Axis::at(double degree) const {
  if (degrees.size() < 2) return pixels[0];
  const auto above = std::upper_bound(degrees.begin() + 1, degrees.end() - 1, degree);
  const auto i = static_cast<std::size_t>(above - degrees.begin());
  const double t = (degree - degrees[i - 1]) / (degrees[i] - degrees[i - 1]);
  return pixels[i - 1] + t * (pixels[i] - pixels[i - 1]);
}

double MapFrame::Axis::low() const {
  return degrees.size() < 2 ? degrees[0] : degrees[0] - 0.5 * (degrees[1] - degrees[0]);
}

double MapFrame::Axis::high() const {
  const std::size_t n = degrees.size();
  return n < 2 ? degrees[0] : degrees[n - 1] + 0.5 * (degrees[n - 1] - degrees[n - 2]);
}

MapFrame::Axis MapFrame::axis_of(
    std::vector<double> degrees, double scale, int size, bool turned, bool wraps) {
  // 350, 355, 0, 5 goes on at 360.
  for (std::size_t i = 1; wraps && i < degrees.size(); ++i)
    degrees[i] -= 360.0 * std::round((degrees[i] - degrees[i - 1]) / 360.0);
  Axis axis;
  for (std::size_t i = 0; i < degrees.size(); ++i) {
    const double pixel = (static_cast<double>(i) + 0.5) * scale;
    axis.pixels.push_back(turned ? size - pixel : pixel);
  }
  if (degrees.front() > degrees.back()) {
    std::reverse(degrees.begin(), degrees.end());
    std::reverse(axis.pixels.begin(), axis.pixels.end());
  }
  axis.degrees = std::move(degrees);
  return axis;
}

MapFrame::MapFrame(const FieldPanel& panel, int width, int height, double scale)
    : x_(axis_of(panel.longitudes, scale, width, false, true)),
      y_(axis_of(panel.latitudes, scale, height, panel.first_row_below, false)),
      width_(width),
      height_(height) {}

void MapFrame::draw_coastlines(Image& field) const {
  const double line_width = width_ < 500 ? 0.8 : 1.1;
  for (double turn = std::floor((x_.low() - 400.0) / 360.0) * 360.0; turn <= x_.high();
       turn += 360.0) {
    for (const auto& line : coastlines()) {
      for (std::size_t i = 1; i < line.size(); ++i) {
        const double west = std::min(line[i - 1].longitude, line[i].longitude) + turn;
        const double east = std::max(line[i - 1].longitude, line[i].longitude) + turn;
        if (east < x_.low() || west > x_.high()) continue;
        // Pixel i of an image has its centre at i.
        field.line(x_.at(line[i - 1].longitude + turn) - 0.5, y_.at(line[i - 1].latitude) - 0.5,
                   x_.at(line[i].longitude + turn) - 0.5, y_.at(line[i].latitude) - 0.5, kCoast,
                   line_width);
      }
    }
  }
}

void MapFrame::draw_degrees(Image& image, int left, int top) const {
  image.frame(left - 1, top - 1, width_ + 2, height_ + 2, kBlack);
  for (const double degree : degree_ticks(x_.low(), x_.high(), std::max(2, width_ / 60))) {
    const int x = left + static_cast<int>(std::lround(x_.at(degree) - 0.5));
    const std::string label = degree_label(degree, true);
    image.fill(x, top + height_, 1, 4, kBlack);
    image.text(x - Image::text_width(label) / 2, top + height_ + 6, label);
  }
  for (const double degree : degree_ticks(y_.low(), y_.high(), std::max(2, height_ / 30))) {
    const int y = top + static_cast<int>(std::lround(y_.at(degree) - 0.5));
    const std::string label = degree_label(degree, false);
    image.fill(left - 4, y, 4, 1, kBlack);
    image.text(left - 6 - Image::text_width(label), y - 3, label);
  }
}

}  // namespace tessera::io
