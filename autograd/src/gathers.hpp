#pragma once

#include "tape.hpp"

namespace tessera {

/// The calls of redistribute_again() on the tape.
extern const OpDef redistribute_again_op;
/// Whether `op` is the identity that moves data.
bool is_redistribution(const OpDef& op);

/// A node of redistribute_again() is made, gone, or named by a reader that will ask for its value.
void add_gather(Node& node);
void forget_gather(const Node& node);
void count_gather_reader(const Node& node);

/// The value of such a node, whose input is there, once more; starts to move that of the next older
/// one which has readers. `input` gives what a node is made of, undefined where that is gone.
Tensor gather_again(Node& node, Tensor (*input)(const Ref<Node>&));

}  // namespace tessera
