#pragma once

#include <memory>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <vector>

namespace tessera {

/// A copy of the arguments of a call.
class ArgBlob {
 public:
  ArgBlob() = default;
  ArgBlob(const void* data, std::size_t bytes) {
    std::byte* to = inline_;
    if (bytes > sizeof inline_) {
      heap_.reset(new std::byte[bytes]);
      to = heap_.get();
    }
    if (bytes > 0) std::memcpy(to, data, bytes);
  }
  const void* data() const { return heap_ ? heap_.get() : inline_; }

 private:
  alignas(16) std::byte inline_[96];
  std::unique_ptr<std::byte[]> heap_;
};

/// A value kept for the gradient, with the version that its memory had then.
struct SavedTensor {
  Tensor tensor;
  std::uint32_t version = 0;
};

/// A recorded call of an op, or a leaf (op == nullptr).
///
/// Nodes are numbered in the order of creation, which is the same on every rank; a consumer always
/// has a larger number than what it consumes, so working in falling order visits each node when all
/// of its gradients have arrived.
class Node : public RefCounted {
 public:
  struct Input {
    Ref<Node> producer;  // null: no gradient flows there
    int output = 0;
    Layout layout;
    DType dtype = DType::kFloat32;
    SavedTensor saved;
  };
  struct Output {
    Layout layout;
    DType dtype = DType::kFloat32;
    SavedTensor saved;  // without gradient state: no cycle
  };

  Node();
  std::uint64_t number = 0;
  const OpDef* op = nullptr;
  ArgBlob args;
  ArgBlob dynamic;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  /// A leaf, or made from leaves by linear views alone: its gradient stays Partial until the leaf
  /// takes the sum.
  bool leaf_linear = false;
  bool released = false;  // saved values are gone after backward()

  // Leaves only. empty -> accumulating (`pending`) -> in flight (reducer) -> ready (`gradient`).
  Tensor pending;
  Tensor gradient;
  bool listed = false;  // in the list of leaves with a pending gradient

  bool is_leaf() const { return op == nullptr; }
  void release_saved();

 protected:
  /// Long chains end without recursion.
  void dispose() const override;
};

/// What a tensor knows of the tape: output `output` of `node`.
class GradSlot : public GradientState {
 public:
  GradSlot(Ref<Node> n, int o) : node(std::move(n)), output(o) {}
  Ref<Node> node;
  int output;
};

/// The slot of `x`, or null.
inline const GradSlot* slot_of(const Tensor& x) {
  return static_cast<const GradSlot*>(x.gradient_state().get());
}

/// Records a call whose outputs are computed, if gradients are enabled and one is wanted.
void record(const OpDef& op, std::span<const Tensor> inputs, const ArgsRef& args, Outputs& outputs);

/// The same value as a tensor of its own on the tape.
Tensor recorded_alias(const Tensor& x);

/// Adds to the gradient of a leaf. `reduce`: no more will come in this backward, so its reduction
/// may start (in a bucket that leaves when it is full); otherwise it stays unreduced until somebody
/// asks. See reducer.cpp.
void accumulate_leaf(const Ref<Node>& leaf, const Tensor& contribution, bool reduce);
/// Starts the reduction of all that is pending.
void start_reductions();

}  // namespace tessera
