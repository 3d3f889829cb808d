#pragma once

#include <vector>

namespace tessera::io {

/// A point of the coast, degrees east (0 to 400) and north.
struct CoastPoint {
  double longitude = 0.0;
  double latitude = 0.0;
};

/// Coasts of the whole Earth: lines, good to about 0.1 degree, islands smaller than half a degree
/// left out. They are lines of height zero, so land below the sea has a coast, too.
const std::vector<std::vector<CoastPoint>>& coastlines();

/// Them as text: for each line the number of its points, and for each point the difference of
/// longitude and latitude to the one before in kCoastlineUnit degrees. Numbers in digits of 6 bits,
/// the lowest first, 32 in a digit for "more follows"; the lowest bit of a number is its sign.
extern const char* const kCoastline;
inline constexpr double kCoastlineUnit = 0.02;

}  // namespace tessera::io
