#include "bench_models.hpp"

#include <cmath>
#include <tessera/core/profile.hpp>
#include <tessera/tessera.hpp>

#include "mesh_option.hpp"
#include "network.hpp"
#include "potential_workload.hpp"

namespace tessera::app {

namespace {

class NetworkBench : public BenchModel {
 public:
  NetworkBench(const ModelEntry& entry, const BenchCase& c)
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
    const Layout layout = field_layout(c.mesh, c.batch, c.domain, 1, network_->total_stride());
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

  std::int64_t parameter_count() override { return network_->layer().parameter_count(); }

 private:
  Tensor loss() override { return mse_loss(network_->layer()(input_), target_); }
  void update() override { optimizer_.step(); }

  std::unique_ptr<Network> network_;
  optim::AdamW optimizer_;
  Tensor input_;
  Tensor target_;
};

/// The training of a potential, without the statistics of gradients and averages that go with it.
class AtomsBench : public BenchModel {
 public:
  explicit AtomsBench(const BenchCase& c) {
    settings_.mace.channels = c.width;
    settings_.batch_size = c.batch;
    settings_.default_dtype = c.dtype == DType::kFloat64 ? "float64" : "float32";
    settings_.clip_grad = 0.0;
    settings_.ema = false;
    workload_ =
        atoms_workload(settings_, {c.domain.begin(), c.domain.end()}, Update::kTraining)(c.mesh);
  }

  std::int64_t parameter_count() override { return workload_->model().parameter_count(); }

 private:
  Tensor loss() override { return workload_->loss(0); }
  void update() override { workload_->update(); }

  AtomsSettings settings_;
  std::unique_ptr<nn::Workload> workload_;
};

}  // namespace

double BenchModel::step() {
  Tensor value;
  {
    const ProfilePhase phase("forward");
    value = loss();
  }
  {
    const ProfilePhase phase("backward");
    backward(value);
  }
  {
    const ProfilePhase phase("optimizer");
    update();
  }
  return reduced(value).item();
}

std::vector<BenchEntry> bench_entries() {
  std::vector<BenchEntry> all;
  for (const ModelEntry& entry : model_entries()) {
    all.push_back({entry.name, entry.bench_dims, entry.bench_width, 1,
                   [&entry](const BenchCase& c) -> std::unique_ptr<BenchModel> {
                     return std::make_unique<NetworkBench>(entry, c);
                   }});
  }
  all.push_back(
      {"mace", 3, 64, kAtomsPerCell, [](const BenchCase& c) -> std::unique_ptr<BenchModel> {
         return std::make_unique<AtomsBench>(c);
       }});
  return all;
}

BenchEntry bench_entry(const std::string& name) {
  std::string known;
  for (BenchEntry& entry : bench_entries()) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + entry.name;
  }
  throw UsageError(str("model: there is no model \"", name, "\". Use one of ", known, "."));
}

}  // namespace tessera::app
