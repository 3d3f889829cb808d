#include <memory>

#include "commands.hpp"
#include "use.hpp"

namespace tessera::app {

void add_evaluate(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "evaluate",
      "Score a run's model and plain interpolation on the held-out part; writes "
      "RUN/evaluation.json and RUN/prediction.png.");
  const auto options = std::make_shared<EvaluateOptions>();
  command->add_option("run", options->run, "Directory of the run.")->required();
  command->add_option("--mesh", options->mesh, kMeshHelp);
  command->add_option("--tile", options->tile, kTileHelp)->check(CLI::NonNegativeNumber);
  command->add_flag("--mirrors", options->mirrors, kMirrorsHelp);
  command
      ->add_option("--last", options->last,
                   "Score the last so many held-out frames of a forecast; 0: all.")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--configs", options->configs,
                      "Structures to score (extended XYZ), of a potential; default: the run's test "
                      "or validation file.");
  command->add_option("--output", options->output,
                      "Extended XYZ with a potential's predictions; default: RUN/predictions.xyz.");
  command->callback([options, &chosen] { chosen = [options] { return evaluate(*options); }; });
}

}  // namespace tessera::app
