#pragma once

#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/autograd/ops/norm.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/nn/module.hpp>

namespace tessera::nn {

/// Options of Linear.
struct LinearOptions {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
  Init weight_init = {};  ///< default: init::torch_default
  Init bias_init = {};    ///< default: init::torch_default
};

/// y[..., o] = sum_i x[..., i] weight[o, i] + bias[o].
class Linear : public Layer {
 public:
  /// Throws UsageError unless `in` and `out` are positive.
  Linear(const LinearOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  Parameter weight;  ///< [out, in]
  Parameter bias;    ///< [out]
};

/// Options of Conv and ConvTranspose. Lists hold one value per domain dimension, or one for all.
struct ConvLayerOptions {
  int dims = 2;  ///< domain dimensions, 1 to 3
  std::int64_t in = 0;
  std::int64_t out = 0;
  Dims kernel = {3};
  Dims stride = {1};
  Dims dilation = {1};
  /// Padding at the low and high ends; empty (both): what keeps the size at stride 1, the odd
  /// element at the high end. ConvTranspose: what is cut off; empty: nothing.
  Dims pad_lo = {};
  Dims pad_hi = {};
  Dims output_padding = {};  ///< ConvTranspose only
  std::int64_t groups = 1;
  std::vector<EdgeRule> edges = {};  ///< one per domain dimension, or one for all; default zero
  bool bias = true;
  Init weight_init = {};  ///< default: init::torch_default
  Init bias_init = {};    ///< default: init::torch_default
};

/// Convolution of x [N, domain..., in]; see tessera::conv.
class Conv : public Layer {
 public:
  /// Throws UsageError for sizes that are not positive or lists of a wrong length.
  Conv(const ConvLayerOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  /// What the padding holds from now on; one rule per domain dimension, or one for all.
  void set_edges(const std::vector<EdgeRule>& edges);

  Parameter weight;  ///< [out, kernel..., in / groups]
  Parameter bias;    ///< [out]

 private:
  ConvOptions options_;
};

/// Transposed convolution of x [N, domain..., in]; see tessera::conv_transpose.
class ConvTranspose : public Layer {
 public:
  ConvTranspose(const ConvLayerOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  /// With an output of exactly `size` domain elements: what lies beyond is cut off, what lacks is
  /// output padding. Throws ShapeError when `size` is further than one stride from the default.
  Tensor forward_to(const Tensor& x, const Dims& size) const;
  std::string describe() const override;

  Parameter weight;  ///< [in, kernel..., out / groups]
  Parameter bias;    ///< [out]

 private:
  ConvTransposeOptions options_;
};

/// Options of GroupNorm.
struct GroupNormOptions {
  std::int64_t groups = 1;
  std::int64_t channels = 0;
  double eps = 1e-5;
  bool affine = true;
  Activation activation = Activation::kNone;  ///< applied to the result, in the same pass
};

/// Group normalisation with activation; see tessera::group_norm.
class GroupNorm : public Layer {
 public:
  /// Throws UsageError unless `channels` is a positive multiple of `groups`.
  GroupNorm(const GroupNormOptions& options, const Mesh& mesh, DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

  const GroupNormOptions& options() const { return options_; }

  Parameter weight;  ///< gamma [channels]
  Parameter bias;    ///< beta [channels]

 private:
  GroupNormOptions options_;
};

/// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p).
class Dropout : public Layer {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  explicit Dropout(double p);
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

 private:
  double p_;
};

class MaxPool : public Layer {
 public:
  explicit MaxPool(const PoolOptions& options) : options_(options) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return max_pool(x, options_); }
  std::string describe() const override;

 private:
  PoolOptions options_;
};

class AvgPool : public Layer {
 public:
  explicit AvgPool(const PoolOptions& options) : options_(options) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return avg_pool(x, options_); }
  std::string describe() const override;

 private:
  PoolOptions options_;
};

/// `x` [N, domain..., C] with `factor` times as many elements in each domain dimension. Beyond the
/// domain stands what `edges` says (one rule per domain dimension, or one for all): kCircular
/// wraps, all others repeat the border element.
Tensor upsample(const Tensor& x,
                std::int64_t factor,
                InterpolateMode mode = InterpolateMode::kLinear,
                const std::vector<EdgeRule>& edges = {});

/// Options of Upsample; see upsample().
struct UpsampleOptions {
  std::int64_t factor = 2;
  InterpolateMode mode = InterpolateMode::kLinear;
  std::vector<EdgeRule> edges = {};
};

class Upsample : public Layer {
 public:
  explicit Upsample(const UpsampleOptions& options) : options_(options) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override {
    return upsample(x, options_.factor, options_.mode, options_.edges);
  }
  std::string describe() const override;

 private:
  UpsampleOptions options_;
};

/// [N, d..., r^dims C] -> [N, r d..., C].
class PixelShuffle : public Layer {
 public:
  explicit PixelShuffle(std::int64_t factor) : factor_(factor) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override;

 private:
  std::int64_t factor_;
};

const char* name(Activation activation);
/// The activation of this name (none, relu, silu, gelu); throws UsageError.
Activation parse_activation(std::string_view name);

/// An activation as a layer.
class Activate : public Layer {
 public:
  explicit Activate(Activation activation) : activation_(activation) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return activate(x, activation_); }
  std::string describe() const override;

 private:
  Activation activation_;
};

/// Rows of a table: index [...] (int32 or int64) -> [..., features].
class Embedding : public Layer {
 public:
  /// Weights are drawn from N(0, 1).
  Embedding(std::int64_t rows,
            std::int64_t features,
            const Mesh& mesh,
            DType dtype = DType::kFloat32);
  void fields(Fields& f) override;
  Tensor forward(const Tensor& index) const override;
  std::string describe() const override;

  Parameter weight;  ///< [rows, features]
};

/// Layers one after the other.
class Sequential : public Layer {
 public:
  Sequential() = default;
  /// `Sequential(Conv(...), Activate(...), ...)`
  template <class... Layers>
  requires(sizeof...(Layers) > 0 &&
           (std::derived_from<std::remove_cvref_t<Layers>, Layer> && ...) &&
           !(sizeof...(Layers) == 1 && (std::same_as<std::remove_cvref_t<Layers>, Sequential> &&
                                        ...))) explicit Sequential(Layers&&... layers) {
    (add(std::forward<Layers>(layers)), ...);
  }
  template <class L>
  Sequential& add(L&& layer) {
    layers_.push_back(std::make_unique<std::remove_cvref_t<L>>(std::forward<L>(layer)));
    return *this;
  }
  std::size_t size() const { return layers_.size(); }
  Layer& operator[](std::size_t i) { return *layers_[i]; }
  void fields(Fields& f) override;
  Tensor forward(const Tensor& x) const override;
  std::string describe() const override { return "Sequential"; }

 private:
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace tessera::nn
