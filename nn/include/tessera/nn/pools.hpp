#pragma once

#include <tessera/autograd/ops/adaptive_pool.hpp>
#include <tessera/nn/module.hpp>

namespace tessera::nn {

/// Mean over bins, [N, domain..., C] -> [N, size..., C]; see tessera::adaptive_avg_pool.
class AdaptiveAvgPool : public Layer {
 public:
  explicit AdaptiveAvgPool(const Dims& size) : size_(size) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool(x, size_); }
  std::string describe() const override { return str("AdaptiveAvgPool ", size_); }

 private:
  Dims size_;
};

/// Largest element of each bin; see tessera::adaptive_max_pool.
class AdaptiveMaxPool : public Layer {
 public:
  explicit AdaptiveMaxPool(const Dims& size) : size_(size) {}
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return adaptive_max_pool(x, size_); }
  std::string describe() const override { return str("AdaptiveMaxPool ", size_); }

 private:
  Dims size_;
};

/// Mean over the whole domain, [N, domain..., C] -> [N, C].
class GlobalAvgPool : public Layer {
 public:
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return global_avg_pool(x); }
  std::string describe() const override { return "GlobalAvgPool"; }
};

/// Largest element of the whole domain, [N, domain..., C] -> [N, C].
class GlobalMaxPool : public Layer {
 public:
  void fields(Fields&) override {}
  Tensor forward(const Tensor& x) const override { return global_max_pool(x); }
  std::string describe() const override { return "GlobalMaxPool"; }
};

}  // namespace tessera::nn
