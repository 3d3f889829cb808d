#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/plot.hpp>
#include <vector>

#include "io/convert.hpp"
#include "io/map_frame.hpp"

namespace tessera::io {
namespace {

constexpr int kMargin = 12;
constexpr int kTitle = 20;  // room above a field
constexpr int kBarGap = 8;  // between field and colour bar
constexpr int kBarWidth = 14;
constexpr int kLabelWidth = 62;  // beside the bar
constexpr int kMinHeight = 120;  // so that a bar has room for its labels
constexpr int kBarLabel = 12;    // for what the bar shows, upwards

/// A field reduced or enlarged to the size at which it is shown.
struct Shown {
  int width = 0;
  int height = 0;
  double pixels_per_point = 1.0;
  std::vector<double> values;

  double at(int x, int y) const {
    return values[static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                  static_cast<std::size_t>(x)];
  }
};

Shown show(const View& field, int target_width, bool first_row_below) {
  const std::int64_t rows = field.shape[0];
  const std::int64_t columns = field.shape[1];
  const std::int64_t shrink = (columns + target_width - 1) / target_width;
  const std::int64_t grow = std::max<std::int64_t>(1, target_width / columns);
  Shown shown;
  shown.pixels_per_point = static_cast<double>(grow) / static_cast<double>(shrink);
  const std::int64_t small_rows = (rows + shrink - 1) / shrink;
  const std::int64_t small_columns = (columns + shrink - 1) / shrink;
  shown.width = static_cast<int>(small_columns * grow);
  shown.height = static_cast<int>(small_rows * grow);
  shown.values.resize(static_cast<std::size_t>(shown.width) *
                      static_cast<std::size_t>(shown.height));
  for (std::int64_t i = 0; i < small_rows; ++i) {
    for (std::int64_t j = 0; j < small_columns; ++j) {
      double sum = 0.0;
      int count = 0;
      for (std::int64_t a = i * shrink; a < std::min(rows, (i + 1) * shrink); ++a) {
        for (std::int64_t b = j * shrink; b < std::min(columns, (j + 1) * shrink); ++b) {
          const double value =
              load_as_double(field.data, field.dtype, a * field.strides[0] + b * field.strides[1]);
          if (!std::isfinite(value)) continue;
          sum += value;
          ++count;
        }
      }
      const double mean = count > 0 ? sum / count : std::nan("");
      const std::int64_t row = first_row_below ? small_rows - 1 - i : i;
      for (std::int64_t y = row * grow; y < (row + 1) * grow; ++y)
        std::fill_n(shown.values.begin() + y * shown.width + j * grow, grow, mean);
    }
  }
  return shown;
}

struct Range {
  double low = 0.0;
  double high = 1.0;
};

Range range_of(const FieldPanel& panel, const Shown& shown) {
  std::vector<double> values;
  for (const double v : shown.values)
    if (!std::isnan(v)) values.push_back(panel.map == ColorMap::kDiverging ? std::abs(v) : v);
  Range range{panel.low, panel.high};
  if (panel.map == ColorMap::kDiverging) {
    double most = std::fmax(std::abs(panel.low), std::abs(panel.high));
    if (std::isnan(most) && !values.empty()) {
      const auto nth = values.begin() +
                       static_cast<std::ptrdiff_t>(static_cast<double>(values.size() - 1) * 0.995);
      std::nth_element(values.begin(), nth, values.end());
      most = *nth;
    }
    range = {-most, most};
  } else if (!values.empty()) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    if (std::isnan(range.low)) range.low = *low;
    if (std::isnan(range.high)) range.high = *high;
  }
  if (!std::isfinite(range.low) || !std::isfinite(range.high)) range = {0.0, 1.0};
  if (!(range.high > range.low))
    range.high = range.low + std::max(1e-12, std::abs(range.low) * 1e-6);
  return range;
}

/// Position of a value on the colour bar.
double position(ColorMap map, double value, Range range) {
  if (map == ColorMap::kRelief) {
    if (value < 0) return 0.5 - 0.5 * std::min(1.0, value / std::min(range.low, -1e-12));
    return 0.5 + 0.5 * std::min(1.0, value / std::max(range.high, 1e-12));
  }
  return (value - range.low) / (range.high - range.low);
}

Color shaded(Color color, double light) {
  const auto scale = [&](std::uint8_t c) {
    return static_cast<std::uint8_t>(std::clamp(std::lround(c * light), 0L, 255L));
  };
  return {scale(color.r), scale(color.g), scale(color.b)};
}

Image draw_panel(const FieldPanel& panel, const Shown& shown) {
  const Range range = range_of(panel, shown);
  const int height = std::max(shown.height, kMinHeight);
  const bool geographic = !panel.latitudes.empty();
  const int left = geographic ? kMapLeft : 0;
  Image image(left + shown.width + kBarGap + kBarWidth + kLabelWidth +
                  (panel.label.empty() ? 0 : kBarLabel),
              kTitle + height + kMargin + (geographic ? kMapBelow : 0));
  image.text(left, 4, panel.title);

  double slope = 0.0;  // typical difference between neighbours
  const auto rise = [&](int x, int y) {
    const double here = shown.at(x, y);
    const double rise_x = x > 0 ? here - shown.at(x - 1, y) : 0.0;
    const double rise_y = y > 0 ? here - shown.at(x, y - 1) : 0.0;
    return std::isfinite(rise_x + rise_y) ? rise_x + rise_y : 0.0;
  };
  if (panel.hillshade) {
    for (int y = 0; y < shown.height; ++y)
      for (int x = 0; x < shown.width; ++x) slope += std::abs(rise(x, y));
    slope = 2.0 * slope / static_cast<double>(shown.values.size());
  }
  Image field(shown.width, shown.height);
  for (int y = 0; y < shown.height; ++y) {
    for (int x = 0; x < shown.width; ++x) {
      const double value = shown.at(x, y);
      Color color = kGrey;
      if (!std::isnan(value)) color = color_at(panel.map, position(panel.map, value, range));
      // What rises to the lower right faces the light.
      if (slope > 0) color = shaded(color, 1.0 + 0.35 * std::tanh(rise(x, y) / slope));
      field.set(x, y, color);
    }
  }
  if (geographic) {
    const MapFrame frame(panel, shown.width, shown.height, shown.pixels_per_point);
    if (panel.coastlines) frame.draw_coastlines(field);
    frame.draw_degrees(image, left, kTitle);
  }
  image.paste(field, left, kTitle);
  const int bar = left + shown.width + kBarGap;
  for (int y = 0; y < height; ++y)
    image.fill(bar, kTitle + y, kBarWidth, 1, color_at(panel.map, 1.0 - (y + 0.5) / height));
  image.frame(bar, kTitle, kBarWidth, height, kBlack);
  int free_below = kTitle + height + 4;  // labels from the bottom up must not overlap
  for (const double tick : round_ticks(range.low, range.high, std::clamp(height / 30, 2, 10))) {
    const double t = position(panel.map, tick, range);
    const int y = kTitle + static_cast<int>(std::lround((1.0 - t) * (height - 1)));
    image.fill(bar + kBarWidth, y, 3, 1, kBlack);
    if (y + 4 > free_below) continue;
    char label[32];
    std::snprintf(label, sizeof(label), "%g", tick);
    image.text(bar + kBarWidth + 5, y - 3, label);
    free_below = y - 6;
  }
  if (!panel.unit.empty()) image.text(bar, 4, panel.unit);
  if (!panel.label.empty())
    image.text_upwards(bar + kBarWidth + kLabelWidth + 2,
                       kTitle + (height + Image::text_width(panel.label)) / 2, panel.label);
  return image;
}

}  // namespace

Image draw_fields(const std::vector<FieldPanel>& panels, const FieldPicture& options) {
  if (panels.empty() || options.columns < 1 || options.max_width < 1)
    throw ShapeError(
        "draw_fields: nothing to draw. Give at least one panel, one column and one pixel.");
  std::int64_t widest = 0;
  for (const FieldPanel& panel : panels) {
    if (panel.values.dims() != 2 || panel.values.empty() || !is_floating(panel.values.dtype))
      throw ShapeError(str("draw_fields: panel \"", panel.title, "\" has shape ",
                           panel.values.shape, " of type ", name(panel.values.dtype),
                           ". Draw 2-D floating fields."));
    check_view("draw_fields", panel.values, panel.values.shape);
    const Shape degrees = {std::ssize(panel.latitudes), std::ssize(panel.longitudes)};
    if (degrees != Shape{0, 0} && degrees != panel.values.shape)
      throw ShapeError(str("draw_fields: panel \"", panel.title, "\" of shape ", panel.values.shape,
                           " has ", degrees[0], " latitudes and ", degrees[1],
                           " longitudes. Give one for each row and column, or none."));
    widest = std::max(widest, panel.values.shape[1]);
  }
  const auto target = static_cast<int>(
      std::min<std::int64_t>(options.max_width, std::max<std::int64_t>(widest, options.min_width)));
  std::vector<Image> images;
  for (const FieldPanel& panel : panels)
    images.push_back(draw_panel(panel, show(panel.values, target, panel.first_row_below)));

  const auto columns = std::min(panels.size(), static_cast<std::size_t>(options.columns));
  std::vector<int> column_width(columns, 0);
  std::vector<int> row_height((images.size() + columns - 1) / columns, 0);
  for (std::size_t i = 0; i < images.size(); ++i) {
    column_width[i % columns] = std::max(column_width[i % columns], images[i].width());
    row_height[i / columns] = std::max(row_height[i / columns], images[i].height());
  }
  int width = kMargin;
  for (const int w : column_width) width += w + kMargin;
  const int top = kMargin + (options.title.empty() ? 0 : Image::text_height(2) + kMargin);
  int height = top;
  for (const int h : row_height) height += h;
  Image picture(std::max(width, Image::text_width(options.title, 2) + 2 * kMargin), height);
  picture.text(kMargin, kMargin, options.title, kBlack, 2);
  int y = top;
  for (std::size_t i = 0; i < images.size();) {
    int x = kMargin;
    for (std::size_t c = 0; c < columns && i < images.size(); ++c, ++i) {
      picture.paste(images[i], x, y);
      x += column_width[c] + kMargin;
    }
    y += row_height[(i - 1) / columns];
  }
  return picture;
}

}  // namespace tessera::io
