#pragma once

#include <string>
#include <tessera/autograd/ops/equivariant.hpp>
#include <tessera/models/mace_blocks.hpp>
#include <tessera/nn/atoms/objective.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <tessera/nn/module.hpp>
#include <vector>

namespace tessera::models {

/// What Mace::compute is asked for beside energies.
struct MaceOutputs {
  bool forces = true;
  bool stress = false;  ///< and virials
  bool node_virials = false;
  /// Records how forces, stress and virials come about, so that a loss may hold them.
  bool create_graph = false;
};

/// Energies in eV in fp64, lengths in A: those of AtomPrediction, energies always, forces -dE/dr,
/// stress dE/d strain / |cell| (0 for a cell without volume), virials -dE/d strain; and by atom.
/// Undefined where not asked for.
struct MaceResult : nn::AtomPrediction {
  Tensor node_energy;   ///< [N]; their sum over a graph is its energy
  Tensor interaction;   ///< [N]: the same without the energies of isolated atoms
  Tensor node_virials;  ///< [N, 3, 3]: half of each edge's virial at either end
};

/// ScaleShiftMACE (Batatia et al. 2022, arXiv 2206.07697): energies of atoms by equivariant message
/// passing with many-body messages, and forces and stress as its exact derivatives.
///
/// The graph may hold many structures, its atoms split over any mesh axes: what moves between ranks
/// are the rows of ghosts, one message per neighbour and layer after the first (which needs their
/// species alone), back again in each gradient. `graph.species` holds atomic numbers. Positions,
/// cells and forces have the type of the graph (fp64 advised), everything in between that of the
/// model; energies are added in fp64.
///
/// Differentiable as often as the ops are: losses of forces and stress, and their gradients.
class Mace : public nn::Module {
 public:
  /// Throws UsageError for options that contradict each other.
  explicit Mace(const MaceOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  std::string describe() const override;

  /// Energies and what else is asked for, by one gradient with respect to edge vectors. `positions`
  /// [N, 3]: undefined for those of the graph. Throws DataError for an element that the model does
  /// not know, on the rank that meets it.
  MaceResult compute(const nn::Graph& graph,
                     const MaceOutputs& outputs = {},
                     const Tensor& positions = {}) const;

  const MaceOptions& options() const { return options_; }
  /// Energies of isolated atoms, scale, shift and mean number of neighbours from now on; sizes must
  /// fit the elements (nn/atoms/statistics.hpp).
  void set_statistics(const std::vector<double>& e0,
                      double scale,
                      double shift,
                      double avg_num_neighbors);

 private:
  Tensor interaction_energy(const nn::Graph& graph, const Tensor& vectors) const;

  MaceOptions options_;
  DType dtype_;
  MaceEmbedding embedding_;
  std::vector<MaceInteraction> interactions_;
  std::vector<MaceProduct> products_;
  std::vector<MaceReadout> readouts_;
};

}  // namespace tessera::models
