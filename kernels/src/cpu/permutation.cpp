#include <bit>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/permutation.hpp>
#include <utility>
#include <vector>

#include "functors/philox.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

constexpr std::int64_t kShuffled = 4096;
constexpr int kRounds = 8;
/// Counters of no element of a tensor.
constexpr std::uint64_t kFirstBlock = std::uint64_t{1} << 63;

std::vector<std::int64_t> shuffled(PhiloxKey key, std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = i;
  for (std::int64_t i = n - 1; i > 0; --i) {
    const PhiloxBlock block =
        philox(key.key, key.stream, kFirstBlock + static_cast<std::uint64_t>(i));
    // 53 bits of fraction: no bias that could be seen.
    const double fraction = (block.word[0] * 0x1p21 + (block.word[1] >> 11)) * 0x1p-53;
    const auto j = static_cast<std::int64_t>(fraction * static_cast<double>(i + 1));
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(j)]);
  }
  return order;
}

class Bijection {
 public:
  Bijection(PhiloxKey key, std::int64_t n) : n_(static_cast<std::uint64_t>(n)) {
    const auto bits = static_cast<int>(std::bit_width(n_ - 1));
    low_bits_ = bits / 2;
    low_mask_ = (std::uint64_t{1} << low_bits_) - 1;
    high_mask_ = (std::uint64_t{1} << (bits - low_bits_)) - 1;
    for (int r = 0; r < kRounds; ++r) {
      const PhiloxBlock block =
          philox(key.key, key.stream, kFirstBlock + static_cast<std::uint64_t>(r));
      keys_[r] = std::uint64_t{block.word[1]} << 32 | block.word[0];
    }
  }

  std::uint64_t operator()(std::uint64_t x) const {
    do {
      std::uint64_t high = x >> low_bits_;
      std::uint64_t low = x & low_mask_;
      for (int r = 0; r < kRounds; r += 2) {
        high ^= mixed(low ^ keys_[r]) & high_mask_;
        low ^= mixed(high ^ keys_[r + 1]) & low_mask_;
      }
      x = high << low_bits_ | low;
    } while (x >= n_);
    return x;
  }

 private:
  /// The finaliser of splitmix64 (Steele, Lea & Flood 2014).
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }

  std::uint64_t n_;
  int low_bits_;
  std::uint64_t low_mask_;
  std::uint64_t high_mask_;
  std::uint64_t keys_[kRounds];
};

}  // namespace

void random_permutation(PhiloxKey key, const Piece& y) {
  if (y.view.dims() != 1 || y.view.dtype != DType::kInt64) {
    throw ShapeError(str("random_permutation: ", y.view.shape, " of ", name(y.view.dtype),
                         " is not [n] of i64."));
  }
  if (dry_run() || y.view.empty()) return;
  const std::int64_t n = y.global[0];
  const std::int64_t first = y.box.lo[0];
  const auto set = [&](const auto& place) {
    parallel_chunks(y.view.size(), 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        y.view.as<std::int64_t>()[i * y.view.strides[0]] = place(first + i);
    });
  };
  if (n <= kShuffled) {
    const std::vector<std::int64_t> order = shuffled(key, n);
    set([&](std::int64_t i) { return order[static_cast<std::size_t>(i)]; });
  } else {
    const Bijection bijection(key, n);
    set([&](std::int64_t i) {
      return static_cast<std::int64_t>(bijection(static_cast<std::uint64_t>(i)));
    });
  }
}

}  // namespace tessera::kernels
