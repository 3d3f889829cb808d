#pragma once

#include <tessera/autograd/op.hpp>

#include "support/dense.hpp"

/// An op with an algorithm of its own (`Signature::run`), registered from outside the library.
namespace tessera::test {

/// y[i] = sum_j (q[i] . k[j])^2 v[j] over all pairs of grid points i and j: attention without its
/// softmax. q [H, W, d], k [H', W', d], v [H', W', e]; result [H, W, e]. Either grid may be split
/// in both dimensions: keys and values walk in a ring through all ranks of all axes. The gradient
/// is a ring, too; second derivatives run through the same maths in small ops (`decompose`).
Tensor all_pairs(const Tensor& q, const Tensor& k, const Tensor& v);
DenseArray all_pairs_reference(const DenseArray& q, const DenseArray& k, const DenseArray& v);

}  // namespace tessera::test
