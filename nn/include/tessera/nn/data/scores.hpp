#pragma once

#include <cstdint>
#include <span>

namespace tessera::data {

/// Sums of errors, from which scores follow; those of several parts or ranks add up.
struct ErrorSums {
  std::int64_t count = 0;
  double squares = 0.0;   ///< sum of (prediction - truth)^2
  double absolute = 0.0;  ///< sum of |prediction - truth|
  double bias = 0.0;      ///< sum of prediction - truth

  /// Points where one of the two is NaN do not count.
  void add(double prediction, double truth);
  ErrorSums& operator+=(const ErrorSums& other);
  /// Root of the mean square error; NaN without points, as the others.
  double rmse() const;
  double mae() const;
  double mean() const;
};

/// Errors of a relief prediction: everywhere, where the true height is at or above 0 (land), and
/// below 0 (ocean).
struct ReliefScores {
  ErrorSums all;
  ErrorSums land;
  ErrorSums ocean;

  void add(double prediction, double truth);
  ReliefScores& operator+=(const ReliefScores& other);
};

}  // namespace tessera::data
