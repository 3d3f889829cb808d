#include <algorithm>
#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/nn/atoms/batches.hpp>
#include <tessera/nn/sampler.hpp>

namespace tessera::nn {

DataSplit split_data(std::int64_t n, double fraction, std::uint64_t seed) {
  if (!(fraction >= 0.0 && fraction < 1.0)) {
    throw UsageError(str("atoms: a part of ", fraction,
                         " for validation leaves nothing to train on. Use 0.1, say."));
  }
  const auto wanted = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(n)));
  const std::int64_t count = std::max<std::int64_t>(0, std::min(wanted, n - 1));
  std::vector<std::int64_t> order = shuffled(n, seed);
  DataSplit split;
  split.valid.assign(order.begin(), order.begin() + count);
  split.train.assign(order.begin() + count, order.end());
  std::sort(split.valid.begin(), split.valid.end());
  std::sort(split.train.begin(), split.train.end());
  return split;
}

std::vector<const Structure*> structures_of(std::span<const Structure> structures,
                                            std::span<const std::int64_t> numbers) {
  std::vector<const Structure*> found;
  for (const std::int64_t i : numbers) {
    if (i < 0 || i >= std::ssize(structures))
      throw UsageError(str("atoms: there is no structure ", i, " among ", structures.size(), "."));
    found.push_back(&structures[static_cast<std::size_t>(i)]);
  }
  return found;
}

}  // namespace tessera::nn
