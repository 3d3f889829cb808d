#include "tape.hpp"

#include <algorithm>

#include "gathers.hpp"
#include "segment.hpp"

namespace tessera {

namespace {

std::uint64_t next_number = 1;
bool grads_enabled = true;

/// Nodes whose last owner is gone; the outermost dispose() deletes them one by one.
thread_local const Node* doomed = nullptr;
thread_local bool deleting = false;

}  // namespace

Node::Node() : number(next_number++) {}

Node::~Node() {
  if (segment) segment->entries[place].node = nullptr;
  if (op == &redistribute_again_op) forget_gather(*this);
}

void Node::dispose() const {
  next_doomed_ = doomed;
  doomed = this;
  if (deleting) return;
  deleting = true;
  while (doomed != nullptr) {
    const Node* const node = doomed;
    doomed = node->next_doomed_;
    delete node;
  }
  deleting = false;
}

void Node::release_saved() {
  for (Input& input : inputs) input.saved = {};
  for (Output& output : outputs) output.saved = {};
  released = true;
}

bool grad_enabled() { return grads_enabled; }
NoGrad::NoGrad() : previous_(grads_enabled) { grads_enabled = false; }
NoGrad::~NoGrad() { grads_enabled = previous_; }
EnableGrad::EnableGrad() : previous_(grads_enabled) { grads_enabled = true; }
EnableGrad::~EnableGrad() { grads_enabled = previous_; }

Tensor require_grad(const Tensor& x) {
  if (!x.defined()) throw UsageError("require_grad: the tensor is undefined.");
  if (!is_floating(x.dtype())) {
    throw DTypeError(str("require_grad: ", x.str(),
                         " is not floating (gradients need real numbers). Cast it first."));
  }
  if (slot_of(x)) return x;
  Ref<Node> node(new Node);
  node->outputs.emplace_back(x.layout(), x.dtype(), SavedTensor{});
  node->leaf_linear = true;
  x.set_gradient_state(std::move(node));
  return x;
}

bool requires_grad(const Tensor& x) { return static_cast<bool>(slot_of(x)); }
bool is_leaf(const Tensor& x) { return !slot_of(x) || slot_of(x).node->is_leaf(); }

namespace {

/// A factor is read for the gradient of another input, so only where one is wanted that is made of
/// more than parameters.
[[gnu::noinline]] void count_readers(const Node& node) {
  const bool wanted = std::any_of(node.inputs.begin(), node.inputs.end(), [](const auto& input) {
    return input.producer && !input.producer->leaf_linear;
  });
  if (!wanted) return;
  for (const Node::Input& input : node.inputs)
    if (input.recomputed && input.producer->op == &redistribute_again_op)
      count_gather_reader(*input.producer);
}

/// With saved values unless a segment puts them in later.
[[gnu::always_inline]] inline Ref<Node> make_node(const OpDef& op,
                                                  std::span<const Tensor> inputs,
                                                  const ArgsRef& args,
                                                  const Outputs& outputs,
                                                  const Segment* segment) {
  bool wanted = false;
  for (const Tensor& x : inputs) wanted |= x.defined() && slot_of(x);
  if (!wanted) return {};

  Ref<Node> node(new Node);
  node->op = &op;
  node->layer = current_scope().layer;
  node->args.assign(args.data, args.bytes);
  node->dynamic.assign(args.dynamic, args.dynamic_bytes);
  node->leaf_linear = op.linear_view;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    Node::Input& input = node->inputs.emplace_back();
    if (!x.defined()) continue;
    input.layout = x.layout();
    input.dtype = x.dtype();
    if (const GradSlot slot = slot_of(x)) {
      input.producer = Ref<Node>(slot.node);
      input.output = slot.output;
      node->leaf_linear &= slot.node->leaf_linear;
    }
    if ((op.saved_inputs >> i & 1u) == 0) continue;
    input.saved.version = x.version();
    // What a segment reads from outside it holds anyway.
    if (input.producer && input.producer->recomputes(input.output) &&
        input.producer->segment.get() == segment) {
      input.recomputed = node->reads_recomputed = true;
    } else if (segment == nullptr) {
      input.saved.tensor = x;
    }
  }
  if (node->reads_recomputed) count_readers(*node);
  for (int j = 0; j < outputs.size(); ++j) {
    const Tensor& y = outputs[j];
    Node::Output& output = node->outputs.emplace_back(y.layout(), y.dtype(), SavedTensor{});
    if (segment == nullptr && (op.saved_outputs >> j & 1u) != 0)
      output.saved = {y.detach(), y.version()};
  }
  if (&op == &redistribute_again_op) add_gather(*node);
  return node;
}

[[gnu::always_inline]] inline void link_outputs(const Ref<Node>& node, const Outputs& outputs) {
  for (int j = 0; j < outputs.size(); ++j) {
    if (!(node->op->differentiable_outputs >> j & 1u) || !is_floating(outputs[j].dtype())) continue;
    outputs[j].set_gradient_state(node, j);
  }
}

}  // namespace

Ref<Node> outline(const OpDef& op,
                  std::span<const Tensor> inputs,
                  const ArgsRef& args,
                  const Outputs& outputs,
                  const Segment& segment) {
  return make_node(op, inputs, args, outputs, &segment);
}

void save(Node& node, std::span<const Tensor> inputs, const Outputs& outputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || (node.op->saved_inputs >> i & 1u) == 0) continue;
    if (!node.inputs[i].recomputed) node.inputs[i].saved = {inputs[i], inputs[i].version()};
  }
  for (int j = 0; j < outputs.size(); ++j) {
    if (node.op->saved_outputs >> j & 1u)
      node.outputs[static_cast<std::size_t>(j)].saved = {outputs[j].detach(), outputs[j].version()};
  }
}

void link(const Ref<Node>& node, const Outputs& outputs) { link_outputs(node, outputs); }

void record(const OpDef& op,
            std::span<const Tensor> inputs,
            const ArgsRef& args,
            Outputs& outputs) {
  if (!grads_enabled || op.vjp == nullptr) return;
  if (segment_run != nullptr) [[unlikely]]
    return segment_run->record(op, inputs, args, outputs);
  if (const Ref<Node> node = make_node(op, inputs, args, outputs, nullptr))
    link_outputs(node, outputs);
}

}  // namespace tessera
