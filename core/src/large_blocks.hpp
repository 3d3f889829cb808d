#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace tessera {

/// Large blocks of the CPU's memory, side by side in one range of addresses: the smallest hole that
/// fits is taken, neighbouring holes join. Holes stay resident until they are dropped, so a program
/// that asks for the same blocks again and again costs the system nothing. Not thread-safe.
class LargeBlocks {
 public:
  /// Blocks are multiples of this.
  static constexpr std::size_t kGranule = std::size_t{64} << 10;

  /// Null when there is no more.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);
  /// Bytes of holes that the process still holds (an estimate after partial use of dropped ones).
  std::int64_t resident_holes() const { return resident_; }
  /// Gives the largest holes back to the system until at most `bytes` of them are resident.
  void drop_holes(std::int64_t bytes);

 private:
  struct Hole {
    std::size_t size = 0;
    std::size_t resident = 0;
  };
  using Holes = std::map<std::size_t, Hole>;  // by offset

  bool reserve(std::size_t bytes);
  bool grow(std::size_t bytes);

  std::byte* base_ = nullptr;
  std::size_t reserved_ = 0;
  std::size_t end_ = 0;  // what lies beyond was never used
  std::int64_t resident_ = 0;
  Holes holes_;
};

}  // namespace tessera
