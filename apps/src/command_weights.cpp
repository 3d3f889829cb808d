#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <tessera/models/weight_names.hpp>

#include "commands.hpp"
#include "weights.hpp"

namespace tessera::app {

void add_weights(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "weights", "Weights from and to other programs, as safetensors files under their names.");
  command->require_subcommand(1);
  const auto options = std::make_shared<WeightsOptions>();
  const std::string help = fmt::format(
      "Names of the other program: {}, or a JSON file of rules. Default: the names here.",
      fmt::join(models::bundled_weight_names(), ", "));

  CLI::App* const list = command->add_subcommand("list", "Show what a file holds.");
  list->add_option("file", options->file, "Safetensors file.")->required();
  list->callback(
      [options, &chosen] { chosen = [options] { return list_weights(options->file); }; });

  CLI::App* const imported = command->add_subcommand(
      "import", "Make a run with the settings of another and the weights of a file.");
  imported->add_option("run", options->run, "Run whose network and normalisation it has.")
      ->required();
  imported
      ->add_option("file", options->file,
                   "Safetensors file (F16 and BF16, too). Every tensor needs a place.")
      ->required();
  imported->add_option("--names", options->names, help);
  imported->add_option("--out", options->out, "Directory of the new run.")->required();
  imported->callback(
      [options, &chosen] { chosen = [options] { return import_weights(*options); }; });

  CLI::App* const exported =
      command->add_subcommand("export", "Write the weights of a run for another program.");
  exported->add_option("run", options->run, "Directory of the run.")->required();
  exported->add_option("file", options->file, "Safetensors file to write.")->required();
  exported->add_option("--names", options->names, help);
  exported->callback(
      [options, &chosen] { chosen = [options] { return export_weights(*options); }; });
}

}  // namespace tessera::app
