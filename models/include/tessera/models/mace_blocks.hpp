#pragma once

#include <optional>
#include <string>
#include <tessera/autograd/ops/equivariant.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/module.hpp>
#include <vector>

/// The parts of Mace. Weights are drawn from N(0, 1) and scaled where they are used (by 1 / sqrt of
/// the terms of a sum), as in the published model, so that optimisers see the same numbers.
namespace tessera::models {

/// Options of Mace; defaults are those of the published training program.
struct MaceOptions {
  enum class FirstBlock : std::uint8_t {
    kResidual,  ///< as all others: the layer adds a product of the old features with the species
    kAgnostic   ///< messages are multiplied by a matrix of the species instead
  };

  std::vector<std::int64_t> elements = {};  ///< atomic numbers, ascending
  double r_max = 5.0;                       ///< cutoff, A
  std::int64_t channels = 128;              ///< K
  int max_L = 1;                            ///< largest l of features between layers
  int max_ell = 3;                          ///< largest l of harmonics and messages
  int correlation = 3;                      ///< order of the products of messages, 1 to 3
  int layers = 2;
  std::int64_t radial_basis = 8;  ///< Bessel functions
  int cutoff_power = 5;           ///< p of the envelope 1 - (p + 1)(p + 2)/2 x^p + ...
  std::vector<std::int64_t> radial_mlp = {64, 64, 64};
  std::int64_t readout = 16;  ///< hidden units of the last readout
  FirstBlock first_block = FirstBlock::kResidual;
  bool density =
      false;            ///< messages are divided by 1 + a learned density, not by avg_num_neighbors
  bool agnesi = false;  ///< distances relative to covalent radii in the radial basis
  bool pair_repulsion = false;  ///< Ziegler-Biersack-Littmark repulsion at short distances
  kernels::CouplingBasis couplings = kernels::CouplingBasis::kFull;
  std::vector<double> e0 = {};     ///< eV, of isolated atoms, one per element; empty: 0
  double scale = 1.0;              ///< eV
  double shift = 0.0;              ///< eV per atom
  double avg_num_neighbors = 1.0;  ///< messages are divided by it
  std::uint64_t seed = 0;
  /// 0: the radial network runs on every edge. n > 0: it runs on the knots of n equal intervals of
  /// [0, r_max], and edges read cubic splines between them: half of the time and a third of the
  /// memory, with an error below 1e-6 of the radial functions for n = 256. Forces stay exact
  /// derivatives of the energy, and gradients of weights flow through the table. Pays from about
  /// 30 atoms per rank on (a table costs 5 ms per layer and call at K = 128, L = 1). Not with
  /// `agnesi`, whose functions depend on the pair.
  std::int64_t radial_intervals = 0;
};

/// What all layers know of the edges.
struct MaceEdges {
  Tensor harmonics;  ///< [E, (max_ell + 1)^2]
  Tensor radial;     ///< [E, radial_basis], 0 from the cutoff on; undefined where nothing reads it
  Tensor spline;     ///< [E, 4] and
  Tensor interval;   ///< [E]: where radial functions are tables (autograd/ops/hermite.hpp)
};

/// Elements as channels: weight [elements, K].
class MaceEmbedding : public nn::Module {
 public:
  MaceEmbedding(const MaceOptions& options, const Mesh& mesh, DType dtype);
  void fields(nn::Fields& f) override { f("weight", weight); }
  std::string describe() const override;
  /// Features of each element [elements, 1, K].
  Tensor table() const;

  nn::Parameter weight;
};

/// The hidden layers of the network from radial basis to path weights: [E, radial_basis] -> [E, H],
/// without biases, silu of unit second moment (but for the factor `scale()` of the last one).
class MaceRadial : public nn::Layer {
 public:
  MaceRadial(const MaceOptions& options, const Mesh& mesh, DType dtype);
  void fields(nn::Fields& f) override { f("weights", weights); }
  Tensor forward(const Tensor& x) const override;
  /// The same in fp64 on x in fp64.
  Tensor forward_fp64(const Tensor& x) const;
  /// What the result is to be multiplied by; in the weights that it meets, to save a pass.
  double scale() const;
  std::string describe() const override;

  std::vector<nn::Parameter> weights;  ///< [out, in]
};

/// Messages: neighbours' features times harmonics times radial functions, summed, mixed.
class MaceInteraction : public nn::Module {
 public:
  MaceInteraction(const MaceOptions& options, int layer, const Mesh& mesh, DType dtype);
  void fields(nn::Fields& f) override;
  std::string describe() const override;

  struct Result {
    Tensor messages;  ///< [N, (max_ell + 1)^2, K]
    Tensor skip;      ///< [N, rows, K] to add after the product; undefined in an agnostic block
  };
  /// The first layer: `table` [elements, 1, K] by element, and the elements of nodes [N] and of
  /// rows with ghosts [R].
  Result first(const Tensor& table,
               const Tensor& node_elements,
               const Tensor& row_elements,
               const MaceEdges& edges,
               const nn::Graph& graph) const;
  /// Later layers, from features [N, rows, K].
  Result next(const Tensor& features,
              const Tensor& node_elements,
              const MaceEdges& edges,
              const nn::Graph& graph) const;

  void set_neighbours(double avg_num_neighbors) { neighbours_ = avg_num_neighbors; }

  nn::Parameter linear_up;  ///< [l_in + 1, K, K]
  MaceRadial radial;
  nn::Parameter path_weights;  ///< [H, paths K]: last layer of the radial network
  nn::Parameter linear;        ///< [paths, K, K]
  nn::Parameter skip;          ///< [l + 1, elements, K, K]
  nn::Parameter density;       ///< [1, radial_basis], absent without density

 private:
  Tensor messages(const GhostRowsInFlight& rows,
                  const MaceEdges& edges,
                  const nn::Graph& graph) const;
  /// Radial functions on the knots [2 (intervals + 1), paths K]: values, and slopes per interval.
  Tensor radial_table() const;

  ConvolutionPaths paths_;
  bool agnostic_;
  double neighbours_;
  std::int64_t elements_;
  std::int64_t skipped_rows_;  ///< rows of l that the skip has not, up to those of the output
  Tensor path_scale_;          ///< [paths, 1, 1]
  Tensor knots_;               ///< [5 (intervals + 1)] distances, with radial tables
  Tensor stencil_;             ///< [intervals + 1, 2, 5]
  double r_max_;
  int cutoff_power_;
};

/// Products of messages with themselves, mixed: features of the next layer.
class MaceProduct : public nn::Module {
 public:
  MaceProduct(const MaceOptions& options, int layer, const Mesh& mesh, DType dtype);
  void fields(nn::Fields& f) override;
  std::string describe() const override;
  /// [N, (max_ell + 1)^2, K] -> [N, (L + 1)^2, K].
  Tensor operator()(const Tensor& messages, const Tensor& skip, const Tensor& elements) const;

  /// [elements, couplings, K] of each block of kernels::contraction_blocks.
  std::vector<nn::Parameter> weights;
  nn::Parameter linear;  ///< [L + 1, K, K]

 private:
  ContractionSpec spec_;
};

/// Features to energies: linear, in the last layer with one hidden layer.
class MaceReadout : public nn::Module {
 public:
  MaceReadout(const MaceOptions& options, int layer, const Mesh& mesh, DType dtype);
  void fields(nn::Fields& f) override;
  std::string describe() const override;
  /// [N, rows, K] -> [N].
  Tensor operator()(const Tensor& features) const;

  nn::Parameter hidden;  ///< [readout, K], last layer only
  nn::Parameter linear;  ///< [1, K or readout]
};

}  // namespace tessera::models
