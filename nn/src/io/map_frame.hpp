#pragma once

#include <tessera/nn/io/image.hpp>
#include <tessera/nn/io/plot.hpp>
#include <vector>

namespace tessera::io {

inline constexpr int kMapLeft = 30;   // room for latitudes beside a field, in pixels
inline constexpr int kMapBelow = 14;  // and for longitudes below it

/// Where degrees lie in the picture of a field.
class MapFrame {
 public:
  /// `width`, `height` of the picture of the panel's field, `scale` pixels for each point of it.
  MapFrame(const FieldPanel& panel, int width, int height, double scale);

  /// Into the picture of the field alone.
  void draw_coastlines(Image& field) const;
  /// Around the picture of the field, which lies at (left, top) of `image`.
  void draw_degrees(Image& image, int left, int top) const;

 private:
  /// Pixels by degrees, through points that lie as rows or columns do.
  struct Axis {
    std::vector<double> degrees;  // ascending
    std::vector<double> pixels;
    double at(double degree) const;  // goes on straight beyond the ends
    double low() const;              // half a point beyond the first
    double high() const;
  };
  static Axis axis_of(std::vector<double> degrees, double scale, int size, bool turned, bool wraps);

  Axis x_;
  Axis y_;
  int width_;
  int height_;
};

}  // namespace tessera::io
