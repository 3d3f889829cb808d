#pragma once

#include <array>

/// Velocity sets (Qian, d'Humieres & Lallemand 1992): population 0 rests, 2i - 1 and 2i are
/// opposite. Directions are (y, x) or (z, y, x).
namespace tessera::solvers {

template <int D>
struct Lattice;

template <>
struct Lattice<2> {
  static constexpr int kQ = 9;
  static constexpr int kE[kQ][2] = {{0, 0}, {0, 1},   {0, -1}, {1, 0}, {-1, 0},
                                    {1, 1}, {-1, -1}, {1, -1}, {-1, 1}};
  static constexpr double kW[kQ] = {4.0 / 9,  1.0 / 9,  1.0 / 9,  1.0 / 9, 1.0 / 9,
                                    1.0 / 36, 1.0 / 36, 1.0 / 36, 1.0 / 36};
};

template <>
struct Lattice<3> {
  static constexpr int kQ = 19;
  static constexpr int kE[kQ][3] = {{0, 0, 0},  {0, 0, 1},   {0, 0, -1},  {0, 1, 0},   {0, -1, 0},
                                    {1, 0, 0},  {-1, 0, 0},  {0, 1, 1},   {0, -1, -1}, {0, 1, -1},
                                    {0, -1, 1}, {1, 0, 1},   {-1, 0, -1}, {1, 0, -1},  {-1, 0, 1},
                                    {1, 1, 0},  {-1, -1, 0}, {1, -1, 0},  {-1, 1, 0}};
  static constexpr double kW[kQ] = {1.0 / 3,  1.0 / 18, 1.0 / 18, 1.0 / 18, 1.0 / 18,
                                    1.0 / 18, 1.0 / 18, 1.0 / 36, 1.0 / 36, 1.0 / 36,
                                    1.0 / 36, 1.0 / 36, 1.0 / 36, 1.0 / 36, 1.0 / 36,
                                    1.0 / 36, 1.0 / 36, 1.0 / 36, 1.0 / 36};
};

}  // namespace tessera::solvers
