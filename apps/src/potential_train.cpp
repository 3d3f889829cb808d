#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/models/mace_file.hpp>
#include <tessera/nn/atoms/batches.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/checkpoints.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/plot.hpp>
#include <tessera/nn/sampler.hpp>
#include <tessera/nn/schedules.hpp>
#include <tuple>

#include "potential.hpp"
#include "resume.hpp"
#include "stop_signals.hpp"
#include "train.hpp"
#include "trained.hpp"

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;
using Structures = std::vector<nn::Structure>;

struct Sets {
  Structures all;  ///< of the training file, isolated atoms too: what statistics are taken from
  Structures train, valid, test;
};

Sets read_sets(const AtomsSettings& s) {
  Sets sets;
  const auto without_lone_atoms = [](Structures from) {
    std::erase_if(from, [](const nn::Structure& x) { return x.is_isolated_atom(); });
    return from;
  };
  const Structures file = io::read_extxyz(s.train_file, s.keys);
  const Structures molecules = without_lone_atoms(file);
  if (!s.valid_file.empty()) {
    sets.train = molecules;
    sets.valid = without_lone_atoms(io::read_extxyz(s.valid_file, s.keys));
    sets.all = file;
  } else {
    const nn::DataSplit split = nn::split_data(std::ssize(molecules), s.valid_fraction, s.seed);
    for (const std::int64_t i : split.train)
      sets.train.push_back(molecules[static_cast<std::size_t>(i)]);
    for (const std::int64_t i : split.valid)
      sets.valid.push_back(molecules[static_cast<std::size_t>(i)]);
    sets.all = sets.train;
    for (const nn::Structure& x : file)
      if (x.is_isolated_atom()) sets.all.push_back(x);
  }
  if (!s.test_file.empty()) sets.test = without_lone_atoms(io::read_extxyz(s.test_file, s.keys));
  if (sets.train.empty()) {
    throw DataError(str("train: ", s.train_file,
                        " has no structures to train on (isolated atoms and the validation part do "
                        "not count). Give another file, or a smaller valid_fraction."));
  }
  return sets;
}

/// Throws DataError when none of the labels that the loss compares is there; says which are not.
void check_labels(const Structures& structures,
                  const std::string& file,
                  const AtomsSettings& settings,
                  bool say) {
  if (structures.empty()) return;
  const nn::AtomLossOptions loss = settings.loss_options(false);
  const auto any = [&](auto&& has) {
    return std::any_of(structures.begin(), structures.end(), has);
  };
  const std::tuple<const char*, double, bool> labels[] = {
      {"energy", loss.energy, any([](const nn::Structure& s) { return s.energy.has_value(); })},
      {"forces", loss.forces, any([](const nn::Structure& s) { return !s.forces.empty(); })},
      {"stress", loss.stress, any([](const nn::Structure& s) { return s.stress.has_value(); })},
      {"virials", loss.virials, any([](const nn::Structure& s) { return s.virials.has_value(); })}};
  std::string absent;
  bool found = false;
  for (const auto& [name, weight, there] : labels) {
    if (weight == 0.0) continue;
    found = found || there;
    if (!there) absent += (absent.empty() ? "" : ", ") + std::string(name);
  }
  if (!found) {
    throw DataError(str("train: ", file, " has no labels that the loss compares (", absent,
                        "). Name them with --energy-key, --forces-key and so on, or give another "
                        "file."));
  }
  if (say && !absent.empty())
    fmt::print("{}: no structure has {}, which count with weight 0\n", file, absent);
}

/// What decides the rest of a run beside weights and optimiser; kept in the checkpoint.
struct Standing {
  optim::PlateauSchedule::State plateau;
  double best = std::numeric_limits<double>::infinity();
  std::int64_t since_best = 0;
  bool second_stage = false;

  io::Metadata save() const {
    return {{"plateau.scale", fmt::format("{}", plateau.scale)},
            {"plateau.best", fmt::format("{}", plateau.best)},
            {"plateau.bad", std::to_string(plateau.bad)},
            {"best", fmt::format("{}", best)},
            {"since_best", std::to_string(since_best)},
            {"second_stage", second_stage ? "1" : "0"}};
  }
  /// Throws DataError when the checkpoint at `path` says no such thing.
  void load(const io::Metadata& from, const std::string& path) {
    const auto number = [&](const char* key) { return number_in(from, key, path); };
    plateau.scale = number("plateau.scale");
    plateau.best = number("plateau.best");
    plateau.bad = static_cast<std::int64_t>(number("plateau.bad"));
    best = number("best");
    since_best = static_cast<std::int64_t>(number("since_best"));
    second_stage = number("second_stage") != 0.0;
  }
};

void draw_curves(const RunFiles& files) {
  const auto loss = io::read_json_lines(files.metrics(), {"step", "loss"});
  const auto valid = io::read_json_lines(files.metrics(), {"step", "valid_loss"});
  io::draw_plot({{.label = "training", .x = loss[0], .y = loss[1]},
                 {.label = "validation", .x = valid[0], .y = valid[1]}},
                {.title = "Loss", .x_label = "step", .y_label = "loss", .log_y = true})
      .save(files.loss_picture());
  const auto errors =
      io::read_json_lines(files.metrics(), {"step", "rmse_e_meV_per_atom", "rmse_f_meV_per_A"});
  io::draw_plot({{.label = "energy, meV/atom", .x = errors[0], .y = errors[1]},
                 {.label = "forces, meV/A", .x = errors[0], .y = errors[2]}},
                {.title = "Validation RMSE", .x_label = "step", .y_label = "RMSE", .log_y = true})
      .save(files.dir + "/errors.png");
}

}  // namespace

optim::AdamWOptions optimizer_options(const AtomsSettings& s) {
  // Decay acts on what follows messages and products, as in the published program.
  return {.lr = s.lr,
          .weight_decay = 0.0,
          .decay_vectors = true,
          .groups = {{.pattern = "interactions.*.linear", .weight_decay = s.weight_decay},
                     {.pattern = "products.*", .weight_decay = s.weight_decay}},
          .amsgrad = s.amsgrad,
          .coupled = s.optimizer == "adam"};
}

int train_atoms(AtomsSettings& settings, const TrainOptions& options) {
  const RunFiles files{options.out};
  const Mesh mesh = parse_atoms_mesh(options.mesh);
  const bool first = mesh.rank() == 0;
  const io::Collective ranks = nn::collective(mesh);
  const StopSignals signals;
  Sets sets;
  models::MaceOptions model_options;
  ranks.together([&] {
    if (first) open_run(files, options.resume);
    sets = read_sets(settings);
    check_labels(sets.train, settings.train_file, settings, first);
    const std::string& valid_file =
        settings.valid_file.empty() ? settings.train_file : settings.valid_file;
    check_labels(sets.valid, valid_file, settings, false);
    model_options = settings.model_options(sets.all);
    check_elements(sets.train, settings.train_file, model_options.elements);
    check_elements(sets.valid, valid_file, model_options.elements);
    check_elements(sets.test, settings.test_file, model_options.elements);
  });

  models::Mace model(model_options, mesh, settings.dtype());
  if (!settings.foundation_model.empty() && !options.resume)
    nn::load_weights(settings.foundation_model, model);
  optim::AdamW optimizer(model.parameters(), optimizer_options(settings));
  std::optional<optim::Ema> ema;
  if (settings.ema) ema.emplace(model.parameters(), optim::EmaOptions{.decay = settings.ema_decay});
  optim::PlateauSchedule plateau(
      {.factor = settings.lr_factor, .patience = settings.scheduler_patience});
  Standing standing;
  nn::TrainingState state = {
      .model = &model, .optimizer = &optimizer, .ema = ema ? &*ema : nullptr};
  nn::Checkpoints checkpoints(mesh, {.directory = checkpoints_of(files), .keep = options.keep});
  if (options.resume) {
    load_newest(files, checkpoints, state);
    standing.load(state.extra, checkpoints_of(files));
    plateau.set_state(standing.plateau);
  }
  const auto save = [&] {
    standing.plateau = plateau.state();
    state.extra = standing.save();
    checkpoints.save(state);
  };
  ranks.together([&] {
    io::Settings all;
    settings.declare(all);
    if (first) all.save(files.config());
  });
  if (!options.resume) {
    save();
    checkpoints.finish();
  }
  std::optional<io::JsonLines> metrics;
  ranks.together([&] {
    metrics.emplace(files.metrics(), options.resume ? state.step : io::JsonLines::kNothing);
  });
  if (first) {
    fmt::print("{} structures to train on, {} to validate, {} to test; {}, {} parameters\n",
               sets.train.size(), sets.valid.size(), sets.test.size(), model.describe(),
               model.parameter_count());
    fmt::print("avg_num_neighbors {:.6g}, scale {:.6g} eV, shift {:.6g} eV\n",
               model_options.avg_num_neighbors, model_options.scale, model_options.shift);
    for (std::size_t i = 0; i < model_options.elements.size(); ++i) {
      fmt::print("E0 {} {:.6f} eV\n",
                 nn::element_symbol(static_cast<std::int32_t>(model_options.elements[i])),
                 model_options.e0[i]);
    }
    std::fflush(stdout);
  }

  const nn::BatchOptions cut = batch_options(mesh, model_options.r_max);
  // The last structures of an epoch that do not fill a batch wait for another epoch.
  const nn::Sampler sampler(
      std::ssize(sets.train),
      {.batch = settings.batch_size, .seed = settings.seed, .drop_last = true});
  const std::int64_t steps_per_epoch = sampler.steps();
  const auto validate = [&](std::int64_t epoch, bool second_stage) {
    const auto averages = ema ? std::make_unique<optim::EmaScope>(*ema) : nullptr;
    const nn::AtomLossOptions loss = settings.loss_options(second_stage);
    const AtomsScore score =
        score_atoms(model, sets.valid, mesh, settings.valid_batch_size, &loss, false);
    const double e = 1e3 * score.errors.energy_per_atom().rmse;
    const double f = 1e3 * score.errors.forces().rmse;
    metrics->write({{"step", state.step},
                    {"epoch", epoch},
                    {"valid_loss", score.loss},
                    {"rmse_e_meV_per_atom", e},
                    {"rmse_f_meV_per_A", f}});
    if (first) {
      fmt::print("Epoch {}: loss={:.8f}, RMSE_E_per_atom={:8.2f} meV, RMSE_F={:8.2f} meV / A\n",
                 epoch, score.loss, e, f);
      std::fflush(stdout);
    }
    const bool better = score.loss < standing.best || sets.valid.empty();
    standing.since_best = better ? 0 : standing.since_best + 1;
    if (better) {
      standing.best = score.loss;
      models::save_mace(files.weights(), model);
    }
    return score.loss;
  };

  const std::int64_t last_step = settings.max_num_epochs * steps_per_epoch;
  nn::NanGuard guard(mesh, model, optimizer, nan_options(settings.on_nan, settings.nan_limit));
  auto last_save = Clock::now();
  bool stopped = false;
  bool saved_every = false;  // the last step is one of those after which to save
  bool done = state.step >= last_step;
  while (!done && !stopped) {
    const std::int64_t epoch = state.step / steps_per_epoch;
    const bool second_stage = settings.stage_two && epoch >= settings.second_stage_epoch();
    if (second_stage && !standing.second_stage) {
      standing = {.plateau = plateau.state(), .second_stage = true};
      if (first) fmt::print("Stage two\n");
    }
    const nn::AtomLossOptions loss_options = settings.loss_options(second_stage);
    optimizer.set_lr(second_stage ? settings.stage_two_lr
                     : settings.scheduler == "ExponentialLR"
                         ? settings.lr *
                               std::pow(settings.lr_scheduler_gamma, static_cast<double>(epoch))
                         : settings.lr * plateau.scale());
    while (state.step / steps_per_epoch == epoch && !stopped) {
      const auto start = Clock::now();
      const auto batch = nn::structures_of(sets.train, sampler.batch(state.step));
      const nn::Graph graph = nn::batch_graph(batch, mesh, cut);
      const nn::AtomLabels labels = nn::batch_labels(batch, graph);
      const bool stress = loss_options.stress != 0.0 || loss_options.virials != 0.0;
      const auto forward = [&] {
        return nn::atom_loss(model.compute(graph, {.stress = stress, .create_graph = true}), labels,
                             loss_options);
      };
      const Tensor loss = forward();
      backward(loss);
      const double value = reduced(loss).item();
      const bool good = guard.passes(state.step, value, forward);
      if (good) {
        if (settings.clip_grad > 0.0) optim::clip_grad_norm(model.parameters(), settings.clip_grad);
        optimizer.step();
        if (ema) ema->update();
      }
      ++state.step;
      std::vector<std::pair<std::string, io::JsonValue>> line = {
          {"step", state.step},
          {"loss", value},
          {"lr", optimizer.lr()},
          {"seconds", std::chrono::duration<double>(Clock::now() - start).count()}};
      if (!good) line.emplace_back("skipped", guard.skipped());
      metrics->write(line);
      stopped = ranks.total(StopSignals::requested() ? 1 : 0) > 0;
      checkpoints.poll();
      saved_every = options.checkpoint_every > 0 && state.step % options.checkpoint_every == 0;
      // The end of an epoch is saved once its validation is done.
      if (saved_every && !stopped && state.step / steps_per_epoch == epoch) save();
    }
    if (state.step % steps_per_epoch == 0) {
      done = state.step >= last_step;
      if (done || (epoch + 1) % settings.eval_interval == 0) {
        const double loss = validate(epoch, second_stage);
        if (!second_stage) plateau.update(loss);
        done = done || standing.since_best >= settings.patience;
      }
    }
    // Every minute: small models write more than they compute otherwise.
    const bool due =
        options.checkpoint_every > 0
            ? saved_every
            : ranks.broadcast(Clock::now() - last_save > std::chrono::minutes(1) ? 1 : 0) > 0;
    if (stopped || done || due) {
      save();
      last_save = Clock::now();
    }
  }
  checkpoints.finish();
  print_skipped(guard);
  if (!done) return kExitPreempted;

  const models::Mace best = models::load_mace(files.weights(), mesh, settings.dtype());
  std::vector<NamedScore> scores;
  for (const auto& [name, set] : {std::pair<const char*, const Structures*>{"train", &sets.train},
                                  {"valid", &sets.valid},
                                  {"test", &sets.test}}) {
    if (set->empty()) continue;
    scores.push_back(
        {name, score_atoms(best, *set, mesh, settings.valid_batch_size, nullptr, false).errors});
  }
  ranks.together([&] {
    if (!first) return;
    print_errors(scores);
    draw_curves(files);
  });
  return 0;
}

}  // namespace tessera::app
