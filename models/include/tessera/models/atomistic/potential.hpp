#pragma once

#include <cstdint>
#include <string>
#include <tessera/nn/graph/graph.hpp>

/// Potentials of atoms, their dynamics and relaxation, decomposed over ranks. Units: eV, Angstrom,
/// fs, atomic mass units, Kelvin; pressure in GPa where it is an option or a printed number.
namespace tessera::atomistic {

/// What a potential says of the atoms of a graph.
struct Evaluation {
  Tensor energies;  ///< [N], eV: each atom's share; lies as the nodes
  Tensor forces;    ///< [N, 3], eV/A; lies as the nodes
  Tensor energy;    ///< [G], eV; on every rank
  /// [G, 3, 3], eV; on every rank: -dE/dstrain = -sum over edges of v (x) dE/dv, symmetric. Stress
  /// (positive under tension) is -virials / volume.
  Tensor virials;
};

/// Energies and forces of atoms: analytic, or learned.
class Potential {
 public:
  virtual ~Potential() = default;
  virtual std::string name() const = 0;
  /// Angstrom: edges of this length or longer count for nothing.
  virtual double cutoff() const = 0;
  /// Whether it has parameters for this element.
  virtual bool knows(std::int32_t species) const = 0;
  /// Evaluates `graph` at its `positions` and `cells`; its edges must be all those shorter than
  /// `cutoff()`, longer ones may be among them. Every rank of the mesh must call. Throws
  /// UsageError, on every rank alike, when an element is unknown.
  virtual Evaluation evaluate(const nn::Graph& graph) const = 0;
};

/// Edges as a potential of few bodies reads them on one rank: memory of this rank.
struct LocalEdges {
  std::int64_t nodes = 0;                 ///< own atoms
  std::int64_t edges = 0;                 ///< sorted by receiver
  const std::int64_t* begin = nullptr;    ///< [nodes + 1]: edges of node i are begin[i]..begin[i+1)
  const std::int64_t* senders = nullptr;  ///< rows: own atoms, then ghosts
  const std::int64_t* species = nullptr;  ///< by row
  const double* vectors = nullptr;        ///< [edges, 3], from the sender to the receiver
};

/// A potential that is a sum over atoms of functions of their edges' vectors.
///
/// Ghosts send their position once per evaluation and receive the gradient of theirs; edges lie
/// with their receiver and need nothing else. A sum over the edges of an atom has the same order on
/// any mesh; forces of senders are added by owner.
class EdgePotential : public Potential {
 public:
  Evaluation evaluate(const nn::Graph& graph) const final;

 protected:
  /// energies [nodes] and gradients [edges, 3] = dE/dvector, both zero before. Throws nothing.
  virtual void compute(const LocalEdges& in, double* energies, double* gradients) const = 0;
};

/// Throws UsageError, on every rank alike, when an atom's element is unknown to the potential.
void check_species(const Potential& potential, const nn::Graph& graph);

}  // namespace tessera::atomistic
