#include <memory>

#include "commands.hpp"
#include "info.hpp"

namespace tessera::app {

void add_info(CLI::App& program, Command& chosen) {
  CLI::App* const command =
      program.add_subcommand("info", "Show this build and job, or the model of a run.");
  const auto run = std::make_shared<std::string>();
  command->add_option("run", *run, "Directory of a run, or a weights file.");
  command->callback([run, &chosen] { chosen = [run] { return info(*run); }; });
}

}  // namespace tessera::app
