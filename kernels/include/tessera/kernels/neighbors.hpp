#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::kernels {

using Vec3 = std::array<double, 3>;

/// A box that repeats along some of its vectors. Lengths in one unit (Angstrom).
struct Cell {
  std::array<Vec3, 3> vectors{};  ///< rows a, b, c; those of axes that do not repeat may be zero
  std::array<bool, 3> periodic{};

  /// |det|; 0 where a vector is zero.
  double volume() const;
  /// This cell with unit vectors, orthogonal to the others, in place of zero ones along axes that
  /// do not repeat: what fractional coordinates refer to. Throws ShapeError when a periodic vector
  /// is zero or the volume vanishes.
  Cell completed() const;
  /// S . cell
  Vec3 shift(const std::array<std::int32_t, 3>& s) const;
  friend bool operator==(const Cell&, const Cell&) = default;
};

/// Fractional coordinates in a completed cell.
class Fractions {
 public:
  explicit Fractions(const Cell& completed);
  /// f with f . cell = r
  Vec3 of(const double* r) const;
  Vec3 cartesian(const Vec3& f) const;
  /// Distance between the two faces of the cell across axis k.
  double height(int k) const { return height_[static_cast<std::size_t>(k)]; }

 private:
  std::array<Vec3, 3> vectors_;
  std::array<Vec3, 3> inverse_;
  Vec3 height_;
};

/// Directed edges (receiver, sender, S) with |r_receiver - r_sender + S . cell| < cutoff.
struct NeighborList {
  std::vector<std::int64_t> receivers;  ///< not decreasing
  std::vector<std::int64_t> senders;
  std::vector<std::int32_t> shifts;  ///< 3 per edge
  /// Two points at the same place (closer than 1e-8), where there are such.
  std::array<std::int64_t, 2> overlap{-1, -1};
};

/// All neighbours of the first `receivers` of the points (3 numbers each) among all points and
/// their images: any cell, any cutoff, as many images of a pair as there are, images of a point
/// itself; only a point and itself with S = 0 are none. Points may lie outside the cell. Edges of a
/// receiver are sorted by (`keys` of the sender, S), and which there are does not depend on what
/// other points are given. Cells lists: O(points). Throws ShapeError for a cell without volume,
/// UsageError for a cutoff that is not positive.
NeighborList find_neighbors(std::span<const double> points,
                            std::int64_t receivers,
                            const Cell& cell,
                            double cutoff,
                            std::span<const std::int64_t> keys);

}  // namespace tessera::kernels
