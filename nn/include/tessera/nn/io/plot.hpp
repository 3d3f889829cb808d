#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <tessera/core/view.hpp>
#include <tessera/nn/io/image.hpp>
#include <vector>

namespace tessera::io {

/// How values become colours.
enum class ColorMap : std::uint8_t {
  kViridis,    ///< dark to bright, even to the eye
  kDiverging,  ///< blue, white, red; white is 0 and the range is symmetric about it
  kRelief,     ///< sea below 0, land above
};

/// The colour at position t of the map, clamped to 0..1.
Color color_at(ColorMap map, double t);

/// A 2-D field as one panel of a picture. NaN is grey.
struct FieldPanel {
  View values;  ///< [rows, columns], floating, in host memory
  std::string title = {};
  ColorMap map = ColorMap::kViridis;
  /// Ends of the colour bar; NaN: those of the values, for kDiverging the magnitude that 99.5 % of
  /// them do not exceed.
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
  std::string unit = {};
  bool first_row_below = false;  ///< row 0 at the lower edge: latitudes that ascend
  bool hillshade = false;        ///< lights slopes from the upper left
  std::string label = {};        ///< beside the colour bar
  /// Degrees north of the rows and east of the columns, where they are known: a frame with degrees.
  std::vector<double> latitudes = {};
  std::vector<double> longitudes = {};
  bool coastlines = false;  ///< lines of the coasts; with latitudes and longitudes
};

struct FieldPicture {
  std::string title = {};
  int columns = 2;  ///< panels side by side
  int max_width =
      1080;  ///< of one panel's field, in pixels; larger fields are reduced by block means
  int min_width = 240;  ///< smaller fields are enlarged: squares of pixels
};

/// Draws fields with titles and colour bars. Throws ShapeError unless all are 2-D, not empty and of
/// as many rows and columns as they have latitudes and longitudes.
Image draw_fields(const std::vector<FieldPanel>& panels, const FieldPicture& options = {});

/// A line of a plot. Points that are not finite, or not positive on a logarithmic axis, interrupt
/// it.
struct PlotSeries {
  std::string label = {};
  std::vector<double> x;
  std::vector<double> y;
  bool points = false;  ///< dots in place of a line
};

struct PlotOptions {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  bool log_x = false;
  bool log_y = false;
  int width = 800;
  int height = 480;
};

/// Draws lines with axes, ticks, grid and legend. Throws ShapeError when x and y differ in length.
Image draw_plot(const std::vector<PlotSeries>& series, const PlotOptions& options = {});

/// Round numbers within [low, high], at most about `count` of them: multiples of 1, 2 or 5 times a
/// power of ten.
std::vector<double> round_ticks(double low, double high, int count);

}  // namespace tessera::io
