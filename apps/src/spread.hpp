#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace tessera::app {

/// Values of training.shard, by the stage of ZeRO.
inline const std::vector<std::string> kShards = {"none", "zero1", "zero2", "zero3"};

/// How parameters lie over the ranks: settings training.shard and training.tensor.
struct Spread {
  std::string shard = "none";  ///< one of kShards
  std::string tensor;          ///< mesh axis; empty: none
  /// Of ZeRO.
  int stage() const {
    return static_cast<int>(std::find(kShards.begin(), kShards.end(), shard) - kShards.begin());
  }
  friend bool operator==(const Spread&, const Spread&) = default;
};

}  // namespace tessera::app
