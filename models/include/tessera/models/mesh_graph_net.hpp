#pragma once

#include <tessera/nn/graph/message_passing.hpp>

namespace tessera::models {

/// Options of MeshGraphNet.
struct MeshGraphNetOptions {
  std::int64_t node_channels = 3;  ///< known at each node
  std::int64_t edge_channels = 4;  ///< known of each edge: its vector and length, say
  std::int64_t out_channels = 3;
  std::int64_t channels = 128;
  int steps = 15;
  int hidden_layers = 2;
  nn::Aggregate aggregate = nn::Aggregate::kSum;
  Activation activation = Activation::kRelu;
  std::uint64_t seed = 0;
};

/// MeshGraphNet (Pfaff et al. 2021): encodes nodes [N, node_channels] and edges [E, edge_channels],
/// passes messages `steps` times along the edges, decodes to [N, out_channels]. Nodes may be split
/// over ranks as the graph says (nn/graph/mesh_graph.hpp); each step sends every ghost row once.
class MeshGraphNet : public nn::Module {
 public:
  /// Throws UsageError for sizes that are not positive.
  explicit MeshGraphNet(const MeshGraphNetOptions& options,
                        const Mesh& mesh,
                        DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  std::string describe() const override;

  Tensor operator()(const Tensor& nodes, const Tensor& edges, const nn::Graph& graph) const;

  const MeshGraphNetOptions& options() const { return options_; }

 private:
  MeshGraphNetOptions options_;
  nn::GraphMlp encode_nodes_;
  nn::GraphMlp encode_edges_;
  std::vector<nn::MessagePassing> steps_;
  nn::GraphMlp decode_;
};

}  // namespace tessera::models
