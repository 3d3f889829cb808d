#include "workload.hpp"

#include "model.hpp"
#include "train.hpp"

namespace tessera::app {
namespace {

class TaskWorkload : public nn::Workload {
 public:
  TaskWorkload(const RunSettings& settings,
               const std::vector<std::int64_t>& size,
               Update update,
               const Spread& spread,
               const Mesh& mesh)
      : settings_(settings),
        task_(settings.data->imitate(settings, size)),
        model_(settings, task_->transform(), mesh) {
    model_.spread(spread, mesh);
    task_->place(mesh, model_.total_stride());
    const auto parameters = model_.network().parameters();
    updater_.emplace(parameters, update, settings.make_optimizer(parameters), settings.weight_decay,
                     settings.clip,
                     settings.ema > 0.0 ? std::optional(settings.ema) : std::nullopt);
  }

  nn::Module& model() override { return model_.network(); }

  Tensor loss(std::int64_t step) override {
    model_.network().random().step = static_cast<std::uint64_t>(step);
    const Batch batch = task_->batch(step * settings_.batch);
    return task_->loss(settings_, model_(batch.input), batch);
  }

  void update() override { updater_->step(); }

 private:
  const RunSettings& settings_;
  std::unique_ptr<Task> task_;
  Model model_;
  std::optional<Updater> updater_;
};

}  // namespace

Updater::Updater(std::vector<nn::Parameter> parameters,
                 Update update,
                 std::unique_ptr<optim::Optimizer> training,
                 double weight_decay,
                 double clip,
                 std::optional<double> average_decay)
    : parameters_(std::move(parameters)), optimizer_(std::move(training)), clip_(clip) {
  if (update == Update::kTraining) {
    if (average_decay) average_.emplace(parameters_, optim::EmaOptions{.decay = *average_decay});
  } else {
    optimizer_ = std::make_unique<optim::Sgd>(
        parameters_,
        optim::SgdOptions{.lr = optimizer_->lr(), .momentum = 0.9, .weight_decay = weight_decay});
  }
}

void Updater::step() {
  if (clip_ > 0.0) optim::clip_grad_norm(parameters_, clip_);
  optimizer_->step();
  if (average_) average_->update();
}

nn::MakeWorkload workload(const RunSettings& settings,
                          const std::vector<std::int64_t>& size,
                          Update update,
                          const Spread& spread) {
  settings.data->imitate(settings, size);  // throws what does not fit
  return [&settings, size, update, spread](const Mesh& mesh) {
    return std::make_unique<TaskWorkload>(settings, size, update, spread, mesh);
  };
}

}  // namespace tessera::app
