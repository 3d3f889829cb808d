#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <tessera/kernels/neighbors.hpp>
#include <vector>

namespace tessera::nn {

/// How a box of atoms is cut into parts.
enum class Cutting : std::uint8_t {
  kBricks,    ///< a grid of equal bricks
  kBisection  ///< halves of equal weight, again and again
};

/// The numbers of bricks along the three axes, whose product is `parts`, with the least area of
/// faces between bricks. `heights`: distances between the faces of the whole box; an axis that is
/// periodic has one face more.
std::array<int, 3> brick_grid(const kernels::Vec3& heights,
                              const std::array<bool, 3>& periodic,
                              int parts);

/// Parts of the unit cube: a tree of cuts across the axes. Coordinates are fractions of the box.
class Regions {
 public:
  /// Adds numbers up over all ranks that have points, in place.
  using Sum = std::function<void(std::span<std::int64_t>)>;

  /// All in part 0.
  Regions() = default;
  static Regions bricks(const std::array<int, 3>& grid);
  /// Cuts a region of p parts across its longest side (in units of `heights`) into floor(p / 2) and
  /// the rest so that the weights are as the numbers of parts. Every rank gives its own points and
  /// gets the same regions, whatever points lie where: cuts are found by counting. Weights must not
  /// be negative. (Berger and Bokhari, IEEE Trans. Comput. 36, 570, 1987.)
  static Regions bisection(std::span<const kernels::Vec3> points,
                           std::span<const std::int64_t> weights,
                           const kernels::Vec3& heights,
                           int parts,
                           const Sum& sum);

  int parts() const { return static_cast<int>(boxes_.empty() ? 1 : boxes_.size()); }
  /// The part of a point; points outside the cube belong to the part nearest along each cut.
  int part_of(const kernels::Vec3& u) const;
  /// Whether u lies in the box of the part widened by `margin` (fractions, by axis).
  bool near(int part, const kernels::Vec3& u, const kernels::Vec3& margin) const;

  struct Box {
    kernels::Vec3 lo{0, 0, 0};
    kernels::Vec3 hi{1, 1, 1};
  };
  const Box& box(int part) const { return boxes_.at(static_cast<std::size_t>(part)); }

 private:
  struct Node {
    int axis = -1;  // a leaf
    double cut = 0;
    int low = 0;  // node below the cut; of a leaf: its part
    int high = 0;
  };
  int add(const Box& box,
          int first,
          const std::vector<std::vector<double>>& cuts,
          std::size_t axis);

  std::vector<Node> nodes_;
  std::vector<Box> boxes_;
};

}  // namespace tessera::nn
