#pragma once

#include <tessera/core/tensor.hpp>

namespace tessera {

/// Key of a stream of random numbers; with the global element index it fixes every draw, on any
/// mesh.
struct RandomKey {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

/// Zeroes each element with probability p and scales the rest by 1 / (1 - p); the mask follows from
/// the key and the global index (Philox 4x32-10) and is drawn again in backward, not stored.
Tensor dropout(const Tensor& x, double p, RandomKey key);
/// Uniform on [low, high); normal. New tensors of this layout.
Tensor random_uniform(const Layout& layout,
                      RandomKey key,
                      double low = 0.0,
                      double high = 1.0,
                      DType dtype = DType::kFloat32);
Tensor random_normal(const Layout& layout,
                     RandomKey key,
                     double mean = 0.0,
                     double stddev = 1.0,
                     DType dtype = DType::kFloat32);

}  // namespace tessera
