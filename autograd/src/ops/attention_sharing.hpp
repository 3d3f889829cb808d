#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention_record.hpp"

// Who works on what when queries and keys are split over mesh axes: which of the axes exchange
// heads, which form the ring, and the boxes that each rank then works on.

namespace tessera {

/// How the ranks of some axes share the work of one call.
struct AttentionSharing {
  /// Over these axes tokens are gathered and heads split instead (DeepSpeed Ulysses, Jacobs et al.
  /// 2023).
  AxisMask exchange = 0;
  /// Over these, keys and values walk in a ring (Liu, Zaharia & Abbeel 2023).
  AxisMask ring = 0;
  /// Of 2 P chunks of tokens, rank r of the ring works on chunks r and 2 P - 1 - r: then causal
  /// ranks have equal work in every step.
  bool zigzag = false;

  /// `ring(h) heads(w) zigzag`
  std::string str(const Mesh& mesh) const;
};

/// The sharing that is asked for, or else the cheapest by a model of time: of forward and backward
/// together, from shapes and layouts (as placed) alone. `axes` split queries and keys. Throws
/// LayoutError when axes are asked to exchange heads that do not split tokens innermost.
AttentionSharing share_attention(const AttentionArgs& args,
                                 std::span<const Layout> in,
                                 AxisMask axes);

/// The boxes of queries and keys that each rank works on. A rank's boxes are in the order of tokens
/// and may be empty; all ranks have equally many.
class AttentionBoxes {
 public:
  AttentionBoxes(const AttentionArgs& args,
                 const AttentionSharing& sharing,
                 const Layout& q,
                 const Layout& k);

  /// Of q, and of what has its leading dimensions: out, log-sum-exp and their gradients; `shape` is
  /// that of the tensor.
  std::vector<Box> queries(int rank, const Shape& shape) const;
  /// Of k or v; each box is cut into `pieces` along the longest dimension that is attended
  /// over.
  std::vector<Box> keys(int rank, const Shape& shape, int pieces) const;
  /// Of a mask or bias: all keys of the queries of queries(), one box for each of theirs.
  std::vector<Box> pairs(int rank, const Layout& pairs) const;

 private:
  std::vector<Box> tokens(const Layout& layout, int rank, bool of_keys, const Shape& shape) const;
  Interval heads(int rank, bool of_keys) const;

  AttentionDims dims_;
  AttentionSharing sharing_;
  int zigzag_dim_;
  Layout q_, k_;
};

}  // namespace tessera
