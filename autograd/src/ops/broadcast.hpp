#pragma once

#include <tessera/autograd/op.hpp>

namespace tessera {

/// Placements of an element-by-element op whose inputs broadcast to output 0: any dimension may be
/// split; an input that has size 1 there (or lacks the dimension) is replicated. Each operand may
/// be the driver.
void broadcast_signatures(const Problem& problem, std::vector<Signature>& legal);

/// Adds the entry "these inputs are a pending sum, the others replicated, the result is a pending
/// sum", once for each Partial input as driver.
void partial_signature(const Problem& problem,
                       std::uint32_t partial_inputs,
                       std::vector<Signature>& legal);

/// Throws DTypeError unless all defined inputs have one element type; returns it.
DType common_dtype(const char* op, const Problem& problem);
/// The type of x beside a scale and a shift (inputs 1 and 2) of the same type, or of fp32 where x
/// is bf16; throws DTypeError.
DType norm_dtype(const char* op, const Problem& problem);

inline Tensor input_or_none(const VjpContext& context, int i) {
  return context.input_layout(i).defined() ? context.input(i) : Tensor();
}

}  // namespace tessera
