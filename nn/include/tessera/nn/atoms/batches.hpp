#pragma once

#include <cstdint>
#include <span>
#include <tessera/nn/atoms/structure.hpp>
#include <vector>

namespace tessera::nn {

/// Random order of 0..n-1, the same wherever it is asked for: a shuffle keyed by (seed, epoch).
std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::uint64_t epoch = 0);

/// Which of n structures train and which validate.
struct DataSplit {
  std::vector<std::int64_t> train;  ///< ascending
  std::vector<std::int64_t> valid;  ///< ascending
};
/// A random `fraction` of 0..n-1 (rounded up, but never all) is for validation. Throws UsageError
/// unless 0 <= fraction < 1.
DataSplit split_data(std::int64_t n, double fraction, std::uint64_t seed);

/// Structures of these numbers, in this order, in batches of `size`; the last one is smaller or,
/// with `drop_last`, left out (unless it is the only one). The structures must outlive the result.
/// Throws UsageError for a number outside of `structures` and a size below 1.
std::vector<std::vector<const Structure*>> batches_of(std::span<const Structure> structures,
                                                      std::span<const std::int64_t> order,
                                                      std::int64_t size,
                                                      bool drop_last = false);

}  // namespace tessera::nn
