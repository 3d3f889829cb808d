// What a step throws, in jobs of several processes.
#pragma once

#include <functional>
#include <string>
#include <tessera/core/error.hpp>

#include "support/dense.hpp"

namespace tessera::test {

/// The message of the Error that `f` throws, empty where it throws none; all processes must throw
/// the same. Every process must call.
inline std::string error_text(const std::function<void()>& f) {
  std::string text;
  try {
    f();
  } catch (const Error& error) {
    text = error.what();
  }
  const std::uint64_t hash = std::hash<std::string>{}(text);
  return any_process(from_process_0(hash) != hash) ? "processes differ: " + text : text;
}

}  // namespace tessera::test
