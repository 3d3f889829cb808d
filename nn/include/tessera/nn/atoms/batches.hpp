#pragma once

#include <cstdint>
#include <span>
#include <tessera/nn/atoms/structure.hpp>
#include <vector>

namespace tessera::nn {

/// Which of n structures train and which validate.
struct DataSplit {
  std::vector<std::int64_t> train;  ///< ascending
  std::vector<std::int64_t> valid;  ///< ascending
};
/// A random `fraction` of 0..n-1 (rounded up, but never all) is for validation. Throws UsageError
/// unless 0 <= fraction < 1.
DataSplit split_data(std::int64_t n, double fraction, std::uint64_t seed);

/// Structures of these numbers, in this order: those of a Sampler's batch. They must outlive the
/// result. Throws UsageError for a number outside of `structures`.
std::vector<const Structure*> structures_of(std::span<const Structure> structures,
                                            std::span<const std::int64_t> numbers);

}  // namespace tessera::nn
