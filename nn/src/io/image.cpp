#include <png.h>

#include <algorithm>
#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/image.hpp>

#include "io/font.hpp"
#include "io/posix_file.hpp"

namespace tessera::io {

Image::Image(int width, int height, Color background) : width_(width), height_(height) {
  if (width < 1 || height < 1)
    throw ShapeError(str("image: ", width, " x ", height, " pixels. Use at least 1 x 1."));
  pixels_.assign(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), background);
}

void Image::set(int x, int y, Color color) {
  if (inside(x, y)) pixels_[index(x, y)] = color;
}

void Image::blend(int x, int y, Color color, double coverage) {
  if (!inside(x, y)) return;
  const double c = std::clamp(coverage, 0.0, 1.0);
  const auto mix = [&](std::uint8_t under, std::uint8_t over) {
    return static_cast<std::uint8_t>(std::lround(under + c * (over - under)));
  };
  Color& pixel = pixels_[index(x, y)];
  pixel = {mix(pixel.r, color.r), mix(pixel.g, color.g), mix(pixel.b, color.b)};
}

void Image::fill(int x, int y, int width, int height, Color color) {
  for (int j = std::max(y, 0); j < std::min(y + height, height_); ++j)
    for (int i = std::max(x, 0); i < std::min(x + width, width_); ++i) pixels_[index(i, j)] = color;
}

void Image::frame(int x, int y, int width, int height, Color color) {
  fill(x, y, width, 1, color);
  fill(x, y + height - 1, width, 1, color);
  fill(x, y, 1, height, color);
  fill(x + width - 1, y, 1, height, color);
}

void Image::line(double x0, double y0, double x1, double y1, Color color, double width) {
  if (!std::isfinite(x0) || !std::isfinite(y0) || !std::isfinite(x1) || !std::isfinite(y1)) return;
  // Coverage falls from 1 to 0 within half a pixel on both sides of the edge.
  const double reach = 0.5 * width + 0.5;
  const auto pixel = [](double v, int limit) {
    return static_cast<int>(std::clamp(v, -1.0, limit + 1.0));
  };
  const int left = std::max(pixel(std::floor(std::min(x0, x1) - reach), width_), 0);
  const int right = std::min(pixel(std::ceil(std::max(x0, x1) + reach), width_), width_ - 1);
  const int top = std::max(pixel(std::floor(std::min(y0, y1) - reach), height_), 0);
  const int bottom = std::min(pixel(std::ceil(std::max(y0, y1) + reach), height_), height_ - 1);
  const double dx = x1 - x0;
  const double dy = y1 - y0;
  const double length2 = dx * dx + dy * dy;
  for (int y = top; y <= bottom; ++y) {
    for (int x = left; x <= right; ++x) {
      const double t =
          length2 > 0 ? std::clamp(((x - x0) * dx + (y - y0) * dy) / length2, 0.0, 1.0) : 0.0;
      const double distance = std::hypot(x - x0 - t * dx, y - y0 - t * dy);
      if (distance < reach) blend(x, y, color, reach - distance);
    }
  }
}

int Image::text_width(std::string_view text, int scale) {
  int count = 0;
  for (const char c : text)
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80)
      ++count;  // continuation bytes of UTF-8 take no room
  return count > 0 ? (count * kGlyphAdvance - 1) * scale : 0;
}

template <class Plot>
void Image::for_each_text_pixel(std::string_view text, int scale, Plot&& plot) {
  int at = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80) continue;
    for (int row = 0; row < kGlyphHeight * scale; ++row)
      for (int column = 0; column < kGlyphWidth * scale; ++column)
        if (glyph_pixel(c, column / scale, row / scale)) plot(at + column, row);
    at += kGlyphAdvance * scale;
  }
}

void Image::text(int x, int y, std::string_view text, Color color, int scale) {
  for_each_text_pixel(text, scale, [&](int along, int down) { set(x + along, y + down, color); });
}

void Image::text_upwards(int x, int y, std::string_view text, Color color, int scale) {
  for_each_text_pixel(text, scale, [&](int along, int down) { set(x + down, y - along, color); });
}

void Image::paste(const Image& image, int x, int y) {
  for (int j = 0; j < image.height(); ++j)
    for (int i = 0; i < image.width(); ++i) set(x + i, y + j, image.at(i, j));
}

void Image::save(const std::string& path) const {
  static_assert(sizeof(Color) == 3);
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(width_);
  png.height = static_cast<png_uint_32>(height_);
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string content(bytes, '\0');
  if (!png_image_write_to_memory(&png, content.data(), &bytes, 0, pixels_.data(), 0, nullptr))
    throw IoError(str(path, ": the picture cannot be compressed (", png.message, ")."));
  content.resize(bytes);
  write_file_atomically(path, content);
}

}  // namespace tessera::io
