#include <memory>

#include "commands.hpp"
#include "use.hpp"

namespace tessera::app {

void add_predict(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "predict",
      "Refine a whole field with a run's model, in one piece, split over the mesh; or foretell the "
      "frame after the last one of its file.");
  const auto options = std::make_shared<PredictOptions>();
  command->add_option("run", options->run, "Directory of the run.")->required();
  command->add_option("--input", options->input,
                      "File with the field. Default: that of the training.");
  command->add_option("--variable", options->variable, "Variable in it.");
  command
      ->add_option(
          "--output", options->output,
          "NetCDF file to write, or a Zarr store (.zarr); a picture goes beside it, with the "
          "ending .png.")
      ->required();
  command->add_flag("--coarsen", options->coarsen,
                    "Refine the block means of the input: the result has the input's grid and can "
                    "be compared with it.");
  command->add_option("--mesh", options->mesh, kMeshHelp);
  command->add_option("--tile", options->tile, kTileHelp)->check(CLI::NonNegativeNumber);
  command->add_flag("--mirrors", options->mirrors, kMirrorsHelp);
  command->callback([options, &chosen] { chosen = [options] { return predict(*options); }; });
}

}  // namespace tessera::app
