#pragma once

#include <tessera/core/view.hpp>

/// Random numbers counted by the global element index (Philox 4x32-10; Salmon et al., SC 2011).
///
/// The element at row-major index i of the global tensor gets word i & 3 of the block with key
/// `key` and counter (i >> 2, stream), both 64-bit with the low word first. So a draw is the same
/// however the tensor is cut, and can be repeated.
namespace tessera::kernels {

struct PhiloxKey {
  std::uint64_t key = 0;
  std::uint64_t stream = 0;
};

/// y = word of the element; int64 (0 .. 2^32 - 1).
void random_bits(PhiloxKey key, const Piece& y);
/// y = low + (high - low) u, u in [0, 1) in steps of 2^-32 (2^-24 in f32 and bf16).
void random_uniform(PhiloxKey key, double low, double high, const Piece& y);
/// Normal numbers by Box & Muller (1958): elements 2i and 2i + 1 are the cosine and sine of one
/// pair. Computed in double for every element type.
void random_normal(PhiloxKey key, double mean, double stddev, const Piece& y);
/// y = 0 where word < p 2^32, else x / (1 - p). `x` has y's shape; the place is that of `y`. With
/// the gradient for x it is its own gradient.
void dropout(PhiloxKey key, double p, const View& x, const Piece& y);

}  // namespace tessera::kernels
