#pragma once

#include <tessera/core/view.hpp>

/// Weighted sums of rows of a table, and the two other derivatives of the same form
///   F = sum over m, k, c of w[m, k] x[index[m, k], c] g[m, c].
/// x [R, C], g [M, C], index [M, K] i64 (below 0: no row), w [M, K] or null data (1); all dense. x
/// and g have one element type; w has it, too, or is f32 beside bf16. All throw ShapeError,
/// DTypeError; an index beyond the table is the caller's to check.
namespace tessera::kernels {

/// y[m, c] = sum over k of w[m, k] x[index[m, k], c], in the order of k.
void lookup(const View& x, const View& index, const View& w, const View& y);

enum class LookupAdd : std::uint8_t { kSum, kMax };
/// y[r, c] = sum over all (m, k) with index[m, k] = r of w[m, k] g[m, c], in their order and in
/// double (integers in 64 bits); or the largest of them, at least 0.
void lookup_add(LookupAdd kind, const View& g, const View& index, const View& w, const View& y);

/// y[m, k] = sum over c of x[index[m, k], c] g[m, c], in double; y has the type of x, or is f32
/// beside bf16.
void lookup_dot(const View& x, const View& g, const View& index, const View& y);

}  // namespace tessera::kernels
