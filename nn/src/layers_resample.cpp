#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/layers.hpp>

namespace tessera::nn {
namespace {

std::string list(const Dims& values) { return fmt::format("{}", fmt::join(values, "x")); }

}  // namespace

std::string MaxPool::describe() const { return "MaxPool " + list(options_.kernel); }
std::string AvgPool::describe() const { return "AvgPool " + list(options_.kernel); }

Tensor upsample(const Tensor& x,
                std::int64_t factor,
                InterpolateMode mode,
                const std::vector<EdgeRule>& edges) {
  const int dims = x.dims() - 2;
  if (dims < 1 || factor < 1) {
    throw ShapeError(str("upsample: factor ", factor, " for input ", x.shape(),
                         " (the input is [N, domain..., C], the factor at least 1). Reshape it."));
  }
  if (edges.size() > 1 && static_cast<int>(edges.size()) != dims) {
    throw UsageError(str("upsample: ", edges.size(), " edge rules for ", dims,
                         " domain dimensions. Give one per dimension, or one for all."));
  }
  if (factor == 1) return x;
  // Cubic taps reach two elements out; wrapped copies of them stand in for the clamped border.
  constexpr std::int64_t kReach = 2;
  Dims halo = Dims::filled(x.dims(), 0);
  bool wraps = false;
  if (mode != InterpolateMode::kNearest && !edges.empty()) {
    for (int d = 0; d < dims; ++d) {
      const EdgeRule edge = edges[edges.size() == 1 ? 0 : static_cast<std::size_t>(d)];
      if (edge == EdgeRule::kCircular) {
        halo[d + 1] = kReach;
        wraps = true;
      }
    }
  }
  Tensor y = wraps ? pad(x, halo, halo, EdgeRule::kCircular) : x;
  Dims size;
  for (int d = 0; d < dims; ++d) size.push_back(y.size(d + 1) * factor);
  y = interpolate(y, size, {.mode = mode});
  for (int d = 1; d <= dims && wraps; ++d) {
    if (halo[d] > 0) y = slice(y, d, halo[d] * factor, (halo[d] + x.size(d)) * factor);
  }
  return y;
}

std::string Upsample::describe() const {
  static constexpr const char* kNames[] = {"nearest", "linear", "cubic"};
  return fmt::format("Upsample x{}, {}", options_.factor,
                     kNames[static_cast<std::size_t>(options_.mode)]);
}

Tensor PixelShuffle::forward(const Tensor& x) const { return pixel_shuffle(x, factor_); }
std::string PixelShuffle::describe() const { return fmt::format("PixelShuffle x{}", factor_); }

}  // namespace tessera::nn
