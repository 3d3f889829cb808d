#include "train.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/checkpoints.hpp>
#include <tessera/nn/data/prefetch.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/progress.hpp>
#include <tessera/nn/schedules.hpp>
#include <tessera/parallel/stats.hpp>

#include "mesh_option.hpp"
#include "model.hpp"
#include "pictures.hpp"
#include "resume.hpp"
#include "step_profiler.hpp"
#include "stop_signals.hpp"
#include "trained.hpp"

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;

/// What all ranks learn of each other once per step.
struct StepReport {
  bool stop = false;
  std::int64_t comm_bytes = 0;  ///< sent by all ranks since the last report
  std::int64_t peak_bytes = 0;  ///< of the rank that needed most
};

class StepReporter {
 public:
  explicit StepReporter(const Mesh& mesh) : ranks_(nn::collective(mesh)) {}
  StepReport report() {
    const std::int64_t sent = parallel::comm_stats().total().bytes;
    std::vector<std::int64_t> values(static_cast<std::size_t>(ranks_.size) + 2, 0);
    values[0] = StopSignals::requested() ? 1 : 0;
    values[1] = sent - sent_before_;
    values[static_cast<std::size_t>(ranks_.rank) + 2] = MemoryPool::of({}).stats().peak_bytes;
    if (ranks_.size > 1) ranks_.sum(values);
    leave_out();
    return {values[0] > 0, values[1], *std::max_element(values.begin() + 2, values.end())};
  }
  /// What `f` sends is not part of the step.
  template <class F>
  auto uncounted(F&& f) {
    const std::int64_t before = parallel::comm_stats().total().bytes;
    const auto result = f();
    sent_before_ += parallel::comm_stats().total().bytes - before;
    return result;
  }

  /// What was sent since the last report is none of a step's.
  void leave_out() { sent_before_ = parallel::comm_stats().total().bytes; }

 private:
  io::Collective ranks_;
  std::int64_t sent_before_ = parallel::comm_stats().total().bytes;
};

}  // namespace

Tensor Task::loss(const RunSettings& settings, const Tensor& output, const Batch& batch) const {
  const Tensor weight = batch.mask.defined() ? cast(batch.mask, output.dtype()) : Tensor();
  if (settings.loss == "l1") return l1_loss(output, batch.target, weight);
  if (settings.loss == "huber") return huber_loss(output, batch.target, 1.0, weight);
  return mse_loss(output, batch.target, weight);
}

void declare_nan(io::Settings& s, std::string& on_nan, std::int64_t& nan_limit) {
  s.add("training.on_nan", on_nan,
        "When the loss or the gradient of a step is NaN or infinite: stop, naming op and layer, or "
        "skip the step.",
        {.choices = {"stop", "skip"}});
  s.add("training.nan_limit", nan_limit, "Steps in a row that may be skipped; one more stops.",
        {.min = 0});
}

nn::NanGuardOptions nan_options(const std::string& on_nan, std::int64_t nan_limit) {
  return {.on_nan = on_nan == "skip" ? nn::OnNan::kSkip : nn::OnNan::kStop,
          .most_skips = nan_limit};
}

void print_skipped(const nn::NanGuard& guard) {
  if (guard.skipped() == 0 || process().rank != 0) return;
  fmt::print("{} steps were skipped: their loss or gradient was NaN or infinite\n",
             guard.skipped());
  std::fflush(stdout);
}

int train(RunSettings& settings, const TrainOptions& options) {
  const RunFiles files{options.out};
  const Mesh mesh = parse_mesh(options.mesh);
  const bool first = mesh.rank() == 0;
  const io::Collective ranks = nn::collective(mesh);
  const StopSignals signals;

  ranks.together([&] {
    if (first) open_run(files, options.resume);
  });

  const std::unique_ptr<Task> task = settings.data->open(settings, mesh);
  Model model(settings, task->transform(), mesh);
  model.spread(settings.spread(), mesh);
  nn::Module& network = model.network();
  const auto made = settings.make_optimizer(network.parameters());
  optim::Optimizer& optimizer = *made;
  std::optional<optim::Ema> ema;
  if (settings.ema > 0.0)
    ema.emplace(network.parameters(), optim::EmaOptions{.decay = settings.ema});
  const optim::CosineSchedule schedule = {.lr = settings.lr,
                                          .steps = settings.steps,
                                          .warmup = settings.warmup,
                                          .final_lr = settings.final_lr};
  nn::TrainingState state = {
      .model = &network, .optimizer = &optimizer, .ema = ema ? &*ema : nullptr};
  task->place(mesh, model.total_stride());

  nn::Checkpoints checkpoints(mesh, {.directory = checkpoints_of(files), .keep = options.keep});
  if (options.resume) load_newest(files, checkpoints, state);
  ranks.together([&] {
    io::Settings all;
    settings.declare(all);
    if (first) all.save(files.config());
  });
  // From its first line of metrics on, a run can be resumed; and a disk without room for a
  // checkpoint is found out before the work.
  if (!options.resume) {
    checkpoints.save(state);
    checkpoints.finish();
  }
  std::optional<io::JsonLines> metrics;
  ranks.together([&] {
    metrics.emplace(files.metrics(), options.resume ? state.step : io::JsonLines::kNothing);
  });

  StepReporter reporter(mesh);
  nn::NanGuard guard(mesh, network, optimizer, nan_options(settings.on_nan, settings.nan_limit));
  io::Progress progress(settings.steps, {.label = "train", .first = state.step});
  StepProfiler profiler(
      {.dir = options.profile ? files.profile() : std::string(), .steps = options.profile_steps},
      mesh, settings.steps - state.step);
  const auto read_batch = [&](std::int64_t step) { return task->batch(step * settings.batch); };
  std::optional<data::Prefetcher<Batch>> ahead;
  if (options.prefetch > 0)
    ahead.emplace(read_batch, state.step, settings.steps, options.prefetch, ranks);
  bool stopped = false;
  while (state.step < settings.steps && !stopped) {
    profiler.begin_step();
    const auto start = Clock::now();
    MemoryPool::of({}).reset_peak();
    network.random().step = static_cast<std::uint64_t>(state.step);
    const auto in_phase = [](const char* name, const auto& f) {
      const ProfilePhase phase(name);
      return f();
    };
    const Batch batch = in_phase("data", [&] {
      return ahead ? reporter.uncounted([&] { return ahead->next(); }) : read_batch(state.step);
    });
    const auto forward = [&] { return task->loss(settings, model(batch.input), batch); };
    const Tensor loss = in_phase("forward", forward);
    in_phase("backward", [&] { backward(loss); });
    const double lr = schedule(state.step);
    std::optional<double> grad_norm;  // before clipping
    const bool good = in_phase("optimizer", [&] {
      finish_gradients();
      const double value = loss.item();
      if (!reporter.uncounted([&] { return guard.passes(state.step, value, forward); }))
        return false;
      if (settings.clip > 0.0)
        grad_norm = optim::clip_grad_norm(network.parameters(), settings.clip);
      optimizer.set_lr(lr);
      optimizer.step();
      if (ema) ema->update();
      return true;
    });
    ++state.step;

    const double value = loss.item();
    const StepReport report = reporter.report();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::vector<std::pair<std::string, io::JsonValue>> line = {{"step", state.step},
                                                               {"loss", value},
                                                               {"seconds", seconds},
                                                               {"peak_bytes", report.peak_bytes},
                                                               {"comm_bytes", report.comm_bytes},
                                                               {"lr", lr}};
    if (grad_norm) line.emplace_back("grad_norm", *grad_norm);
    if (!good) line.emplace_back("skipped", guard.skipped());
    metrics->write(line);
    profiler.end_step();
    progress.update(state.step, fmt::format("loss {:.4g}", value));
    stopped = report.stop;
    checkpoints.poll();
    if (stopped || state.step == settings.steps || state.step % options.checkpoint_every == 0)
      checkpoints.save(state);
    reporter.leave_out();
  }
  checkpoints.finish();
  profiler.finish();
  print_skipped(guard);
  if (stopped && state.step < settings.steps) return kExitPreempted;

  if (ema) ema->swap();
  model.set_edges(task->edges());
  save_trained(files.weights(), model, settings, task->numbers());
  ranks.together([&] {
    if (!first) return;
    draw_losses(files.loss_picture(), io::read_json_lines(files.metrics(), {"step", "loss"}));
  });
  return 0;
}

}  // namespace tessera::app
