#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <tessera/nn/io/settings.hpp>

// Each command declares its options in a file of its own, command_<name>.cpp, and is added to the
// program in main.cpp.
namespace tessera::app {

struct TrainOptions;

/// What was chosen on the command line; returns the exit code.
using Command = std::function<int()>;

void add_train(CLI::App& program, Command& chosen);
void add_evaluate(CLI::App& program, Command& chosen);
void add_predict(CLI::App& program, Command& chosen);
void add_bench(CLI::App& program, Command& chosen);
void add_info(CLI::App& program, Command& chosen);
void add_generate(CLI::App& program, Command& chosen);
void add_plan(CLI::App& program, Command& chosen);
void add_compare(CLI::App& program, Command& chosen);
void add_md(CLI::App& program, Command& chosen);
void add_relax(CLI::App& program, Command& chosen);
void add_weights(CLI::App& program, Command& chosen);
/// To the command `generate`.
void add_generate_sio2(CLI::App& generate, Command& chosen);

/// Help of --mesh.
inline constexpr const char* kMeshHelp =
    "Axes and sizes, e.g. h=2,w=2: 'data' shares out samples, the other axes cut the field along "
    "its dimensions in turn. Default: all processes cut the first dimension.";

/// Help of --tile.
inline constexpr const char* kTileHelp =
    "Refine in overlapping tiles of so many fine points in each dimension; 0: in one piece, or, "
    "with a model that only knows the size of its crops, in tiles of that size.";

/// Help of --mirrors.
inline constexpr const char* kMirrorsHelp =
    "Refine: the mean of the answers to the field and its mirror images, 4 of them in 2-D; takes "
    "as "
    "many times as long.";

/// Settings of a command: those of a file, then those of options.
struct CommandSettings {
  io::Settings all;
  std::string config;                        ///< file; empty: none
  std::map<std::string, std::string> given;  ///< by options; texts by key

  /// An option for each setting: `training.weight_decay` is --weight-decay. With `underscores`,
  /// --weight_decay and --flag without a value are understood, too.
  void add_to(CLI::App& command, bool underscores = false);
  void load();
  /// The same for a run, whose own settings come first where it is resumed. Throws UsageError when
  /// it would then be about something else: where `fixed(key)`.
  void load(const TrainOptions& run, bool (*fixed)(const std::string& key));
};

/// `train mace`.
void add_train_mace(CLI::App& train_command, Command& chosen);

}  // namespace tessera::app
