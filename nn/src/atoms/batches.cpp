#include <algorithm>
#include <cmath>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/nn/atoms/batches.hpp>

namespace tessera::nn {

std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = n - 1; i > 0; --i) {  // Fisher and Yates
    Hasher h;
    h.add(seed);
    h.add(epoch);
    h.add(static_cast<std::uint64_t>(i));
    const auto j = static_cast<std::size_t>(h.value() % static_cast<std::uint64_t>(i + 1));
    std::swap(order[static_cast<std::size_t>(i)], order[j]);
  }
  return order;
}

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

std::vector<std::vector<const Structure*>> batches_of(std::span<const Structure> structures,
                                                      std::span<const std::int64_t> order,
                                                      std::int64_t size,
                                                      bool drop_last) {
  if (size < 1) throw UsageError(str("atoms: batches of ", size, ". Use at least 1."));
  std::vector<std::vector<const Structure*>> batches;
  for (const std::int64_t i : order) {
    if (i < 0 || i >= static_cast<std::int64_t>(structures.size()))
      throw UsageError(str("atoms: there is no structure ", i, " among ", structures.size(), "."));
    if (batches.empty() || static_cast<std::int64_t>(batches.back().size()) == size)
      batches.emplace_back();
    batches.back().push_back(&structures[static_cast<std::size_t>(i)]);
  }
  if (drop_last && batches.size() > 1 && static_cast<std::int64_t>(batches.back().size()) < size)
    batches.pop_back();
  return batches;
}

}  // namespace tessera::nn
