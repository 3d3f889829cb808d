#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/nn/atoms/partition.hpp>
#include <tessera/nn/atoms/structure.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <vector>

namespace tessera::nn {

/// How one large system of atoms is spread over ranks.
struct DomainOptions {
  double cutoff = 5.0;  ///< Angstrom
  /// Edges are listed up to cutoff + skin, and stay valid until an atom has moved by skin / 2.
  double skin = 0.0;
  Cutting cutting = Cutting::kBricks;
  DType dtype = DType::kFloat64;
  /// The mesh axes that together cut the box; empty: all. Others replicate.
  std::vector<std::string> axes = {};
  /// Bisection cuts anew, at a rebuild, when a rank has this many times the mean number of edges.
  double imbalance = 1.1;
};

/// Some of the atoms of a system, on one rank.
struct LocalAtoms {
  std::vector<std::int64_t> ids;  ///< each once over all ranks
  std::vector<std::int32_t> species;
  std::vector<double> positions;  ///< 3 per atom
};

/// Atoms that move through a box cut into parts, one per rank: owners, ghosts and edges follow
/// them.
///
/// Node values of the graph are in the order of (rank, id). Between rebuilds the graph stays the
/// same object for the caller: positions run on continuously, also when the caller wraps them into
/// the box. A rebuild wraps, moves atoms to the ranks whose part they are in (one that is within
/// skin / 2 of its part stays), finds ghosts and edges anew. Which edges there are, and their order
/// at each receiver, does not depend on the mesh. All member functions that are not const are
/// called by every rank of the mesh; errors are thrown on every rank alike.
class AtomDomain {
 public:
  /// Every rank has the whole structure; ids count its atoms from 0.
  AtomDomain(const Structure& whole, const Mesh& mesh, const DomainOptions& options);
  /// Each rank gives some atoms, wherever they lie; ranks that replicate give the same.
  AtomDomain(const LocalAtoms& mine,
             const Cell& cell,
             const Mesh& mesh,
             const DomainOptions& options);
  ~AtomDomain();
  AtomDomain(AtomDomain&&) noexcept;

  const Graph& graph() const;
  /// [N, 3], continuous since the last rebuild: what the graph's shifts go with.
  const Tensor& positions() const { return graph().positions; }
  const Cell& cell() const;

  /// Takes new positions [N, 3] of the atoms as they lie now, each within half a box of where it
  /// was, up to lattice vectors. True when the graph was rebuilt: then values of atoms have moved,
  /// too (`carry`).
  bool move(const Tensor& positions);
  /// The same in a box that has changed, by little.
  bool move(const Tensor& positions, const Cell& cell);
  /// Rebuilds now.
  void rebuild();

  /// Values [N, ...] of atoms in the order before the last rebuild, in the order after it.
  Tensor carry(const Tensor& x) const;
  /// positions() plus all lattice vectors that wrapping has taken away: paths without jumps.
  Tensor unwrapped() const;
  /// All atoms in the order of ids, on mesh rank `root`; no atoms elsewhere. Wrapped positions.
  Structure collect(int root = 0) const;

  std::int64_t rebuilds() const;
  /// Atoms that changed their rank at the last rebuild, of all ranks.
  std::int64_t migrated() const;
  /// Most edges of a rank divided by the mean.
  double imbalance() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::nn
