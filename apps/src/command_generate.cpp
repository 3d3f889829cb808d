#include <memory>

#include "commands.hpp"
#include "generate.hpp"

namespace tessera::app {

void add_generate(CLI::App& program, Command& chosen) {
  CLI::App* const command = program.add_subcommand(
      "generate", "Make fields of any size with a solver, decomposed over the mesh, as NetCDF.");
  command->require_subcommand(1);
  struct State {
    explicit State(const char* name) : settings(name) { settings.declare(from.all); }
    GenerateSettings settings;
    CommandSettings from;
    GenerateOptions options;
  };
  for (const GenerateCase& c : generate_cases()) {
    CLI::App* const sub = command->add_subcommand(c.name, c.help);
    const auto state = std::make_shared<State>(c.name);
    sub->add_option("--out", state->options.out, "NetCDF file to write, or a Zarr store (.zarr).")
        ->required();
    sub->add_option("--mesh", state->options.mesh, kMeshHelp);
    sub->add_option("--config", state->from.config,
                    "TOML file with settings; options given here go before it.");
    state->from.add_to(*sub);
    sub->callback([state, &chosen] {
      chosen = [state] {
        state->from.load();
        return generate(state->settings, state->options);
      };
    });
  }
  add_generate_sio2(*command, chosen);
}

}  // namespace tessera::app
