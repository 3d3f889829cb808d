#pragma once

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/op.hpp>
#include <tessera/core/inline_vector.hpp>
#include <tessera/core/scope.hpp>

namespace tessera {

/// A copy of the arguments of a call.
class ArgBlob {
 public:
  ArgBlob() = default;
  ArgBlob(const ArgBlob&) = delete;
  ArgBlob& operator=(const ArgBlob&) = delete;
  ~ArgBlob() {
    if (large_ != nullptr) give_object(large_, bytes_);
  }
  void assign(const void* data, std::size_t bytes) {
    if (bytes > sizeof inline_) {
      large_ = take_object(bytes);
      bytes_ = bytes;
    }
    if (bytes > 0) std::memcpy(large_ != nullptr ? large_ : inline_, data, bytes);
  }
  const void* data() const { return large_ != nullptr ? large_ : inline_; }

 private:
  void* large_ = nullptr;
  std::size_t bytes_ = 0;  // of `large_`
  alignas(16) std::byte inline_[64];
};

/// A value kept for the gradient, with the version that its memory had then.
struct SavedTensor {
  Tensor tensor;
  std::uint32_t version = 0;
};

class Segment;
class SegmentRun;

/// A recorded call of an op, or a leaf (op == nullptr).
///
/// Nodes are numbered in the order of creation, which is the same on every rank; a consumer always
/// has a larger number than what it consumes, so working in falling order visits each node when all
/// of its gradients have arrived.
class Node : public GradientState, public CachedObject {
 public:
  struct Input {
    Ref<Node> producer;  // null: no gradient flows there
    int output = 0;
    Layout layout;
    DType dtype = DType::kFloat32;
    SavedTensor saved;
    bool recomputed = false;  // not saved: the producer computes it again
  };
  struct Output {
    Layout layout;
    DType dtype = DType::kFloat32;
    SavedTensor saved;  // without gradient state: no cycle
  };

  Node();
  ~Node() override;
  std::uint64_t number = 0;
  const OpDef* op = nullptr;
  const char* layer = "";  // that ran it, see core/scope.hpp
  ArgBlob args;
  ArgBlob dynamic;
  InlineVector<Input, kMaxInputs> inputs;
  InlineVector<Output, kMaxOutputs> outputs;
  /// A leaf, or made from leaves by linear views alone: its gradient stays Partial until the leaf
  /// takes the sum.
  bool leaf_linear = false;
  bool reads_recomputed = false;  // an input is not saved but computed again
  bool released = false;          // saved values are gone after backward()
  Ref<Segment> segment;           // null, or computes the saved values when they are needed
  std::size_t place = 0;          // in the segment's entries

  // Leaves only. empty -> accumulating (`pending`) -> in flight (reducer) -> ready (`gradient`).
  Tensor pending;
  Tensor gradient;
  bool listed = false;  // in the list of leaves with a pending gradient

  bool is_leaf() const { return op == nullptr; }
  /// Whether output `j` need not be saved. Only one step back: what is computed again from values
  /// that are themselves computed again would cost the square of a chain's length. (How a parameter
  /// is read is a short chain: cast, redistribute.)
  bool recomputes(int j) const {
    return j == 0 && op != nullptr && op->recompute != nullptr &&
           (!reads_recomputed || leaf_linear);
  }
  void release_saved();

 protected:
  /// Long chains end without recursion.
  void dispose() const override;

 private:
  mutable const Node* next_doomed_ = nullptr;
};

/// What a tensor knows of the tape: output `output` of `node`; no node: no gradient.
struct GradSlot {
  Node* node = nullptr;
  int output = 0;
  explicit operator bool() const { return node != nullptr; }
};

inline GradSlot slot_of(const Tensor& x) {
  return {static_cast<Node*>(x.gradient_state().get()), x.gradient_index()};
}

/// Records a call whose outputs are computed, if gradients are enabled and one is wanted.
void record(const OpDef& op, std::span<const Tensor> inputs, const ArgsRef& args, Outputs& outputs);

/// The run of a recompute() that works at the moment; see segment.hpp.
inline constinit SegmentRun* segment_run = nullptr;

/// The parts of record() inside of a segment: the node without saved values, null where no gradient
/// is wanted; ...
Ref<Node> outline(const OpDef& op,
                  std::span<const Tensor> inputs,
                  const ArgsRef& args,
                  const Outputs& outputs,
                  const Segment& segment);
/// ... its saved values; ...
void save(Node& node, std::span<const Tensor> inputs, const Outputs& outputs);
/// ... and the outputs' places on the tape.
void link(const Ref<Node>& node, const Outputs& outputs);

/// The same value as a tensor of its own on the tape.
Tensor recorded_alias(const Tensor& x);

/// Adds to the gradient of a leaf. `reduce`: no more will come in this backward, so its reduction
/// may start (in a bucket that leaves when it is full); otherwise it stays unreduced until somebody
/// asks. See reducer.cpp.
void accumulate_leaf(const Ref<Node>& leaf, Tensor contribution, bool reduce);
/// Starts the reduction of all that is pending.
void start_reductions();
/// Starts the reduction of what accumulate_leaf() was told to reduce.
void launch_buckets();

}  // namespace tessera
