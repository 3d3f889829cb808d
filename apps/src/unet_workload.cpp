#include <cmath>
#include <optional>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/nn/optim.hpp>

#include "unet_settings.hpp"
#include "workloads.hpp"

namespace tessera::app {
namespace {

/// One of `training` as train_unet() runs it, but for the data: smooth waves of made-up phases.
class UNetWorkload : public nn::Workload {
 public:
  UNetWorkload(const UNetSettings& settings,
               const std::vector<std::int64_t>& size,
               const std::vector<EdgeRule>& edges,
               Update update,
               const Mesh& mesh)
      : settings_(settings),
        model_(settings.model(static_cast<int>(size.size()), edges), mesh, settings.dtype()) {
    const int dims = static_cast<int>(size.size());
    Shape shape{settings.batch};
    for (const std::int64_t n : size) shape.push_back(n / settings.factor);
    shape.push_back(model_.options().in_channels);
    input_ = field_placement(mesh, dims).resolve(shape, {.multiple = model_.total_stride()});
    target_ = input_;
    for (int d = 1; d <= dims; ++d) {
      DimSplit split = input_.split(d);
      for (std::int64_t& bound : split.bounds) bound *= settings.factor;
      target_ = target_.with_dim(d, shape[d] * settings.factor, split);
    }
    target_ = target_.with_dim(dims + 1, 1, {});
    if (update == Update::kAdamW) {
      optimizer_ = std::make_unique<optim::AdamW>(
          model_.parameters(),
          optim::AdamWOptions{.lr = settings.lr, .weight_decay = settings.weight_decay});
      if (settings.ema > 0.0)
        average_.emplace(model_.parameters(), optim::EmaOptions{.decay = settings.ema});
    } else {
      optimizer_ = std::make_unique<optim::Sgd>(
          model_.parameters(),
          optim::SgdOptions{
              .lr = settings.lr, .momentum = 0.9, .weight_decay = settings.weight_decay});
    }
  }

  nn::Module& model() override { return model_; }

  Tensor loss(std::int64_t step) override {
    model_.random().step = static_cast<std::uint64_t>(step);
    const Tensor input = waves(input_, step, static_cast<double>(settings_.factor));
    const Tensor target = waves(target_, step, 1.0);
    const Tensor output = model_(input);
    if (settings_.loss == "l1") return l1_loss(output, target);
    if (settings_.loss == "huber") return huber_loss(output, target, 1.0);
    return mse_loss(output, target);
  }

  void update() override {
    if (settings_.clip > 0.0) optim::clip_grad_norm(model_.parameters(), settings_.clip);
    optimizer_->step();
    if (average_) average_->update();
  }

 private:
  /// Of order 1, different in every sample, step and channel; `spacing` points of the field apart.
  Tensor waves(const Layout& layout, std::int64_t step, double spacing) const {
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
        settings_.dtype());
  }

  UNetSettings settings_;
  models::UNet model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::Ema> average_;
  Layout input_;
  Layout target_;
};

class Source : public WorkloadSource {
 public:
  void declare(io::Settings& settings) override { settings_.declare(settings); }

  nn::MakeWorkload workload(const std::vector<std::int64_t>& size, Update update) override {
    if (settings_.forecasts()) {
      throw UsageError("data.task: forecasts cannot be planned or compared. Use refine.");
    }
    if (size.empty() || size.size() > 3) {
      throw UsageError(
          str("size: ", size.size(), " dimensions. Give 1 to 3 numbers, e.g. 512x512."));
    }
    for (const std::int64_t n : size) {
      if (n < settings_.factor || n % settings_.factor != 0) {
        throw UsageError(str("size: ", n, " is not a multiple of data.factor = ", settings_.factor,
                             " (the input is coarser by it). Change one of them."));
      }
    }
    std::vector<EdgeRule> edges(size.size(), EdgeRule::kReplicate);
    for (const std::string& dimension : settings_.periodic) {
      const std::size_t d =
          dimension.size() == 1 ? static_cast<std::size_t>(dimension[0] - '0') : 9;
      if (d >= size.size()) {
        throw UsageError(str("data.periodic: \"", dimension, "\" is none of the ", size.size(),
                             " dimensions. Without a file they are 0, 1, ..."));
      }
      edges[d] = EdgeRule::kCircular;
    }
    return [this, size, update, edges](const Mesh& mesh) {
      return std::make_unique<UNetWorkload>(settings_, size, edges, update, mesh);
    };
  }

 private:
  UNetSettings settings_;
};

}  // namespace

std::unique_ptr<WorkloadSource> unet_workload() { return std::make_unique<Source>(); }

}  // namespace tessera::app
