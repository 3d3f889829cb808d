#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/models/atomistic/silica.hpp>

namespace tessera::atomistic {

nn::Structure supercell(const nn::Structure& structure, const std::array<std::int64_t, 3>& counts) {
  nn::Structure whole;
  whole.cell = structure.cell;
  for (std::size_t k = 0; k < 3; ++k) {
    if (counts[k] < 1) {
      throw UsageError(str("supercell: ", counts[k], " copies along an axis. Give at least 1."));
    }
    for (double& x : whole.cell.vectors[k]) x *= static_cast<double>(counts[k]);
  }
  for (std::int32_t a = 0; a < counts[0]; ++a) {
    for (std::int32_t b = 0; b < counts[1]; ++b) {
      for (std::int32_t c = 0; c < counts[2]; ++c) {
        const nn::Vec3 shift = structure.cell.shift({a, b, c});
        whole.species.insert(whole.species.end(), structure.species.begin(),
                             structure.species.end());
        for (std::size_t i = 0; i < structure.positions.size(); ++i)
          whole.positions.push_back(structure.positions[i] + shift[i % 3]);
      }
    }
  }
  return whole;
}

nn::Structure quartz(const std::array<std::int64_t, 3>& counts) {
  constexpr double kA = 4.9019;
  constexpr double kC = 5.3988;
  constexpr double kU = 0.4673;
  constexpr double kX = 0.4130;
  constexpr double kY = 0.2711;
  constexpr double kZ = 0.2172;
  nn::Structure cell;
  cell.cell.vectors = {nn::Vec3{kA, 0, 0}, nn::Vec3{-kA / 2, kA * std::sqrt(3.0) / 2, 0},
                       nn::Vec3{0, 0, kC}};
  cell.cell.periodic = {true, true, true};
  const std::array<nn::Vec3, 9> places = {
      nn::Vec3{kX, kY, kZ},
      nn::Vec3{-kY, kX - kY, kZ + 1.0 / 3.0},
      nn::Vec3{-kX + kY, -kX, kZ + 2.0 / 3.0},
      nn::Vec3{kY, kX, -kZ},
      nn::Vec3{kX - kY, -kY, -kZ + 2.0 / 3.0},
      nn::Vec3{-kX, -kX + kY, -kZ + 1.0 / 3.0},
      nn::Vec3{kU, 0, 1.0 / 3.0},
      nn::Vec3{0, kU, 2.0 / 3.0},
      nn::Vec3{-kU, -kU, 0},
  };
  for (std::size_t i = 0; i < places.size(); ++i) {
    cell.species.push_back(i < 6 ? 8 : 14);
    for (std::size_t c = 0; c < 3; ++c) {
      double r = 0.0;
      for (std::size_t k = 0; k < 3; ++k)
        r += (places[i][k] - std::floor(places[i][k])) * cell.cell.vectors[k][c];
      cell.positions.push_back(r);
    }
  }
  return supercell(cell, counts);
}

nn::Structure diamond_silicon(const std::array<std::int64_t, 3>& counts) {
  constexpr double kA = 5.431;
  nn::Structure cell;
  cell.cell.vectors = {nn::Vec3{kA, 0, 0}, nn::Vec3{0, kA, 0}, nn::Vec3{0, 0, kA}};
  cell.cell.periodic = {true, true, true};
  const std::array<nn::Vec3, 4> faces = {nn::Vec3{0, 0, 0}, nn::Vec3{0, 0.5, 0.5},
                                         nn::Vec3{0.5, 0, 0.5}, nn::Vec3{0.5, 0.5, 0}};
  for (const nn::Vec3& face : faces) {
    for (const double offset : {0.0, 0.25}) {
      cell.species.push_back(14);
      for (const double f : face) cell.positions.push_back((f + offset) * kA);
    }
  }
  return supercell(cell, counts);
}

}  // namespace tessera::atomistic
