#pragma once

#include <cstdint>
#include <tessera/kernels/random.hpp>

namespace tessera::data {

/// A draw from 0..n-1 by two random words of 32 bits: n times them / 2^64, rounded down.
inline std::int64_t scaled_draw(const std::int64_t* words, std::int64_t n) {
  __extension__ using Wide = unsigned __int128;
  const auto bits =
      static_cast<std::uint64_t>(words[0]) << 32 | static_cast<std::uint64_t>(words[1]);
  return static_cast<std::int64_t>(Wide{bits} * static_cast<std::uint64_t>(n) >> 64);
}

/// A few random numbers that belong to (key, epoch, number), in order.
class Draws {
 public:
  Draws(std::uint64_t key, std::uint64_t epoch, std::uint64_t number) {
    // Epochs of a stream lie apart in its elements: no key is made of two numbers.
    const auto first = static_cast<std::int64_t>(epoch % kEpochs) * kWords;
    kernels::random_bits({key, number}, {View::dense(words_, DType::kInt64, {kWords}),
                                         Box({first}, {first + kWords}),
                                         {kEpochs * kWords}});
  }
  /// 0..n-1.
  std::int64_t below(std::int64_t n) {
    next_ += 2;
    return scaled_draw(words_ + next_ - 2, n);
  }

 private:
  static constexpr std::int64_t kWords = 32;
  static constexpr std::int64_t kEpochs = std::int64_t{1} << 32;
  std::int64_t words_[kWords];
  std::size_t next_ = 0;
};

}  // namespace tessera::data
