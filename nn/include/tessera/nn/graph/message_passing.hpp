#pragma once

#include <tessera/nn/graph/graph.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/norms.hpp>
#include <vector>

namespace tessera::nn {

/// How the messages of its edges become one value of a node.
enum class Aggregate : std::uint8_t { kSum, kMean, kMax };
const char* name(Aggregate aggregate);
/// The sum, mean or maximum over the edges that each node receives: x [E, ...] -> [N, ...]; 0 where
/// there are none.
Tensor aggregate_edges(const Tensor& x, const Graph& graph, Aggregate how);

/// Options of GraphMlp and MessagePassing.
struct MessagePassingOptions {
  std::int64_t channels = 128;  ///< of nodes, edges and hidden layers
  int hidden_layers = 2;        ///< of each network
  Activation activation = Activation::kRelu;
  Aggregate aggregate = Aggregate::kSum;
  bool norm = true;  ///< LayerNorm at the end of each network
};

/// A network on several inputs side by side, y = norm(W_n act(... act(W_1 [x_1; x_2; ...] + b_1))).
/// The first layer is applied to each input alone, where it has fewest rows, and then added up.
class GraphMlp : public Module {
 public:
  GraphMlp(const std::vector<std::int64_t>& in,
           std::int64_t out,
           const MessagePassingOptions& options,
           const Mesh& mesh,
           DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  std::string describe() const override;

  /// The first layer's part of input i (the bias goes with input 0).
  Tensor project(std::size_t i, const Tensor& x) const;
  /// The rest, given the sum of the parts.
  Tensor finish(const Tensor& sum) const;

 private:
  std::vector<Linear> first_;
  std::vector<Linear> more_;
  std::optional<LayerNorm> norm_;
  Activation activation_;
};

/// Values of nodes [N, C] and edges [E, C].
struct GraphState {
  Tensor nodes;
  Tensor edges;
};

/// One step of message passing with residuals (Battaglia et al. 2018; Pfaff et al. 2021):
///   e_ij += edge([e_ij; x_j; x_i]),  x_i += node([x_i; aggregate of e_ij over j]).
/// Sends the projected values of ghosts once per step.
class MessagePassing : public Module {
 public:
  MessagePassing(const MessagePassingOptions& options,
                 const Mesh& mesh,
                 DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  std::string describe() const override;
  bool can_recompute() const override { return true; }
  GraphState operator()(const GraphState& state, const Graph& graph) const;

 private:
  GraphMlp edge_;
  GraphMlp node_;
  Aggregate aggregate_;
};

}  // namespace tessera::nn
