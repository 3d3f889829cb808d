#pragma once

#include <functional>
#include <span>
#include <tessera/core/tensor.hpp>
#include <tessera/parallel/communicator.hpp>
#include <vector>

// Boxes of tensors in memory of their own, and their way there and back.

namespace tessera {

/// A box of a tensor, in memory of its own or of the tensor.
struct Part {
  Ref<Buffer> buffer;
  Piece piece;

  std::int64_t bytes() const {
    return piece.view.size() * static_cast<std::int64_t>(size_of(piece.view.dtype));
  }
};

/// Dense, uninitialised.
Part empty_part(const Box& box, const Shape& global, DType dtype);
/// What this rank owns of `x`, in place.
Part own_part(const Tensor& x);
/// The same values, dense: `part` itself where it is.
Part dense(const Part& part);

/// A tensor and the boxes of it that each rank works on, where those are not the parts that it
/// owns. Boxes may lie with several ranks.
struct Rearranged {
  Tensor tensor;
  std::function<std::vector<Box>(int rank)> boxes;
  std::vector<Part> parts = {};  ///< this rank's
};

/// Fills the parts from where the tensors lie: all of them in one exchange between the ranks of
/// `axes`. Each element goes once to each box that holds it.
void bring(std::span<Rearranged> list, AxisMask axes, const char* op);
/// The way back: sets the tensors, on the ranks that own the elements, to the sum of the parts, in
/// rank order. Parts have the tensors' element type.
void give_back(std::span<Rearranged> list, AxisMask axes, const char* op);

}  // namespace tessera
