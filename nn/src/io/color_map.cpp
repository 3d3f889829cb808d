#include <algorithm>
#include <cmath>
#include <span>
#include <tessera/nn/io/plot.hpp>

namespace tessera::io {
namespace {

struct Stop {
  double at;
  Color color;
};

// Nine samples of viridis (S. van der Walt, N. Smith; CC0); linear between them.
constexpr Stop kViridis[] = {
    {0.000, {68, 1, 84}},    {0.125, {71, 45, 123}},  {0.250, {59, 82, 139}},
    {0.375, {44, 114, 142}}, {0.500, {33, 145, 140}}, {0.625, {40, 174, 128}},
    {0.750, {94, 201, 98}},  {0.875, {173, 220, 48}}, {1.000, {253, 231, 37}}};
constexpr Stop kDiverging[] = {{0.00, {20, 50, 110}},   {0.15, {45, 105, 180}},
                               {0.35, {150, 195, 230}}, {0.50, {248, 248, 248}},
                               {0.65, {245, 175, 145}}, {0.85, {200, 60, 60}},
                               {1.00, {110, 10, 35}}};
// Both sides meet at sea level.
constexpr Stop kRelief[] = {
    {0.000, {8, 16, 60}},     {0.200, {16, 54, 120}},   {0.380, {50, 120, 185}},
    {0.470, {125, 190, 225}}, {0.500, {190, 228, 240}}, {0.500, {70, 130, 70}},
    {0.560, {120, 165, 85}},  {0.650, {215, 205, 130}}, {0.780, {165, 115, 70}},
    {0.900, {130, 90, 80}},   {1.000, {250, 250, 250}}};

std::span<const Stop> stops_of(ColorMap map) {
  switch (map) {
    case ColorMap::kDiverging:
      return kDiverging;
    case ColorMap::kRelief:
      return kRelief;
    default:
      return kViridis;
  }
}

}  // namespace

Color color_at(ColorMap map, double t) {
  const std::span<const Stop> stops = stops_of(map);
  t = std::clamp(t, 0.0, 1.0);
  std::size_t i = 1;
  // At a jump the upper side holds.
  while (i + 1 < stops.size() && t >= stops[i].at) ++i;
  const Stop& a = stops[i - 1];
  const Stop& b = stops[i];
  const double u = std::clamp((t - a.at) / (b.at - a.at), 0.0, 1.0);
  const auto mix = [&](std::uint8_t x, std::uint8_t y) {
    return static_cast<std::uint8_t>(std::lround(x + u * (y - x)));
  };
  return {mix(a.color.r, b.color.r), mix(a.color.g, b.color.g), mix(a.color.b, b.color.b)};
}

}  // namespace tessera::io
