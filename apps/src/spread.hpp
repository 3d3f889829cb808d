#pragma once

#include <string>

namespace tessera::app {

/// How parameters lie over the ranks: settings training.shard and training.tensor.
struct Spread {
  std::string shard = "none";  ///< none, zero1, zero2, zero3
  std::string tensor;          ///< mesh axis; empty: none
  friend bool operator==(const Spread&, const Spread&) = default;
};

}  // namespace tessera::app
