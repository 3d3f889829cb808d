#include <mutex>
#include <string>
#include <tessera/core/scope.hpp>
#include <unordered_set>

namespace tessera {

const char* name(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

const char* intern(std::string_view text) {
  static std::mutex mutex;
  static auto* const texts = new std::unordered_set<std::string>;  // nodes do not move
  const std::lock_guard lock(mutex);
  return texts->emplace(text).first->c_str();
}

}  // namespace tessera
