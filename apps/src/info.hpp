#pragma once

#include <string>

namespace tessera::app {

/// Prints what this build and job are; with a run (directory or weights file), its model's table
/// and settings.
int info(const std::string& run);

}  // namespace tessera::app
