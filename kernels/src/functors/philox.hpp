#pragma once

#include <cstdint>

#include "math.hpp"

namespace tessera::kernels {

struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Ten rounds on counter (block, stream) with `key`.
TESSERA_HD PhiloxBlock philox(std::uint64_t key, std::uint64_t stream, std::uint64_t block) {
  std::uint32_t c0 = static_cast<std::uint32_t>(block);
  std::uint32_t c1 = static_cast<std::uint32_t>(block >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(stream);
  std::uint32_t c3 = static_cast<std::uint32_t>(stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// [0, 1)
TESSERA_HD double unit_interval(std::uint32_t word, double) { return word * 0x1p-32; }
TESSERA_HD float unit_interval(std::uint32_t word, float) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

struct NormalPair {
  double even;
  double odd;
};

TESSERA_HD NormalPair box_muller(std::uint32_t a, std::uint32_t b) {
  const double radius = m::sqrt(-2.0 * m::log((a + 1.0) * 0x1p-32));
  const double angle = 6.283185307179586476925 * 0x1p-32 * b;
  return {radius * m::cos(angle), radius * m::sin(angle)};
}

/// Words below this are dropped with probability p.
TESSERA_HD std::uint64_t drop_threshold(double p) { return static_cast<std::uint64_t>(p * 0x1p32); }

}  // namespace tessera::kernels
