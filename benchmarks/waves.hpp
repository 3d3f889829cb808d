#pragma once

#include <cmath>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/module.hpp>

// Values that a benchmark and its peer make alike: benchmarks/peers/torch_model.py has the same.
namespace tessera::bench {

inline double wave(std::int64_t i, double phase) {
  return std::sin(phase + 1.7 * static_cast<double>(i));
}

/// x[i] = wave(i, phase) over the elements in memory, on one rank.
inline void fill_with_wave(const Tensor& x, double phase) {
  const View v = x.mutable_local();
  for (std::int64_t i = 0; i < v.size(); ++i) v.as<float>()[i] = static_cast<float>(wave(i, phase));
}

/// Weights of a size that keeps activations in range, gains of norms around one.
inline void set_waves(nn::Module& model) {
  for (const auto& [name, parameter] : model.named_parameters()) {
    int bytes = 0;
    for (const char letter : name) bytes += static_cast<unsigned char>(letter);
    const View v = parameter.value().mutable_local();
    const bool vector = v.dims() == 1;
    const double scale = vector ? 0.1 : 1.0 / std::sqrt(static_cast<double>(v.size() / v.shape[0]));
    const bool gain = vector && name.find("norm") != std::string::npos &&
                      name.find("weight") != std::string::npos;
    for (std::int64_t i = 0; i < v.size(); ++i)
      v.as<float>()[i] = static_cast<float>(scale * wave(i, bytes % 97) + (gain ? 1.0 : 0.0));
  }
}

}  // namespace tessera::bench
