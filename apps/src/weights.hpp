#pragma once

#include <string>

namespace tessera::app {

/// What `weights import` and `weights export` are given.
struct WeightsOptions {
  std::string run;
  std::string file;   ///< safetensors
  std::string names;  ///< of a bundled list, or a JSON file; empty: the names here
  std::string out;    ///< import: directory of the run that is made
};

/// Lists the tensors of a safetensors file, and the text it carries.
int list_weights(const std::string& file);
/// Makes a run with the settings and the normalisation of another and the weights of a file.
int import_weights(const WeightsOptions& options);
/// Writes the weights of a run under the names of another program.
int export_weights(const WeightsOptions& options);

}  // namespace tessera::app
