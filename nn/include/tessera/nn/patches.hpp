#pragma once

#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// Options of PatchEmbed and PatchUnembed.
struct PatchOptions {
  int dims = 2;         ///< domain dimensions, 1 to 3
  std::int64_t in = 0;  ///< channels before
  std::int64_t out = 0;
  Dims patch = {16};  ///< elements of a patch in each domain dimension, or one for all
  bool bias = true;
  Init weight_init = {};  ///< default: init::torch_default
  Init bias_init = {};    ///< default: init::torch_default
};

/// Patches to tokens: x [N, domain..., in] -> [N, ceil(domain / patch)..., out], a convolution with
/// kernel and stride `patch` (Dosovitskiy et al. 2021). A domain that is no multiple of the patch
/// counts as zero beyond its end. Patches may straddle part boundaries: a token lies where its
/// patch begins, and the rest of the patch is fetched.
class PatchEmbed : public Layer {
 public:
  /// Throws UsageError for sizes that are not positive or lists of a wrong length.
  PatchEmbed(const PatchOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Conv proj;

 private:
  Dims patch_;
};

/// Tokens back to patches: x [N, tokens..., in] -> [N, patch * tokens..., out], a transposed
/// convolution with kernel and stride `patch`: each token makes its patch.
class PatchUnembed : public Layer {
 public:
  PatchUnembed(const PatchOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  /// With the domain of `grid` [N, size..., any C], of which each dimension is the full size or
  /// less than a patch smaller, and split as `grid` is: where patches straddle part boundaries,
  /// rows move back to their owners.
  Tensor forward_to(const Tensor& x, const Layout& grid) const;
  std::string describe() const override;

  ConvTranspose proj;
};

/// The layout [samples, domain..., channels] that is split as `x` [N, domain..., C] is, over a
/// domain that is `factor` times finer. Channels are whole; so are samples unless there are as many
/// as in `x`.
Layout domain_layout(const Layout& x,
                     std::int64_t samples,
                     std::int64_t channels,
                     std::int64_t factor = 1);

}  // namespace tessera::nn
