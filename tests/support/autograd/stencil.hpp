#pragma once

#include <tessera/autograd/op.hpp>

#include "support/op_test.hpp"

/// A windowed op registered from outside the library, small enough to be seen through: what the
/// mechanism of windows is tested with, and what faults are planted in.
namespace tessera::test {

/// y[n, i, j] = sum_{k, l} w[k][l] x[n, s i - 1 + k, s j - 1 + l] with 3 x 3 different weights;
/// x [N, H, W], stride s. No symmetry: swapped or mirrored halos change the result.
struct StencilArgs {
  std::int64_t stride = 1;
  std::int64_t edge = 0;  // an EdgeRule
};
double stencil_weight(std::int64_t k, std::int64_t l);

/// The op and its adjoint; each is the other's gradient. Copies with one field changed are the
/// planted faults.
extern const OpDef stencil_op;
extern const OpDef stencil_grad_op;

/// Calls `op`, a variant of stencil_op.
Tensor stencil(const Tensor& x, const StencilArgs& args, const OpDef& op = stencil_op);
DenseArray stencil_reference(const DenseArray& x, const StencilArgs& args);

/// A case of it on x [2, 7, 6].
OpCase stencil_case(const StencilArgs& args, const OpDef& op = stencil_op);

// The parts of the records, for variants.
void stencil_infer(const Problem& problem, std::vector<OutputMeta>& out);
void stencil_signatures(const Problem& problem,
                        const AxisGroup& group,
                        std::vector<Signature>& legal);
void stencil_windows(const Problem& problem, std::vector<Window>& windows);
void stencil_local(const LocalCall& call);
void stencil_vjp(VjpContext& context);
/// The gradient with respect to x by a variant of stencil_grad_op.
void stencil_set_gradient(VjpContext& context, const OpDef& grad_op);
void stencil_grad_windows(const Problem& problem, std::vector<Window>& windows);
void stencil_grad_folds(const Problem& problem, std::vector<Fold>& folds);

}  // namespace tessera::test
