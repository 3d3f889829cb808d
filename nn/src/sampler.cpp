#include <algorithm>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/nn/sampler.hpp>

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

Sampler::Sampler(std::int64_t count, const SamplerOptions& options)
    : count_(count), options_(options) {
  if (count < 1 || options.batch < 1) {
    throw UsageError(str("sampler: batches of ", options.batch, " of ", count,
                         " samples (both at least 1). Give data, and a batch of 1 or more."));
  }
  order_.resize(static_cast<std::size_t>(count));
  std::iota(order_.begin(), order_.end(), 0);
}

std::int64_t Sampler::steps() const {
  const std::int64_t whole = count_ / options_.batch;
  if (options_.drop_last && whole > 0) return whole;
  return whole + (count_ % options_.batch != 0 ? 1 : 0);
}

std::vector<std::int64_t> Sampler::batch(std::int64_t step) const {
  const std::int64_t epoch = step / steps();
  if (options_.shuffle && epoch != epoch_) {
    order_ = shuffled(count_, options_.seed, static_cast<std::uint64_t>(epoch));
    epoch_ = epoch;
  }
  const std::int64_t first = step % steps() * options_.batch;
  const std::int64_t last = std::min(first + options_.batch, count_);
  return {order_.begin() + first, order_.begin() + last};
}

std::vector<std::int64_t> Sampler::part(const std::vector<std::int64_t>& batch,
                                        const Layout& layout) {
  if (layout.dims() == 0 || layout.shape()[0] != std::ssize(batch)) {
    throw ShapeError(str("sampler: a batch of ", batch.size(), " samples has no part in ",
                         layout.str(),
                         " (dimension 0 counts samples). Resolve the layout for the "
                         "batch's size."));
  }
  const Box box = layout.local_box();
  return {batch.begin() + box.lo[0], batch.begin() + box.hi[0]};
}

}  // namespace tessera::nn
