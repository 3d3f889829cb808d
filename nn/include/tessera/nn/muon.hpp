#pragma once

#include <tessera/nn/optim.hpp>

namespace tessera::optim {

/// How Muon scales the step of a matrix [rows, columns].
enum class MuonScale : std::uint8_t {
  kAdamW,  ///< 0.2 sqrt(max(rows, columns)): the size of AdamW's steps (Liu et al. 2025)
  kAspect  ///< sqrt(max(1, rows / columns)) (Jordan et al. 2024)
};

/// Options of Muon.
struct MuonOptions {
  double lr = 1e-3;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.1;
  int iterations = 5;  ///< of Newton-Schulz
  MuonScale scale = MuonScale::kAdamW;
  /// Patterns (see nn::glob_match) of parameters that AdamW changes although they are matrices:
  /// embeddings, the first and the last layer.
  std::vector<std::string> adamw = {};
  double beta1 = 0.9;  ///< of AdamW, as the next two
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decay_vectors = false;  ///< see AdamWOptions
  std::vector<Group> groups = {};
};

/// Muon (Jordan et al. 2024): for matrices, and weights of convolutions read as [dim 0, the rest],
/// m = momentum m + (1 - momentum) g; d = m (nesterov: (1 - momentum) g + momentum m);
/// p *= 1 - lr weight_decay; p -= lr scale orthogonal(d). Parameters of one dimension, and those
/// that `adamw` names, follow AdamW with the same rate (a Group scales it).
///
/// orthogonal(X): X / |X|, then `iterations` times X = a X + (b A + c A^2) X with A = X X^T and
/// (a, b, c) = (3.4445, -4.775, 2.0315) (transposed where X has more rows than columns): U V^T of
/// the singular value decomposition, with singular values between 0.7 and 1.2. In fp32, or fp64 for
/// such parameters. Where the state is split (nn::shard) the products are too: the longer side
/// stays split, and each iteration sums a square matrix of the shorter one. Replicated parameters
/// are worked on by every rank alike.
class Muon : public Optimizer {
 public:
  explicit Muon(const std::vector<nn::Parameter>& parameters, const MuonOptions& options = {});

 protected:
  void update(const std::vector<Change>& changes) override;

 private:
  MuonOptions options_;
};

/// orthogonal(x) as above, x [rows, columns] in any layout; the result lies where x does.
Tensor newton_schulz(const Tensor& x, int iterations = 5);

}  // namespace tessera::optim
