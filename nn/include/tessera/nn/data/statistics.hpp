#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <tessera/core/box.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::data {

/// Weighted mean, deviation and extremes of a set of values, mergeable (Chan, Golub & LeVeque,
/// 1979). NaN is a missing value and counts nowhere else.
struct Moments {
  std::int64_t count = 0;    ///< values of a weight above 0
  std::int64_t missing = 0;  ///< NaN, of any weight
  double weight = 0.0;       ///< sum of weights
  double mean = 0.0;         ///< sum w x / sum w
  double m2 = 0.0;           ///< sum w (x - mean)^2
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  /// Of values and their weights (empty: 1 each).
  static Moments of(std::span<const double> values, std::span<const double> weights = {});
  /// Of both sets together.
  void merge(const Moments& other);
  /// sqrt(m2 / weight); 1 for a constant field, which has no scale of its own.
  double std() const;
};

struct StatisticsOptions {
  /// What a point counts: the product of these, one list per dimension (empty: all 1). 0 leaves
  /// points out (the test part, the dry land).
  std::vector<std::vector<double>> weights = {};
};

/// cos(latitude), what a point of a regular grid on the sphere stands for.
std::vector<double> area_weights(const std::vector<double>& latitudes_in_degrees);

/// Collective: the ranks share one pass over an array of this shape. `read` puts a box into memory,
/// row-major, missing points as NaN. The result does not depend on the number of ranks: the array
/// is cut into fixed boxes, which are merged in order. Throws on every rank what `read` throws, and
/// DataError, naming `what`, when no point counts or values are infinite.
Moments statistics(const std::string& what,
                   const Shape& shape,
                   const std::function<void(const Box&, std::span<double>)>& read,
                   const io::Collective& ranks = {},
                   const StatisticsOptions& options = {});

/// The same of a variable of a file; each rank reads its share of it once.
Moments statistics(const io::FieldReader& reader,
                   const std::string& variable,
                   const io::Collective& ranks = {},
                   const StatisticsOptions& options = {});

}  // namespace tessera::data
