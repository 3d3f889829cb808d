#include <fmt/format.h>

#include <cmath>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/graph/message_passing.hpp>

namespace tessera::nn {

const char* name(Aggregate aggregate) {
  switch (aggregate) {
    case Aggregate::kSum:
      return "sum";
    case Aggregate::kMean:
      return "mean";
    default:
      return "max";
  }
}

Tensor aggregate_edges(const Tensor& x, const Graph& graph, Aggregate how) {
  switch (how) {
    case Aggregate::kSum:
      return segment_sum(x, graph.edges());
    case Aggregate::kMean:
      return segment_mean(x, graph.edges());
    default:
      return segment_max(x, graph.edges());
  }
}

GraphMlp::GraphMlp(const std::vector<std::int64_t>& in,
                   std::int64_t out,
                   const MessagePassingOptions& options,
                   const Mesh& mesh,
                   DType dtype)
    : activation_(options.activation) {
  std::int64_t total = 0;
  for (const std::int64_t c : in) total += c;
  if (options.hidden_layers < 1 || options.channels < 1 || out < 1 || total < 1) {
    throw UsageError(str("message passing: ", options.hidden_layers, " hidden layers of ",
                         options.channels, " channels from ", total, " to ", out,
                         " (all must be at least 1). Use for example 2 and 128."));
  }
  // As one layer on all inputs would start.
  const double bound = 1.0 / std::sqrt(static_cast<double>(total));
  for (std::size_t i = 0; i < in.size(); ++i) {
    first_.emplace_back(LinearOptions{.in = in[i],
                                      .out = options.channels,
                                      .bias = i == 0,
                                      .weight_init = init::uniform(-bound, bound),
                                      .bias_init = init::uniform(-bound, bound)},
                        mesh, dtype);
  }
  for (int l = 1; l < options.hidden_layers; ++l)
    more_.emplace_back(LinearOptions{.in = options.channels, .out = options.channels}, mesh, dtype);
  more_.emplace_back(LinearOptions{.in = options.channels, .out = out}, mesh, dtype);
  if (options.norm) norm_.emplace(RowNormOptions{.channels = out}, mesh, dtype);
}

void GraphMlp::fields(Fields& f) {
  f("first", first_);
  f("more", more_);
  f("norm", norm_);
}

std::string GraphMlp::describe() const {
  return fmt::format("GraphMlp of {} inputs, {} layers, {}", first_.size(), more_.size() + 1,
                     nn::name(activation_));
}

Tensor GraphMlp::project(std::size_t i, const Tensor& x) const { return first_.at(i)(x); }

Tensor GraphMlp::finish(const Tensor& sum) const {
  Tensor y = sum;
  for (const Linear& layer : more_) y = layer(activate(y, activation_));
  return norm_ ? (*norm_)(y) : y;
}

MessagePassing::MessagePassing(const MessagePassingOptions& o, const Mesh& mesh, DType dtype)
    : edge_({o.channels, o.channels, o.channels}, o.channels, o, mesh, dtype),
      node_({o.channels, o.channels}, o.channels, o, mesh, dtype),
      aggregate_(o.aggregate) {}

void MessagePassing::fields(Fields& f) {
  f("edge", edge_);
  f("node", node_);
}

std::string MessagePassing::describe() const {
  return fmt::format("MessagePassing, {}", nn::name(aggregate_));
}

GraphState MessagePassing::operator()(const GraphState& state, const Graph& graph) const {
  const LayerScope scope(scope_name());
  const auto out = run(
      [this, graph](std::span<const Tensor> in) -> std::vector<Tensor> {
        const Tensor& x = in[0];
        const Tensor& e = in[1];
        // Edges of own senders and of ghosts alike take most of the first layer meanwhile.
        const GhostRowsInFlight rows = start_node_rows(edge_.project(1, x), graph);
        const Tensor known = edge_.project(0, e) + at_receivers(edge_.project(2, x), graph);
        const Tensor edges = e + edge_.finish(known + at_senders(rows.wait(), graph));
        const Tensor got = aggregate_edges(edges, graph, aggregate_);
        const Tensor nodes = x + node_.finish(node_.project(0, x) + node_.project(1, got));
        return {nodes, edges};
      },
      {state.nodes, state.edges});
  return {out[0], out[1]};
}

}  // namespace tessera::nn
