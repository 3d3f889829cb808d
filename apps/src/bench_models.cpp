#include "bench_models.hpp"

#include <cmath>
#include <tessera/core/profile.hpp>
#include <tessera/tessera.hpp>

#include "mesh_option.hpp"

namespace tessera::app {

BenchModel::BenchModel(const ModelEntry& entry, const BenchCase& c)
    : network_([&] {
        const std::unique_ptr<NetworkSettings> settings = entry.settings();
        settings->set_bench(c.width);
        const Transform transform = {
            .dims = c.domain.size(),
            .edges = std::vector<EdgeRule>(static_cast<std::size_t>(c.domain.size()),
                                           EdgeRule::kCircular)};
        return settings->make(transform, c.mesh, c.dtype);
      }()),
      optimizer_(network_->layer().parameters(), {.lr = 1e-3}) {
  Shape shape = {c.batch};
  for (const std::int64_t n : c.domain) shape.push_back(n);
  shape.push_back(1);
  const Layout layout = field_placement(c.mesh, c.domain.size())
                            .resolve(shape, {.multiple = network_->total_stride()});
  // Waves of the global position, of lengths that fit no part.
  const auto wave = [&](double steep) {
    return [&c, steep](const Index& i) {
      double phase = 0.7 * static_cast<double>(i[0]);
      for (int d = 0; d < c.domain.size(); ++d)
        phase += steep * (0.11 + 0.05 * d) * static_cast<double>(i[d + 1]);
      return std::sin(phase);
    };
  };
  input_ = Tensor::from_function(layout, wave(1.0), c.dtype);
  target_ = Tensor::from_function(layout, wave(0.5), c.dtype);
}

double BenchModel::step() {
  Tensor loss;
  {
    const ProfilePhase phase("forward");
    loss = mse_loss(network_->layer()(input_), target_);
  }
  {
    const ProfilePhase phase("backward");
    backward(loss);
  }
  {
    const ProfilePhase phase("optimizer");
    optimizer_.step();
  }
  return loss.item();
}

}  // namespace tessera::app
