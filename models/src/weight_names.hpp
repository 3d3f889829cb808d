#pragma once

#include <span>

namespace tessera::models {

/// A file of models/names; the build makes the list.
struct BundledNames {
  const char* name;
  const char* text;
};
extern const std::span<const BundledNames> kBundledNames;

}  // namespace tessera::models
