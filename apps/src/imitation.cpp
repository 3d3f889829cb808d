#include "imitation.hpp"

#include <cmath>

#include "run_settings.hpp"

namespace tessera::app {

Imitation::Imitation(const RunSettings& settings,
                     Transform transform,
                     Place place,
                     std::int64_t spacing)
    : samples_(settings.batch),
      dtype_(settings.dtype()),
      transform_(std::move(transform)),
      place_(std::move(place)),
      spacing_(spacing) {}

Batch Imitation::batch(std::int64_t first) const {
  const std::int64_t step = first / samples_;
  return {waves(at_.input, step, static_cast<double>(spacing_)), waves(at_.target, step, 1.0), {}};
}

/// Of order 1, different in every sample, step and channel.
Tensor Imitation::waves(const Layout& layout, std::int64_t step, double spacing) const {
  return Tensor::from_function(
      layout,
      [&](const Index& i) {
        double phase = 0.7 * static_cast<double>(step) + 1.3 * static_cast<double>(i[0]);
        double value = 0.0;
        for (int d = 1; d + 1 < i.size(); ++d) {
          phase += (0.11 + 0.04 * d) * spacing * (static_cast<double>(i[d]) + 0.5);
          value += std::sin(phase * (1.0 + 0.5 * static_cast<double>(i[i.size() - 1])));
        }
        return value;
      },
      dtype_);
}

std::vector<EdgeRule> imitated_edges(const std::vector<std::string>& periodic, std::size_t dims) {
  std::vector<EdgeRule> edges(dims, EdgeRule::kReplicate);
  for (const std::string& dimension : periodic) {
    const std::size_t d = dimension.size() == 1 ? static_cast<std::size_t>(dimension[0] - '0') : 9;
    if (d >= dims) {
      throw UsageError(str("data.periodic: \"", dimension, "\" is none of the ", dims,
                           " dimensions. Without a file they are 0, 1, ..."));
    }
    edges[d] = EdgeRule::kCircular;
  }
  return edges;
}

}  // namespace tessera::app
