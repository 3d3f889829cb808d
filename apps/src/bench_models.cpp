#include "bench_models.hpp"

#include <cmath>
#include <tessera/core/profile.hpp>
#include <tessera/tessera.hpp>

#include "unet_settings.hpp"

namespace tessera::app {
namespace {

/// A U-Net of three levels that learns to smooth a field, on periodic domains.
class UNetBench : public BenchModel {
 public:
  explicit UNetBench(const BenchCase& c)
      : model_(options(c), c.mesh, c.dtype), optimizer_(model_.parameters(), {.lr = 1e-3}) {
    Shape shape = {c.batch};
    for (const std::int64_t n : c.domain) shape.push_back(n);
    shape.push_back(1);
    const Layout layout = field_placement(c.mesh, c.domain.size())
                              .resolve(shape, {.multiple = model_.total_stride()});
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

  double step() override {
    Tensor loss;
    {
      const ProfilePhase phase("forward");
      loss = mse_loss(model_(input_), target_);
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
  std::int64_t parameter_count() override { return model_.parameter_count(); }

 private:
  static models::UNetOptions options(const BenchCase& c) {
    return {.dims = c.domain.size(),
            .base = c.width,
            .multipliers = {1, 2, 4},
            .norm_groups = 4,
            .edges = {EdgeRule::kCircular}};
  }
  models::UNet model_;
  optim::AdamW optimizer_;
  Tensor input_;
  Tensor target_;
};

template <class Model>
std::unique_ptr<BenchModel> make(const BenchCase& c) {
  return std::make_unique<Model>(c);
}

}  // namespace

const std::vector<BenchModelEntry>& bench_models() {
  static const std::vector<BenchModelEntry> models = {{"unet", 16, 3, make<UNetBench>}};
  return models;
}

const BenchModelEntry& bench_model(const std::string& name) {
  std::string known;
  for (const BenchModelEntry& entry : bench_models()) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + entry.name;
  }
  throw UsageError(str("bench: there is no model \"", name, "\". Use one of ", known, "."));
}

}  // namespace tessera::app
