#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace tessera::bench {

/// 0 for no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/// What the peer's script has printed: a key and a value per line; nothing when it did not run.
inline std::map<std::string, std::string> peer_results() {
  std::map<std::string, std::string> results;
  const char* path = std::getenv("TESSERA_PEER_RESULTS");
  if (path == nullptr) return results;
  std::ifstream file(path);
  std::string key, value;
  while (file >> key >> value) results[key] = value;
  return results;
}

}  // namespace tessera::bench
