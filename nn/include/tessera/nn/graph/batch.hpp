#pragma once

#include <span>
#include <string>
#include <tessera/nn/atoms/partition.hpp>
#include <tessera/nn/atoms/structure.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <vector>

namespace tessera::nn {

/// How structures become one graph.
struct BatchOptions {
  double cutoff = 5.0;  ///< Angstrom; edges are shorter
  DType dtype = DType::kFloat64;
  /// Graphs are dealt out along this axis where the mesh has it, with about equal numbers of atoms.
  std::string data_axis = "data";
  /// The axes that together cut each graph in space; all others replicate.
  std::vector<std::string> domain_axes = {};
  Cutting cutting = Cutting::kBricks;
};

/// The graph of structures that every rank has in memory: a step of training. G graphs in the order
/// given; ids count the atoms of each structure from 0. Ranks look for the neighbours of their own
/// atoms only. Throws ShapeError, on every rank alike, for cells without volume, LayoutError for
/// axes that the mesh lacks, UsageError without structures.
Graph batch_graph(std::span<const Structure* const> structures,
                  const Mesh& mesh,
                  const BatchOptions& options);
Graph batch_graph(const std::vector<Structure>& structures,
                  const Mesh& mesh,
                  const BatchOptions& options);

/// What a model is to learn of a batch. Values of graphs are on every rank; those of atoms lie as
/// the nodes. Absent labels are 0 and have weight 0.
struct AtomLabels {
  Tensor energy;          ///< [G], eV
  Tensor forces;          ///< [N, 3], eV/A
  Tensor stress;          ///< [G, 3, 3], eV/A^3
  Tensor virials;         ///< [G, 3, 3], eV
  Tensor energy_weight;   ///< [G]: weight * energy_weight of the structure
  Tensor forces_weight;   ///< [N, 1]
  Tensor stress_weight;   ///< [G, 1, 1]; 0 for a cell without volume
  Tensor virials_weight;  ///< [G, 1, 1]
  Tensor atoms;           ///< [G]: their number
  Tensor volume;          ///< [G], A^3; 1 where the box does not repeat along all three axes
};

/// The labels of the structures that `graph` was made of, in the same order.
AtomLabels batch_labels(std::span<const Structure* const> structures, const Graph& graph);
AtomLabels batch_labels(const std::vector<Structure>& structures, const Graph& graph);

}  // namespace tessera::nn
