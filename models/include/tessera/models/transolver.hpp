#pragma once

#include <tessera/nn/mlp.hpp>
#include <tessera/nn/norms.hpp>
#include <tessera/nn/slice_attention.hpp>

namespace tessera::models {

/// Options of Transolver.
struct TransolverOptions {
  std::int64_t in_channels = 3;  ///< coordinates and what else is known at each point
  std::int64_t out_channels = 1;
  std::int64_t channels = 128;
  int depth = 5;
  std::int64_t heads = 8;
  std::int64_t slices = 64;
  std::int64_t mlp_ratio = 2;
  double dropout = 0.0;    ///< of what each branch adds
  bool zero_head = false;  ///< the output starts at zero
  std::uint64_t seed = 0;
};

/// Transolver (Wu et al. 2024): points [N, points, in_channels] -> [N, points, out_channels] by
/// blocks of slice attention and an Mlp. The order of points does not matter; coordinates are
/// channels like others. Points and samples may be split: each block takes one reduction of its
/// slices.
class Transolver : public nn::Layer {
 public:
  /// Throws UsageError for sizes that do not divide.
  explicit Transolver(const TransolverOptions& options,
                      const Mesh& mesh,
                      DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  const TransolverOptions& options() const { return options_; }
  /// Points may be cut anywhere.
  std::int64_t total_stride() const { return 1; }

 private:
  struct Block : nn::Layer {
    Block(const TransolverOptions& options, const Mesh& mesh, DType dtype);
    void fields(nn::Fields& f) override;
    Tensor forward(const Tensor& x) const override;
    std::string describe() const override { return "Block"; }
    nn::LayerNorm norm1;
    nn::SliceAttention attn;
    nn::LayerNorm norm2;
    nn::Mlp mlp;
    nn::Dropout dropout;
  };

  TransolverOptions options_;
  nn::Mlp embed_;
  std::vector<Block> blocks_;
  nn::LayerNorm norm_;
  nn::Linear head_;
};

}  // namespace tessera::models
