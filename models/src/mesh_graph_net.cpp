#include <fmt/format.h>

#include <tessera/models/mesh_graph_net.hpp>

namespace tessera::models {

namespace {

nn::MessagePassingOptions layer(const MeshGraphNetOptions& o, bool norm = true) {
  return {.channels = o.channels,
          .hidden_layers = o.hidden_layers,
          .activation = o.activation,
          .aggregate = o.aggregate,
          .norm = norm};
}

const MeshGraphNetOptions& checked(const MeshGraphNetOptions& o) {
  if (o.steps < 1)
    throw UsageError(str("mesh_graph_net: ", o.steps, " steps. Use at least 1, 15 for example."));
  return o;
}

}  // namespace

MeshGraphNet::MeshGraphNet(const MeshGraphNetOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      encode_nodes_({options.node_channels}, options.channels, layer(options), mesh, dtype),
      encode_edges_({options.edge_channels}, options.channels, layer(options), mesh, dtype),
      decode_({options.channels}, options.out_channels, layer(options, false), mesh, dtype) {
  for (int s = 0; s < options.steps; ++s) steps_.emplace_back(layer(options), mesh, dtype);
  nn::initialize(*this, options.seed);
}

void MeshGraphNet::fields(nn::Fields& f) {
  f("encode_nodes", encode_nodes_);
  f("encode_edges", encode_edges_);
  f("steps", steps_);
  f("decode", decode_);
}

std::string MeshGraphNet::describe() const {
  return fmt::format("MeshGraphNet {} -> {} channels, {} steps of {}", options_.node_channels,
                     options_.out_channels, options_.steps, options_.channels);
}

Tensor MeshGraphNet::operator()(const Tensor& nodes,
                                const Tensor& edges,
                                const nn::Graph& graph) const {
  const Shape expected_nodes{graph.node_count(), options_.node_channels};
  const Shape expected_edges{graph.edge_count(), options_.edge_channels};
  if (!(nodes.shape() == expected_nodes) || !(edges.shape() == expected_edges)) {
    throw ShapeError(str("mesh_graph_net: nodes ", nodes.shape(), " and edges ", edges.shape(),
                         " are not ", expected_nodes, " and ", expected_edges,
                         ". Give values of this graph, or change the options."));
  }
  nn::GraphState state{encode_nodes_.finish(encode_nodes_.project(0, nodes)),
                       encode_edges_.finish(encode_edges_.project(0, edges))};
  for (const nn::MessagePassing& step : steps_) state = step(state, graph);
  return decode_.finish(decode_.project(0, state.nodes));
}

}  // namespace tessera::models
