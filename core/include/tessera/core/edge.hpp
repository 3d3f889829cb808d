#pragma once

#include <cstdint>

namespace tessera {

/// What a window sees outside the domain [0, n): nothing (zero), the other end, the mirror image
/// without the border element (-i and 2(n-1)-i), or the border element.
enum class EdgeRule : std::uint8_t { kZero, kCircular, kReflect, kReplicate };
const char* name(EdgeRule rule);

/// The element of [0, n) that position `i` stands for; -1 where the rule is kZero and `i` lies
/// outside, and in an empty domain. Reflection repeats with period 2(n-1); n = 1 always maps to 0.
std::int64_t map_edge(EdgeRule rule, std::int64_t i, std::int64_t n);

}  // namespace tessera
