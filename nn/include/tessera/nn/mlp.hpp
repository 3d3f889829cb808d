#pragma once

#include <tessera/nn/layers.hpp>

namespace tessera::nn {

/// Options of Mlp.
struct MlpOptions {
  std::int64_t channels = 0;
  std::int64_t hidden = 0;  ///< 0: 4 * channels
  std::int64_t out = 0;     ///< 0: channels
  Activation activation = Activation::kGelu;
  /// The activation of one projection times another one: SwiGLU with kSilu (Shazeer 2020).
  bool gated = false;
  double dropout = 0.0;
};

/// fc2(act(fc1(x))), or fc2(act(gate(x)) * fc1(x)), for each token.
class Mlp : public Layer {
 public:
  Mlp(const MlpOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Linear fc1;
  std::optional<Linear> gate;
  Linear fc2;

 private:
  Activation activation_;
  Dropout dropout_;
};

}  // namespace tessera::nn
