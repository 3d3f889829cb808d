#include "workload.hpp"

#include <optional>
#include <tessera/nn/optim.hpp>

#include "model.hpp"
#include "train.hpp"

namespace tessera::app {
namespace {

class TaskWorkload : public nn::Workload {
 public:
  TaskWorkload(const RunSettings& settings,
               const std::vector<std::int64_t>& size,
               Update update,
               const Mesh& mesh)
      : settings_(settings),
        task_(settings.data->imitate(settings, size)),
        model_(settings, task_->transform(), mesh) {
    model_.spread(settings, mesh);
    task_->place(mesh, model_.total_stride());
    const std::vector<nn::Parameter> parameters = model_.network().parameters();
    if (update == Update::kAdamW) {
      optimizer_ = std::make_unique<optim::AdamW>(
          parameters,
          optim::AdamWOptions{.lr = settings.lr, .weight_decay = settings.weight_decay});
      if (settings.ema > 0.0)
        average_.emplace(parameters, optim::EmaOptions{.decay = settings.ema});
    } else {
      optimizer_ = std::make_unique<optim::Sgd>(
          parameters,
          optim::SgdOptions{
              .lr = settings.lr, .momentum = 0.9, .weight_decay = settings.weight_decay});
    }
  }

  nn::Module& model() override { return model_.network(); }

  Tensor loss(std::int64_t step) override {
    model_.network().random().step = static_cast<std::uint64_t>(step);
    const Batch batch = task_->batch(step * settings_.batch);
    return loss_of(settings_, model_(batch.input), batch);
  }

  void update() override {
    if (settings_.clip > 0.0) optim::clip_grad_norm(model_.network().parameters(), settings_.clip);
    optimizer_->step();
    if (average_) average_->update();
  }

 private:
  const RunSettings& settings_;
  std::unique_ptr<Task> task_;
  Model model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::Ema> average_;
};

}  // namespace

nn::MakeWorkload workload(const RunSettings& settings,
                          const std::vector<std::int64_t>& size,
                          Update update) {
  settings.data->imitate(settings, size);  // throws what does not fit
  return [&settings, size, update](const Mesh& mesh) {
    return std::make_unique<TaskWorkload>(settings, size, update, mesh);
  };
}

}  // namespace tessera::app
