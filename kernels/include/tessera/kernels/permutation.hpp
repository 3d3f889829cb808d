#pragma once

#include <tessera/core/view.hpp>
#include <tessera/kernels/random.hpp>

namespace tessera::kernels {

/// y[i] = place of element i in a random order of n elements, n = y.global[0]; i64, one dimension.
///
/// Each element is computed alone. Up to 4096 elements: the shuffle of Durstenfeld (1964) of all of
/// them. More: a bijection of [0, 2^b), 2^(b-1) < n <= 2^b, by eight Feistel rounds on its upper
/// and lower bits, whose keys are words of Philox, applied until the result is below n (cycle
/// walking; Black & Rogaway 2002): at most two applications on average.
void random_permutation(PhiloxKey key, const Piece& y);

}  // namespace tessera::kernels
