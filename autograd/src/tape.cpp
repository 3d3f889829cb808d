#include "tape.hpp"

namespace tessera {

namespace {

std::uint64_t next_number = 1;
bool grads_enabled = true;

/// Nodes whose last owner is gone; the outermost dispose() deletes them one by one.
thread_local const Node* doomed = nullptr;
thread_local bool deleting = false;

}  // namespace

Node::Node() : number(next_number++) {}

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

void record(const OpDef& op,
            std::span<const Tensor> inputs,
            const ArgsRef& args,
            Outputs& outputs) {
  if (!grads_enabled || op.vjp == nullptr) return;
  bool wanted = false;
  for (const Tensor& x : inputs) wanted |= x.defined() && slot_of(x);
  if (!wanted) return;

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
    if (input.producer && input.producer->recomputes(input.output)) {
      input.recomputed = node->reads_recomputed = true;
    } else {
      input.saved = {x, x.version()};
    }
  }
  for (int j = 0; j < outputs.size(); ++j) {
    const Tensor& y = outputs[j];
    Node::Output& output = node->outputs.emplace_back(y.layout(), y.dtype(), SavedTensor{});
    if (op.saved_outputs >> j & 1u) output.saved = {y.detach(), y.version()};
  }
  for (int j = 0; j < outputs.size(); ++j) {
    if (!(op.differentiable_outputs >> j & 1u) || !is_floating(outputs[j].dtype())) continue;
    outputs[j].set_gradient_state(node, j);
  }
}

}  // namespace tessera
