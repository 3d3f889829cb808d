#pragma once

#include <cstdint>
#include <tessera/nn/graph/batch.hpp>
#include <vector>

/// How well a potential fits labels of energies, forces and stress.
namespace tessera::nn {

/// What a potential says of a batch; undefined where it was not asked.
struct AtomPrediction {
  Tensor energy;   ///< [G], eV
  Tensor forces;   ///< [N, 3], eV/A
  Tensor stress;   ///< [G, 3, 3], eV/A^3, tension positive
  Tensor virials;  ///< [G, 3, 3], eV
};

/// Options of atom_loss.
struct AtomLossOptions {
  enum class Kind : std::uint8_t {
    kWeighted,  ///< squares, weighted per structure
    kHuber,     ///< quadratic below `huber_delta`, linear above
    kUniversal  ///< the same; for forces the larger a label, the smaller the delta
  };
  Kind kind = Kind::kWeighted;
  double energy = 1.0;
  double forces = 100.0;
  double stress = 0.0;
  double virials = 0.0;
  double huber_delta = 0.01;
};

/// energy mean_g w ((E - E*) / n)^2 + forces mean w (F - F*)^2 + stress mean w (s - s*)^2 + virials
/// mean w ((v - v*) / n)^2: means over all graphs, components of atoms and components of matrices,
/// w as in the labels, n the number of atoms. In the other kinds Huber's function of w times the
/// difference stands for w times its square; kUniversal has deltas of 1, 0.7, 0.4, 0.1 times
/// `huber_delta` for |F*| below 100, 200, 300 eV/A and above. Terms whose weight is 0 or whose
/// prediction is undefined are left out.
Tensor atom_loss(const AtomPrediction& prediction,
                 const AtomLabels& labels,
                 const AtomLossOptions& options);

/// Mean errors over labelled structures, batch after batch.
class AtomErrors {
 public:
  /// Every rank must call; two small reductions.
  void add(const AtomPrediction& prediction, const AtomLabels& labels);

  /// Mean error of a kind of label. NaN where there was none.
  struct Error {
    double rmse = 0.0;
    double mae = 0.0;
  };
  Error energy_per_atom() const { return energy_per_atom_.error(); }  ///< eV
  Error energy() const { return energy_.error(); }                    ///< eV
  Error forces() const { return forces_.error(); }                    ///< eV/A, by component
  Error stress() const { return stress_.error(); }                    ///< eV/A^3, by component

 private:
  struct Sums {
    double squares = 0.0;
    double sizes = 0.0;
    double count = 0.0;
    Error error() const;
    void add(double difference);
  };
  Sums energy_per_atom_, energy_, forces_, stress_;
};

}  // namespace tessera::nn
