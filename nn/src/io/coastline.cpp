#include "io/coastline.hpp"

#include <cstdint>

#include "io/base64.hpp"

namespace tessera::io {
namespace {

std::int64_t number(const char*& at) {
  std::int64_t value = 0;
  for (int shift = 0;; shift += 5) {
    const std::int64_t d = base64_digit(*at++);
    value |= (d & 31) << shift;
    if (d < 32) break;
  }
  return value & 1 ? -(value + 1) / 2 : value / 2;
}

}  // namespace

const std::vector<std::vector<CoastPoint>>& coastlines() {
  static const std::vector<std::vector<CoastPoint>> lines = [] {
    std::vector<std::vector<CoastPoint>> all;
    for (const char* at = kCoastline; *at != '\0';) {
      std::vector<CoastPoint> line(static_cast<std::size_t>(number(at)));
      std::int64_t x = 0, y = 0;
      for (CoastPoint& p : line) {
        x += number(at);
        y += number(at);
        p = {kCoastlineUnit * static_cast<double>(x), kCoastlineUnit * static_cast<double>(y)};
      }
      all.push_back(std::move(line));
    }
    return all;
  }();
  return lines;
}

}  // namespace tessera::io
