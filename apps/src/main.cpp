#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <tessera/parallel/runtime.hpp>

#include "evaluate_unet.hpp"
#include "info.hpp"
#include "train_unet.hpp"
#include "unet_run.hpp"

namespace tessera::app {
namespace {

enum ExitCode { kOk = 0, kUsage = 2, kData = 65, kIo = 74 };

constexpr const char* kFooter =
    "Run it under mpiexec to use several processes; the mesh says how they share the work:\n"
    "  mpiexec.mpich -n 4 tessera train unet --data etopo5.cdf --mesh h=2,w=2 --out run\n"
    "Exit codes: 0 done, 2 wrong usage, 65 unusable data, 70 internal error, 74 input or output\n"
    "failed, 75 stopped by a signal (continue with --resume).";

constexpr const char* kMesh =
    "Axes and sizes, e.g. h=2,w=2: 'data' shares out samples, the other axes cut the field along "
    "its dimensions in turn. Default: all processes cut the first dimension.";

/// What was chosen on the command line.
using Command = std::function<int()>;

/// An option for each setting: `training.weight_decay` is --weight-decay.
void add_settings(CLI::App& command,
                  const io::Settings& settings,
                  std::map<std::string, std::string>& given) {
  for (const io::Settings::Entry& e : settings.entries()) {
    const std::size_t dot = e.key.find('.');
    std::string name = e.key == "data.file" ? "data" : e.key.substr(dot + 1);
    std::replace(name.begin(), name.end(), '_', '-');
    const std::string section = e.key.substr(0, dot);
    std::string help = e.help;
    if (!e.standard.empty()) help += " [" + e.standard + "]";
    command
        .add_option_function<std::string>(
            "--" + name, [&given, key = e.key](const std::string& text) { given[key] = text; },
            help)
        ->take_last()
        ->type_name(e.choices.empty() ? e.type : CLI::detail::join(e.choices, "|"))
        ->group(section == "data"    ? "Data"
                : section == "model" ? "Model"
                                     : "Training");
  }
}

void add_train(CLI::App& program, Command& chosen) {
  CLI::App* const train = program.add_subcommand("train", "Train a model.");
  train->require_subcommand(1);
  CLI::App* const unet = train->add_subcommand("unet",
                                               "Train a U-Net to refine a field: its input is the "
                                               "field coarsened by block means, its output "
                                               "the field itself.");
  struct State {
    UNetSettings settings;
    io::Settings all;
    TrainOptions options;
    std::string config;
    std::map<std::string, std::string> given;
  };
  const auto state = std::make_shared<State>();
  state->settings.declare(state->all);
  unet->add_option("--out", state->options.out, "Directory of the run.")->required();
  unet->add_option("--mesh", state->options.mesh, kMesh);
  unet->add_option(
      "--config", state->config,
      "TOML file with settings (the run writes one); options given here go before it.");
  unet->add_flag("--resume", state->options.resume,
                 "Continue the run in --out with the settings it was started with.");
  unet->add_option("--checkpoint-every", state->options.checkpoint_every,
                   "Steps between two checkpoints.")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_settings(*unet, state->all, state->given);
  unet->callback([state, &chosen] {
    chosen = [state] {
      if (state->options.resume) state->all.load(RunFiles{state->options.out}.config());
      if (!state->config.empty()) state->all.load(state->config);
      for (const auto& [key, text] : state->given) state->all.set(key, text);
      if (state->settings.file.empty()) {
        throw UsageError("train: no data. Give the NetCDF file with --data.");
      }
      return train_unet(state->settings, state->options);
    };
  });
}

void add_evaluate(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "evaluate",
      "Score a run's model and plain interpolation on the held-out part; writes "
      "RUN/evaluation.json and RUN/prediction.png.");
  const auto options = std::make_shared<EvaluateOptions>();
  command->add_option("run", options->run, "Directory of the run.")->required();
  command->add_option("--mesh", options->mesh, kMesh);
  command->callback([options, &chosen] { chosen = [options] { return evaluate_unet(*options); }; });
}

void add_predict(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "predict", "Refine a whole field with a run's model, in one piece, split over the mesh.");
  const auto options = std::make_shared<PredictOptions>();
  command->add_option("run", options->run, "Directory of the run.")->required();
  command->add_option("--input", options->input,
                      "NetCDF file with the field. Default: that of the training.");
  command->add_option("--variable", options->variable, "Variable in it.");
  command
      ->add_option("--output", options->output,
                   "NetCDF file to write; a picture goes beside it, with the ending .png.")
      ->required();
  command->add_flag("--coarsen", options->coarsen,
                    "Refine the block means of the input: the result has the input's grid and can "
                    "be compared with it.");
  command->add_option("--mesh", options->mesh, kMesh);
  command->callback([options, &chosen] { chosen = [options] { return predict_unet(*options); }; });
}

void add_info(CLI::App& program, Command& chosen) {
  CLI::App* const command =
      program.add_subcommand("info", "Show this build and job, or the model of a run.");
  const auto run = std::make_shared<std::string>();
  command->add_option("run", *run, "Directory of a run, or a weights file.");
  command->callback([run, &chosen] { chosen = [run] { return info(*run); }; });
}

/// The option or command that resembles the first word that nothing took, as a line; or nothing.
std::string suggestion(const CLI::App& program) {
  const std::vector<std::string> words = program.remaining(true);
  if (words.empty()) return "";
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const CLI::App* sub : command->get_subcommands(nullptr)) known.push_back(sub->get_name());
  const std::string word = words.front().substr(0, words.front().find('='));
  const std::string text = io::did_you_mean(word, known);
  return text.empty() ? "" : word + ":" + text + "\n";
}

/// Says what is wrong, once for the job.
int complain(int code, const std::string& text) {
  if (process().rank == 0) std::cerr << "tessera: " << text << std::endl;
  return code;
}

int run(int argc, char** argv) {
  CLI::App program("Deep learning on decomposed fields.", "tessera");
  program.require_subcommand(1);
  program.footer(kFooter);
  Command chosen;
  add_train(program, chosen);
  add_evaluate(program, chosen);
  add_predict(program, chosen);
  add_info(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out;
    std::ostringstream errors;
    const int code = program.exit(e, out, errors);
    if (code != 0) errors << suggestion(program);
    if (process().rank == 0) {
      std::cout << out.str() << std::flush;
      std::cerr << errors.str() << std::flush;
    }
    return code == 0 ? kOk : kUsage;
  }
  // Options are wrong on every rank alike. Files may fail on one only: then the job has failed, and
  // ends from where the error is thrown.
  try {
    return chosen();
  } catch (const UsageError& e) {
    return complain(kUsage, e.what());
  } catch (const IoError& e) {
    if (process().count > 1 && !io::is_agreed(e)) throw;
    return complain(dynamic_cast<const DataError*>(&e) != nullptr ? kData : kIo, e.what());
  }
}

}  // namespace
}  // namespace tessera::app

int main(int argc, char** argv) {
  tessera::Runtime runtime(argc, argv);
  return runtime.guard([&] { return tessera::app::run(argc, argv); });
}
