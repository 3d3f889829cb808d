#include <algorithm>
#include <limits>
#include <tessera/core/error.hpp>
#include <tessera/nn/data/nearest.hpp>

namespace tessera::data {

struct NearestPoints::Best {
  double distance = std::numeric_limits<double>::infinity();
  std::int64_t member = -1;
};

NearestPoints::NearestPoints(std::span<const double> positions,
                             int dims,
                             std::vector<std::int64_t> members)
    : positions_(positions.begin(), positions.end()), dims_(dims), members_(std::move(members)) {
  if (members_.empty()) throw UsageError("data: nearest of no points. Give at least one.");
  build(0, members_.size(), 0);
}

void NearestPoints::build(std::size_t first, std::size_t last, int dim) {
  if (last - first < 2) return;
  const std::size_t middle = first + (last - first) / 2;
  const auto begin = members_.begin();
  std::nth_element(begin + static_cast<std::ptrdiff_t>(first),
                   begin + static_cast<std::ptrdiff_t>(middle),
                   begin + static_cast<std::ptrdiff_t>(last), [&](std::int64_t a, std::int64_t b) {
                     return at(a)[dim] != at(b)[dim] ? at(a)[dim] < at(b)[dim] : a < b;
                   });
  build(first, middle, (dim + 1) % dims_);
  build(middle + 1, last, (dim + 1) % dims_);
}

void NearestPoints::search(
    std::size_t first, std::size_t last, int dim, const double* position, Best& best) const {
  if (first >= last) return;
  const std::size_t middle = first + (last - first) / 2;
  const std::int64_t member = members_[middle];
  double distance = 0.0;
  for (int d = 0; d < dims_; ++d) {
    const double apart = position[d] - at(member)[d];
    distance += apart * apart;
  }
  if (distance < best.distance || (distance == best.distance && member < best.member))
    best = {distance, member};
  const double beyond = position[dim] - at(member)[dim];
  const int next = (dim + 1) % dims_;
  const auto left = [&] { search(first, middle, next, position, best); };
  const auto right = [&] { search(middle + 1, last, next, position, best); };
  if (beyond < 0) {
    left();
    if (beyond * beyond <= best.distance) right();
  } else {
    right();
    if (beyond * beyond <= best.distance) left();
  }
}

std::int64_t NearestPoints::nearest(std::span<const double> position) const {
  Best best;
  search(0, members_.size(), 0, position.data(), best);
  return best.member;
}

}  // namespace tessera::data
