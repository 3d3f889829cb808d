#pragma once

#include <tessera/models/fields.hpp>
#include <tessera/nn/encodings.hpp>
#include <tessera/nn/patches.hpp>
#include <tessera/nn/transformer.hpp>

namespace tessera::models {

/// Options of Forecaster.
struct ForecasterOptions {
  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  Dims patch = {2};  ///< elements of a patch per domain dimension, or one for all
  std::int64_t channels = 256;
  int depth = 8;
  std::int64_t heads = 8;
  Dims window = {7};  ///< tokens of a neighbourhood per domain dimension, or one for all
  /// Block b looks at every dilations[b % size]-th token; it must divide circular dimensions.
  std::vector<std::int64_t> dilations = {1};
  std::int64_t mlp_ratio = 4;
  bool qk_norm = false;
  /// Above 0: numbers per sample that condition all blocks, e.g. sine and cosine of the season and
  /// of the time of day, or the lead time.
  std::int64_t condition_features = 0;
  double dropout = 0.0;  ///< of what each branch adds
  /// One per domain dimension, or one for all; kCircular: neighbourhoods and positions wrap around
  /// (longitude).
  std::vector<EdgeRule> edges = {};
  /// Adds the input (its first channels): the network learns the change, and starts at zero.
  bool predict_change = true;
  bool zero_head = false;  ///< the output starts at zero
  std::uint64_t seed = 0;
};

/// Forecaster of fields by neighbourhood attention: x [N, domain..., in_channels] ->
/// [N, domain..., out_channels]. Patches become tokens with sinusoidal positions (where on the
/// globe) and relative position biases; blocks attend to neighbourhoods (Hassani et al. 2023); a
/// condition scales and shifts their norms (Peebles & Xie 2023).
///
/// Linear in the size of the domain, which may be split in any way: each block fetches the rows
/// that its neighbourhoods reach. A domain that is no multiple of the patch counts as zero beyond
/// its end; a circular one should be one.
class Forecaster : public nn::Layer {
 public:
  /// Throws UsageError for options that contradict each other.
  explicit Forecaster(const ForecasterOptions& options,
                      const Mesh& mesh,
                      DType dtype = DType::kFloat32);
  void fields(nn::Fields& f) override;
  /// With a condition of zeros, if the model has one.
  Tensor forward(const Tensor& x) const override;
  /// With a condition [N, condition_features].
  Tensor forward(const Tensor& x, const Tensor& condition) const;
  std::string describe() const override;

  const ForecasterOptions& options() const { return options_; }
  /// What lies beyond the domain from now on.
  void set_edges(const std::vector<EdgeRule>& edges);
  /// Elements of the input that one token stands for: the least common multiple over dimensions.
  std::int64_t total_stride() const;

 private:
  ForecasterOptions options_;
  nn::PatchEmbed patch_embed_;
  nn::SinusoidalPositions positions_;
  std::optional<nn::Mlp> condition_;
  std::vector<nn::TransformerBlock> blocks_;
  nn::LayerNorm norm_;
  nn::PatchUnembed head_;
};

}  // namespace tessera::models
