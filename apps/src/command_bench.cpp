#include <memory>

#include "bench_models.hpp"
#include "bench_report.hpp"
#include "bench_scaling.hpp"
#include "commands.hpp"

namespace tessera::app {
namespace {

void add_scaling(CLI::App& bench, Command& chosen) {
  CLI::App* const command = bench.add_subcommand(
      "scaling",
      "Time training steps of a model on made-up data and print one JSON line. Run it under "
      "mpiexec or srun, once per number of ranks, with the same --out; then bench report.");
  const auto o = std::make_shared<ScalingOptions>();
  std::string models;
  for (const BenchEntry& entry : bench_entries())
    models += (models.empty() ? "" : ", ") + entry.name;
  command->add_option("model", o->model, "What to train: " + models + ".")->required();
  CLI::Option* const strong =
      command->add_flag("--strong")
          ->description(
              "The domain is the same on any number of ranks: --size is the whole [default].");
  command->add_flag("--weak", o->weak, "The domain grows with the ranks: --size is each one's.")
      ->excludes(strong);
  command
      ->add_option("--size", o->size,
                   "Domain, e.g. 256x256 or 64x64x64; of mace in cells of quartz.")
      ->required();
  command->add_option("--mesh", o->mesh,
                      "Axes and sizes, e.g. h=2,w=2: 'data' shares out samples, the other axes cut "
                      "the domain along its dimensions in turn. Default: the smallest surface.");
  command->add_option("--batch", o->batch, "Samples, like --size of all or of each.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--width", o->width, "Channels of the first level; 0: as the model likes.")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--steps", o->steps, "Steps that are timed.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--warmup", o->warmup, "Steps before them.")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--precision", o->precision, "Element type.")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "f64"}));
  command->add_option("--out", o->out, "File to append the line to.");
  command->add_option("--profile", o->profile,
                      "Directory: some further steps are recorded there, rank*.json (a trace for "
                      "ui.perfetto.dev or chrome://tracing) and ops.txt (the ten costliest ops).");
  command->add_option("--profile-steps", o->profile_steps, "Steps to record.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->callback([o, &chosen] { chosen = [o] { return bench_scaling(*o); }; });
}

void add_report(CLI::App& bench, Command& chosen) {
  CLI::App* const command =
      bench.add_subcommand("report",
                           "Speed-up and efficiency from the lines of bench scaling: a table, and "
                           "scaling.png, scaling.svg and scaling.html in --out.");
  const auto o = std::make_shared<ReportOptions>();
  command->add_option("files", o->files, "Files of JSON lines.")->required();
  command->add_option("--out", o->out, "Directory for the pictures.")->capture_default_str();
  command->callback([o, &chosen] { chosen = [o] { return bench_report(*o); }; });
}

}  // namespace

void add_bench(CLI::App& program, Command& chosen) {
  CLI::App* const bench = program.add_subcommand("bench", "Measure scaling over ranks.");
  bench->require_subcommand(1);
  add_scaling(*bench, chosen);
  add_report(*bench, chosen);
}

}  // namespace tessera::app
