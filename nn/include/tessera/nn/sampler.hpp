#pragma once

#include <cstdint>
#include <tessera/core/layout.hpp>
#include <vector>

namespace tessera::nn {

/// Random order of 0..n-1, the same wherever it is asked for: a shuffle keyed by (seed, epoch).
std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::uint64_t epoch = 0);

/// Options of Sampler.
struct SamplerOptions {
  std::int64_t batch = 1;  ///< samples of a step, of all ranks together
  bool shuffle = true;     ///< anew in each epoch; false: in the order of their numbers
  std::uint64_t seed = 0;
  /// Samples that do not fill a batch wait for another epoch, unless they are all there are; false:
  /// the last batch of an epoch is smaller.
  bool drop_last = false;
};

/// Which samples each step of a training takes. A sample has one number on every rank, and what a
/// step takes depends on (seed, step) alone: no mesh changes it, and a resumed run needs no state.
///
/// Ranks read their part of a batch, however it is cut. Losses are means over all of its samples
/// wherever they lie, so parts of unequal size weigh right.
///
/// ```cpp
/// const nn::Sampler sampler(images.count(), {.batch = 32});
/// const auto samples = sampler.batch(step);
/// const Layout layout =
///     fields.resolve({std::ssize(samples), height, width, channels});  // the last may be smaller
/// const auto mine = nn::Sampler::part(samples, layout);                // to be read here
/// ```
class Sampler {
 public:
  /// Of samples 0..count-1. Throws UsageError for a batch below 1, or no samples.
  Sampler(std::int64_t count, const SamplerOptions& options = {});

  /// Steps of an epoch.
  std::int64_t steps() const;
  /// The numbers of the samples of step `step`, from 0 on through all epochs.
  std::vector<std::int64_t> batch(std::int64_t step) const;
  /// Of those of a batch the ones that lie on this rank: its part of dimension 0 of `layout`.
  /// Throws ShapeError when the layout has another number of samples.
  static std::vector<std::int64_t> part(const std::vector<std::int64_t>& batch,
                                        const Layout& layout);

 private:
  std::int64_t count_;
  SamplerOptions options_;
  mutable std::int64_t epoch_ = -1;
  mutable std::vector<std::int64_t> order_;  // of that epoch
};

}  // namespace tessera::nn
