#pragma once

#include <string>

namespace tessera::app {

/// Prints what this build and job are; with a run (directory or weights file), its model's table
/// and settings; with a mesh, which process on which node holds which place.
int info(const std::string& run, const std::string& mesh);

}  // namespace tessera::app
