#pragma once

#include <tessera/autograd/ops/rotary.hpp>
#include <tessera/nn/layers.hpp>

/// What tells tokens apart by their global positions, the same on any mesh. Rotary encoding turns
/// queries and keys instead: see MultiHeadAttention and tessera::rotary.
namespace tessera::nn {

/// Which of these dimensions are circles, for RotaryOptions.
std::vector<bool> circular_flags(const std::vector<EdgeRule>& edges);

/// Options of LearnedPositions.
struct LearnedPositionsOptions {
  Dims grid = {};  ///< tokens per domain dimension in training
  std::int64_t channels = 0;
  InterpolateMode mode = InterpolateMode::kCubic;  ///< to other grids
  Init init = init::normal(0.0, 0.02);
};

/// x [N, grid..., channels] plus a learned vector per place. On another grid the vectors are
/// interpolated, each rank those of its part.
class LearnedPositions : public Layer {
 public:
  /// Throws UsageError unless all sizes are positive.
  LearnedPositions(const LearnedPositionsOptions& options,
                   const Mesh& mesh,
                   DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Parameter weight;  ///< [grid..., channels]

 private:
  InterpolateMode mode_;
};

/// x [N, domain..., C] plus sines and cosines of the position: channels c and c + C/2 hold the sine
/// and cosine of wave c of position_waves(domain, C/2) (Vaswani et al. 2017, in any number of
/// dimensions); an odd last channel stays.
class SinusoidalPositions : public Layer {
 public:
  explicit SinusoidalPositions(const RotaryOptions& options = {}) : options_(options) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override { return "SinusoidalPositions"; }

  /// Which domain dimensions are circles from now on (kCircular); one rule per dimension, or one
  /// for all.
  void set_edges(const std::vector<EdgeRule>& edges);

 private:
  RotaryOptions options_;
  mutable Tensor latest_;  // one layout is asked for over and over
};

}  // namespace tessera::nn
