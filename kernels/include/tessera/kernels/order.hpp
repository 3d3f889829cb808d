#pragma once

#include <tessera/core/view.hpp>

/// Order of the elements of lines along one dimension. Rising: -infinity, ..., infinity, NaN, where
/// -0 equals 0; falling is the reverse of it. Equal elements: the lower index first.
namespace tessera::kernels {

/// An element by its place in the order: smaller keys come first. Keys of one element type compare
/// with each other, also between ranks.
struct Ranked {
  std::uint64_t key;
  std::int64_t index;
  friend bool operator<(const Ranked& a, const Ranked& b) {
    return a.key != b.key ? a.key < b.key : a.index < b.index;
  }
};
/// Bits of the keys of an element type: 32 or 64.
int key_bits(DType dtype);

/// The first `count` elements in order of each line of x along `dim`: out[line * count + i], lines
/// row-major over the other dimensions, indices counted from `first`.
void rank_lines(
    const View& x, int dim, bool falling, std::int64_t first, std::int64_t count, Ranked* out);

/// index[..., i, ...] = place in its line of the i-th element in order; i64, and as long along
/// `dim` as there are wanted.
void order_lines(const View& x, int dim, bool falling, const View& index);

/// Sorts by key, keeping the order of equal ones.
void sort_by_key(Ranked* items, std::int64_t n, int bits);

}  // namespace tessera::kernels
