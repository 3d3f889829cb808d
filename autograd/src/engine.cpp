#include <map>
#include <tessera/autograd/backward_through.hpp>
#include <tessera/autograd/grad_once.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <unordered_map>
#include <unordered_set>

#include "gathers.hpp"
#include "segment.hpp"
#include "summed.hpp"
#include "tape.hpp"

namespace tessera {

Tensor summed(Tensor a, Tensor b) {
  if (!grad_enabled() && a.layout() == b.layout() && a.dtype() == b.dtype()) {
    for (const Tensor* to : {&a, &b}) {
      if (!to->is_unshared() || to->local().empty() || !to->local().is_dense()) continue;
      kernels::binary(kernels::BinaryKind::kAdd, a.local(), b.local(), to->mutable_local());
      return *to;
    }
  }
  return tessera::add(a, b);
}

namespace {

class NodeContext final : public VjpContext {
 public:
  NodeContext(const Ref<Node>& node,
              std::vector<Tensor> grads,
              const std::unordered_set<const Node*>* wanted)
      : node_(node),
        grads_(std::move(grads)),
        wanted_(wanted),
        results_(static_cast<std::size_t>(node->inputs.size())) {}

  const void* args() const override { return node_->args.data(); }
  const void* dynamic() const override { return node_->dynamic.data(); }
  Tensor input(int i) const override {
    if (!separated_.empty()) return separated_[static_cast<std::size_t>(i)];
    const Node::Input& in = node_->inputs[static_cast<std::size_t>(i)];
    if (in.recomputed) return recomputed(in);
    check(in.saved, "input", i);
    return in.saved.tensor;
  }
  Tensor output(int j) const override {
    const SavedTensor& saved = node_->outputs[static_cast<std::size_t>(j)].saved;
    check(saved, "output", j);
    Tensor y = saved.tensor.detach();
    y.set_gradient_state(node_, j);
    return y;
  }
  const Layout& input_layout(int i) const override {
    return node_->inputs[static_cast<std::size_t>(i)].layout;
  }
  const Layout& output_layout(int j) const override {
    return node_->outputs[static_cast<std::size_t>(j)].layout;
  }
  DType input_dtype(int i) const override {
    return node_->inputs[static_cast<std::size_t>(i)].dtype;
  }
  int input_count() const override { return node_->inputs.size(); }
  Tensor grad(int j) const override { return grads_[static_cast<std::size_t>(j)]; }
  Tensor take_grad(int j) override { return std::move(grads_[static_cast<std::size_t>(j)]); }
  bool needs(int i) const override {
    const Ref<Node>& producer = node_->inputs[static_cast<std::size_t>(i)].producer;
    return producer && (wanted_ == nullptr || wanted_->contains(producer.get()));
  }
  void set(int i, Tensor gradient) override {
    const Layout& layout = input_layout(i);
    if (!gradient.defined() || !(gradient.shape() == layout.shape()) ||
        gradient.dtype() != input_dtype(i)) {
      throw Error(str(node_->op->name, ": the gradient of input ", i, " is ",
                      gradient.defined() ? gradient.str() : "undefined", " but the input is ",
                      layout, " ", name(input_dtype(i)), ". This is an error in the op's vjp."));
    }
    results_[static_cast<std::size_t>(i)] = std::move(gradient);
  }
  /// Makes every saved input a tensor of its own on the tape, so that derivatives with respect to
  /// one do not run through another.
  void separate_inputs() {
    std::vector<Tensor> separated(static_cast<std::size_t>(node_->inputs.size()));
    for (int i = 0; i < input_count(); ++i) {
      const Node::Input& in = node_->inputs[static_cast<std::size_t>(i)];
      if (in.recomputed || in.saved.tensor.defined()) {
        separated[static_cast<std::size_t>(i)] = recorded_alias(input(i));
      }
    }
    separated_ = std::move(separated);
  }
  bool needs_any() const {
    for (int i = 0; i < input_count(); ++i)
      if (needs(i)) return true;
    return false;
  }
  Tensor take(int i) { return std::move(results_[static_cast<std::size_t>(i)]); }
  /// The gradients of the outputs are used up.
  void drop_grads() { grads_.clear(); }

 private:
  /// Whether what a node of redistribute_again() moves is there as it was.
  static bool has_source(const Node& node) {
    const Node::Input& in = node.inputs[0];
    const SavedTensor& saved = in.recomputed ? in.producer->inputs[0].saved : in.saved;
    return saved.tensor.defined() && saved.version == saved.tensor.version();
  }
  /// That; undefined where it is gone or has changed.
  static Tensor gathered_from(const Ref<Node>& node) {
    if (!has_source(*node)) return {};
    return NodeContext(node, {}, nullptr).input(0).detach();
  }

  /// An input that its producer computes again, with its place on the tape.
  static Tensor recomputed(const Node::Input& in) {
    const NoGrad guard;
    const NodeContext context(in.producer, {}, nullptr);
    Tensor y;
    if (in.producer->op == &redistribute_again_op) {
      if (!has_source(*in.producer)) context.input(0);  // throws
      y = gather_again(*in.producer, gathered_from);
    } else {
      y = redistribute(in.producer->op->recompute(context), in.layout);
    }
    y.set_gradient_state(in.producer, in.output);
    return y;
  }

  void check(const SavedTensor& saved, const char* what, int index) const {
    if (!saved.tensor.defined()) {
      throw UsageError(
          str(node_->op->name,
              ": the graph was used before and its values are gone. Pass retain_graph to the "
              "first backward(), or compute the loss again."));
    }
    if (saved.tensor.version() != saved.version) {
      throw UsageError(
          str(node_->op->name, ": ", what, " ", index, " ", saved.tensor.str(),
              " was changed in place after it was "
              "used (its gradient would be wrong). Change a copy, or change it after backward()."));
    }
  }

  const Ref<Node>& node_;
  std::vector<Tensor> grads_;
  const std::unordered_set<const Node*>* wanted_;
  std::vector<Tensor> results_;
  std::vector<Tensor> separated_;
};

/// What linear views pass down to a leaf, which takes the sum once: the splits of the value, and a
/// pending sum on all other axes that cut the gradient (a part is filled with zeros, for free). A
/// sum over axes that split the value is the leaf's to scatter.
Layout pending(const Layout& dual, const Layout& gradient) {
  if (gradient.partial_axes() != 0 && gradient.partial_op() != ReduceOp::kSum) return dual;
  if ((gradient.partial_axes() & dual.split_axes()) != 0) return gradient;
  return dual.with_partial((gradient.split_axes() | gradient.partial_axes()) & ~dual.split_axes());
}

/// One walk through the tape, from outputs to inputs.
class Walk {
 public:
  Walk(bool create_graph, bool release, bool reduce)
      : create_graph_(create_graph), release_(release), reduce_(reduce) {}

  void seed(const Tensor& output, const Tensor& gradient) {
    if (const GradSlot slot = slot_of(output)) add(Ref<Node>(slot.node), slot.output, gradient);
  }
  /// Collects the gradient of `x` instead of letting it reach leaves.
  void capture(const Tensor& x) { captured_[key_of(x)] = Tensor(); }
  Tensor captured(const Tensor& x) const { return captured_.at(key_of(x)); }
  /// Limits the walk to nodes from which a captured tensor is reached.
  void limit_to(std::unordered_set<const Node*> wanted) {
    wanted_ = std::move(wanted);
    limited_ = true;
  }

  /// Leaves are older than all that uses them; counting their uses lets their reductions start
  /// while the walk goes on.
  void count_leaf_uses(const std::vector<Tensor>& roots) {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> stack;
    for (const Tensor& root : roots)
      if (slot_of(root)) stack.push_back(slot_of(root).node);
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      if (!seen.insert(node).second) continue;
      for (const Node::Input& input : node->inputs) {
        if (!input.producer) continue;
        if (input.producer->is_leaf()) {
          ++leaf_uses_[input.producer.get()];
        } else {
          stack.push_back(input.producer.get());
        }
      }
    }
  }

  void run() {
    while (!waiting_.empty()) {
      auto it = std::prev(waiting_.end());  // the newest: everything that consumes it is done
      const Ref<Node> node = it->second.node;
      std::vector<Tensor> grads = std::move(it->second.grads);
      waiting_.erase(it);
      visit(node, std::move(grads));
    }
  }

 private:
  static std::pair<std::uint64_t, int> key_of(const Tensor& x) {
    return {slot_of(x).node->number, slot_of(x).output};
  }

  struct Waiting {
    Ref<Node> node;
    std::vector<Tensor> grads;  // per output, the sum of what has arrived
  };

  /// Whether every split dimension is split as in `dual`; contributions that are not might split
  /// one dimension over different axes and could not be added.
  static bool split_within(const Layout& layout, const Layout& dual) {
    for (int d = 0; d < layout.dims(); ++d)
      if (layout.is_split(d) && !(layout.split(d) == dual.split(d))) return false;
    return true;
  }

  void add(const Ref<Node>& node, int output, Tensor gradient) {
    if (limited_ && !wanted_.contains(node.get())) return;
    Waiting& waiting = waiting_[node->number];
    if (!waiting.node) {
      waiting.node = node;
      waiting.grads.resize(static_cast<std::size_t>(node->outputs.size()));
    }
    const Layout dual = node->outputs[static_cast<std::size_t>(output)].layout.dual();
    if (!split_within(gradient.layout(), dual)) gradient = redistribute(gradient, dual);
    Tensor& sum = waiting.grads[static_cast<std::size_t>(output)];
    sum = sum.defined() ? summed(std::move(sum), std::move(gradient)) : std::move(gradient);
  }

  void visit(const Ref<Node>& node, std::vector<Tensor> grads) {
    const LayerScope layer(node->is_leaf() ? current_scope().layer : node->layer);
    bool leaf_captured = false;
    for (std::size_t j = 0; j < grads.size(); ++j) {
      if (!grads[j].defined()) continue;
      const auto it = captured_.find({node->number, static_cast<int>(j)});
      const bool capture = it != captured_.end();
      const Layout dual = node->outputs[j].layout.dual();
      if (!node->leaf_linear || capture) {
        // What only moves takes its gradient as it comes: the sum is taken where it is moved to.
        if (capture || node->op == nullptr || !is_redistribution(*node->op))
          grads[j] = redistribute(grads[j], dual);
      } else if (!node->is_leaf()) {
        grads[j] = redistribute(grads[j], pending(dual, grads[j].layout()));
      }
      if (capture) it->second = grads[j];
      leaf_captured = capture && node->is_leaf();
    }
    if (node->is_leaf()) {
      if (!limited_ && !leaf_captured) accumulate_leaf(node, std::move(grads[0]), reduce_);
      return;
    }
    NodeContext context(node, std::move(grads), limited_ ? &wanted_ : nullptr);
    if (!context.needs_any()) return;
    if (node->released) {
      throw UsageError(
          str(node->op->name,
              ": the graph was used before and its values are gone. Pass retain_graph to the "
              "first backward(), or compute the loss again."));
    }
    if (node->segment && (node->op->saved_inputs | node->op->saved_outputs) != 0)
      node->segment->fill();
    if (create_graph_ && node->op->decompose != nullptr) {
      decompose(node, context);
    } else {
      node->op->vjp(context);
    }
    // What is no longer needed goes before sums of gradients are made.
    context.drop_grads();
    if (release_) node->release_saved();
    for (int i = 0; i < context.input_count(); ++i) {
      const Node::Input& input = node->inputs[static_cast<std::size_t>(i)];
      if (!input.producer || !context.needs(i)) continue;
      if (Tensor g = context.take(i); g.defined()) add(input.producer, input.output, std::move(g));
    }
    finish_leaves(*node);
  }

  /// Hands over the leaves whose last use this node was.
  void finish_leaves(const Node& node) {
    for (const Node::Input& input : node.inputs) {
      if (!input.producer) continue;
      const auto uses = leaf_uses_.find(input.producer.get());
      if (uses == leaf_uses_.end() || --uses->second > 0) continue;
      const auto it = waiting_.find(input.producer->number);
      if (it == waiting_.end()) continue;
      std::vector<Tensor> grads = std::move(it->second.grads);
      waiting_.erase(it);
      visit(input.producer, std::move(grads));
    }
  }

  /// Runs the op again in small recorded ops and differentiates those.
  void decompose(const Ref<Node>& node, NodeContext& context) {
    context.separate_inputs();
    const std::vector<Tensor> outputs = node->op->decompose(context);
    std::vector<Tensor> inputs, grads, used;
    std::vector<int> index;
    for (int i = 0; i < context.input_count(); ++i) {
      if (!context.needs(i) || !context.input(i).defined()) continue;
      inputs.push_back(context.input(i));
      index.push_back(i);
    }
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      const Tensor g = context.grad(static_cast<int>(j));
      if (!g.defined() || !outputs[j].defined()) continue;
      used.push_back(outputs[j]);
      grads.push_back(g);
    }
    const std::vector<Tensor> results =
        tessera::grad(used, inputs, {.create_graph = true, .allow_unused = true}, grads);
    for (std::size_t k = 0; k < index.size(); ++k)
      if (results[k].defined()) context.set(index[k], results[k]);
  }

  bool create_graph_;
  bool release_;
  bool reduce_;
  std::unordered_map<const Node*, int>
      leaf_uses_;  // inputs that have not been worked off, per leaf
  bool limited_ = false;
  std::unordered_set<const Node*> wanted_;
  std::map<std::pair<std::uint64_t, int>, Tensor> captured_;
  std::map<std::uint64_t, Waiting> waiting_;
};

/// Nodes reachable from `roots` from which one of `targets` is reached (the targets included).
std::unordered_set<const Node*> nodes_between(const std::vector<Tensor>& roots,
                                              const std::vector<Tensor>& targets) {
  std::map<std::uint64_t, Node*> reachable;  // in rising number: producers first
  std::vector<Node*> stack;
  for (const Tensor& root : roots)
    if (slot_of(root)) stack.push_back(slot_of(root).node);
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    if (!reachable.emplace(node->number, node).second) continue;
    for (const Node::Input& input : node->inputs)
      if (input.producer) stack.push_back(input.producer.get());
  }
  std::unordered_set<const Node*> wanted;
  for (const Tensor& target : targets) wanted.insert(slot_of(target).node);
  for (const auto& [number, node] : reachable) {
    for (const Node::Input& input : node->inputs) {
      if (input.producer && wanted.contains(input.producer.get())) {
        wanted.insert(node);
        break;
      }
    }
  }
  return wanted;
}

Tensor ones_like(const Tensor& x) { return Tensor::full(x.layout().dual(), 1.0, x.dtype()); }

std::vector<Tensor> gradients(const std::vector<Tensor>& outputs,
                              const std::vector<Tensor>& inputs,
                              const GradOptions& options,
                              const std::vector<Tensor>& grad_outputs,
                              bool release) {
  if (!grad_outputs.empty() && grad_outputs.size() != outputs.size()) {
    throw UsageError(str("grad: ", outputs.size(), " outputs but ", grad_outputs.size(),
                         " grad_outputs. Give one for each."));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!requires_grad(inputs[i])) {
      throw UsageError(str("grad: input ", i,
                           " does not require a gradient. Call require_grad on it before use."));
    }
  }
  std::vector<Tensor> seeds;
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    Tensor seed = grad_outputs.empty() ? Tensor() : grad_outputs[j];
    if (!seed.defined()) {
      if (outputs[j].numel() != 1) {
        throw ShapeError(str("grad: output ", j, " ", outputs[j].str(),
                             " is not a scalar. Pass its grad_output."));
      }
      seed = ones_like(outputs[j]);
    } else if (!(seed.shape() == outputs[j].shape())) {
      throw ShapeError(str("grad: grad_output ", j, " ", seed.shape(),
                           " has not the shape of the output ", outputs[j].shape(), "."));
    }
    seeds.push_back(std::move(seed));
  }

  const PhaseScope phase(Phase::kBackward);
  Walk walk(options.create_graph, release, false);
  for (const Tensor& input : inputs) walk.capture(input);
  walk.limit_to(nodes_between(outputs, inputs));
  {
    const std::unique_ptr<NoGrad> off = options.create_graph ? nullptr : std::make_unique<NoGrad>();
    const std::unique_ptr<EnableGrad> on =
        options.create_graph ? std::make_unique<EnableGrad>() : nullptr;
    for (std::size_t j = 0; j < outputs.size(); ++j) walk.seed(outputs[j], seeds[j]);
    walk.run();
  }
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    results.push_back(walk.captured(inputs[i]));
    if (!results.back().defined() && !options.allow_unused) {
      throw UsageError(str("grad: the outputs do not depend on input ", i,
                           ". Pass allow_unused, or remove it."));
    }
  }
  return results;
}

}  // namespace

void backward(const Tensor& loss, const BackwardOptions& options) {
  if (loss.numel() != 1) {
    throw ShapeError(str("backward: the loss ", loss.str(), " has ", loss.numel(),
                         " elements. Reduce it to one."));
  }
  if (!requires_grad(loss)) {
    throw UsageError(
        "backward: the loss does not depend on any tensor that requires a gradient. Call "
        "require_grad on the "
        "parameters, and compute the loss outside of NoGrad.");
  }
  const NoGrad guard;
  const PhaseScope phase(Phase::kBackward);
  Walk walk(false, !options.retain_graph, options.reduce);
  walk.count_leaf_uses({loss});
  walk.seed(loss, ones_like(loss));
  walk.run();
  if (options.reduce) start_reductions();
}

std::vector<Tensor> backward_through(const std::vector<Tensor>& outputs,
                                     const std::vector<Tensor>& gradients,
                                     const std::vector<Tensor>& inputs,
                                     bool last) {
  if (outputs.size() != gradients.size()) {
    throw UsageError(str("backward_through: ", outputs.size(), " outputs but ", gradients.size(),
                         " gradients. Give one for each."));
  }
  const NoGrad guard;
  const PhaseScope phase(Phase::kBackward);
  Walk walk(false, true, last);
  walk.count_leaf_uses(outputs);
  for (const Tensor& input : inputs) walk.capture(input);
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    if (!requires_grad(outputs[j])) continue;
    if (!(gradients[j].shape() == outputs[j].shape())) {
      throw ShapeError(str("backward_through: gradient ", j, " ", gradients[j].shape(),
                           " has not the shape of the output ", outputs[j].shape(), "."));
    }
    walk.seed(outputs[j], gradients[j]);
  }
  walk.run();
  if (last) launch_buckets();
  std::vector<Tensor> results;
  for (const Tensor& input : inputs) results.push_back(walk.captured(input));
  return results;
}

Tensor without_values(const Tensor& x) {
  const Tensor one = Tensor::empty(Layout::replicated(Mesh::self(), {1}), x.dtype(), x.device());
  View view = x.local();
  view.data = one.local().data;
  for (std::int64_t& stride : view.strides) stride = 0;
  const Tensor place = Tensor::alias(one, x.layout(), view);
  place.set_gradient_state(x.gradient_state(), x.gradient_index());
  return place;
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs,
                         const std::vector<Tensor>& inputs,
                         const GradOptions& options,
                         const std::vector<Tensor>& grad_outputs) {
  return gradients(outputs, inputs, options, grad_outputs, false);
}

std::vector<Tensor> grad_once(const std::vector<Tensor>& outputs,
                              const std::vector<Tensor>& inputs,
                              const std::vector<Tensor>& grad_outputs) {
  return gradients(outputs, inputs, {}, grad_outputs, true);
}

}  // namespace tessera
