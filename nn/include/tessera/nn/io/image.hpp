#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::io {

struct Color {
  std::uint8_t r = 0;
  std::uint8_t g = 0;
  std::uint8_t b = 0;
  friend bool operator==(Color, Color) = default;
};

inline constexpr Color kBlack{0, 0, 0};
inline constexpr Color kWhite{255, 255, 255};
inline constexpr Color kGrey{160, 160, 160};

/// A picture in memory, 8 bits per channel; (0, 0) is the upper left corner. Drawing outside of it
/// has no effect.
class Image {
 public:
  Image(int width, int height, Color background = kWhite);

  int width() const { return width_; }
  int height() const { return height_; }
  Color at(int x, int y) const { return pixels_[index(x, y)]; }
  void set(int x, int y, Color color);
  /// Mixes `color` over the pixel; coverage 0..1.
  void blend(int x, int y, Color color, double coverage);
  void fill(int x, int y, int width, int height, Color color);
  /// The one pixel wide border of a rectangle.
  void frame(int x, int y, int width, int height, Color color);
  /// A smooth line through pixel centres.
  void line(double x0, double y0, double x1, double y1, Color color, double width = 1.0);
  /// Text in a font of 5 x 7 pixels, ASCII only, from its upper left corner.
  void text(int x, int y, std::string_view text, Color color = kBlack, int scale = 1);
  /// Text that runs upwards; (x, y) is the lower left corner of the picture of the text.
  void text_upwards(int x, int y, std::string_view text, Color color = kBlack, int scale = 1);
  void paste(const Image& image, int x, int y);
  /// Writes a PNG file, whole or not at all; throws IoError.
  void save(const std::string& path) const;

  static int text_width(std::string_view text, int scale = 1);
  static int text_height(int scale = 1) { return 7 * scale; }

 private:
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) +
           static_cast<std::size_t>(x);
  }
  bool inside(int x, int y) const { return x >= 0 && y >= 0 && x < width_ && y < height_; }
  template <class Plot>
  static void for_each_text_pixel(std::string_view text, int scale, Plot&& plot);
  int width_;
  int height_;
  std::vector<Color> pixels_;
};

}  // namespace tessera::io
