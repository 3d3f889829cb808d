#pragma once

#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// Options of SliceAttention.
struct SliceAttentionOptions {
  std::int64_t channels = 0;
  std::int64_t heads = 8;
  std::int64_t head_channels = 0;  ///< 0: channels / heads
  std::int64_t slices = 64;        ///< tokens that stand for all points
};

/// Physics attention of Transolver (Wu et al. 2024) on points x [N, points, channels]. In each
/// head, point i belongs to slice m with weight
///   w[i, m] = softmax_m(s[m] . a[i] / temperature + c[m]),   a = slice_input(x),
/// a slice is the mean z[m] = sum_i w[i, m] f[i] / (sum_i w[i, m] + 1e-5) of f = value_input(x),
/// the slices attend to each other, and point i gets sum_m w[i, m] z'[m]. Time and memory are
/// linear in the points.
///
/// Points may be split: the sums [w f | w] over them are taken in one reduction of
/// N heads slices (head_channels + 1) numbers, another one in backward; all else is local.
class SliceAttention : public Layer {
 public:
  /// Throws UsageError for sizes that do not divide.
  SliceAttention(const SliceAttentionOptions& options,
                 const Mesh& mesh,
                 DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Linear slice_input;     ///< [heads * head_channels, channels]
  Linear value_input;     ///< [heads * head_channels, channels]
  Linear slice_weights;   ///< [slices, head_channels], of all heads
  Parameter temperature;  ///< [heads, 1, 1], 0.5 at first
  Linear query;           ///< [head_channels, head_channels], of all heads
  Linear key;
  Linear value;
  Linear proj;  ///< [channels, heads * head_channels]

 private:
  std::int64_t heads_;
};

}  // namespace tessera::nn
