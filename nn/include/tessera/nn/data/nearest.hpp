#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::data {

/// Nearest neighbours among points in a space of a few dimensions (a k-d tree).
class NearestPoints {
 public:
  /// `positions` [points, dims]; only the points in `members` count, of which there must be one.
  NearestPoints(std::span<const double> positions, int dims, std::vector<std::int64_t> members);
  /// The member next to `position` [dims]; of equally near ones the lowest.
  std::int64_t nearest(std::span<const double> position) const;

 private:
  struct Best;
  const double* at(std::int64_t member) const {
    return positions_.data() + static_cast<std::ptrdiff_t>(member) * dims_;
  }
  void build(std::size_t first, std::size_t last, int dim);
  void search(
      std::size_t first, std::size_t last, int dim, const double* position, Best& best) const;

  std::vector<double> positions_;
  int dims_;
  std::vector<std::int64_t>
      members_;  // each range: left of its middle lies below along a dimension
};

}  // namespace tessera::data
