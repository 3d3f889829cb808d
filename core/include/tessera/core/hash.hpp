#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera {

/// Order-dependent 64-bit content hash (the mixing step of splitmix64); the same in every run and
/// on every rank.
class Hasher {
 public:
  void add(std::uint64_t value) {
    state_ += value + 0x9e3779b97f4a7c15u;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9u;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111ebu;
    state_ ^= state_ >> 31;
  }
  void add_bytes(const void* data, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    add(bytes);
    for (; bytes >= 8; bytes -= 8, p += 8) {
      std::uint64_t word;
      std::memcpy(&word, p, 8);
      add(word);
    }
    if (bytes > 0) {
      std::uint64_t word = 0;
      std::memcpy(&word, p, bytes);
      add(word);
    }
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace tessera
