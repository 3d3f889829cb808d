#pragma once

#include <string>

#include "generate_settings.hpp"

namespace tessera::app {

/// How a file is made; nothing here changes its values.
struct GenerateOptions {
  std::string mesh;
  std::string out;
};

/// Runs a solver over the mesh and writes its fields as NetCDF, `variable(sample, time, z, y, x)`
/// (no sample dimension for a single one). Returns the exit code: 0, or 75 when a signal asked to
/// stop; then nothing was written.
int generate(const GenerateSettings& settings, const GenerateOptions& options);

}  // namespace tessera::app
