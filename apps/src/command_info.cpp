#include <memory>

#include "commands.hpp"
#include "info.hpp"

namespace tessera::app {

void add_info(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "info",
      "Show this build, job and machine and what is wrong with them, or the model of a run.");
  const auto run = std::make_shared<std::string>();
  const auto mesh = std::make_shared<std::string>();
  command->add_option("run", *run, "Directory of a run, or a weights file.");
  command->add_option("--mesh", *mesh,
                      "Axes and sizes, e.g. h=2,w=2: shows which process on which node gets which "
                      "place. Nodes are filled one after the other, so the last axis lies "
                      "innermost.");
  command->callback([run, mesh, &chosen] { chosen = [run, mesh] { return info(*run, *mesh); }; });
}

}  // namespace tessera::app
