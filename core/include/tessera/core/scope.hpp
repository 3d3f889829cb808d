#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

/// Part of a training step.
enum class Phase : std::uint8_t { kForward, kBackward, kUpdate };
const char* name(Phase phase);

/// Where the program is at the moment: for plans, traces and messages.
struct Scope {
  /// Path of the module that runs, `encoder.0.conv`; in backward the one whose gradient is taken.
  /// Empty outside of modules. Lives as long as the process.
  const char* layer = "";
  Phase phase = Phase::kForward;
};

namespace detail {
inline constinit thread_local Scope scope_now;
}  // namespace detail

inline const Scope& current_scope() { return detail::scope_now; }

/// While alive, `layer` runs. Costs two stores.
class LayerScope {
 public:
  /// `layer` has to live as long as the process: a literal, or from intern().
  explicit LayerScope(const char* layer) : previous_(detail::scope_now.layer) {
    detail::scope_now.layer = layer;
  }
  ~LayerScope() { detail::scope_now.layer = previous_; }
  LayerScope(const LayerScope&) = delete;

 private:
  const char* previous_;
};

/// While alive, the program is in this phase.
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) : previous_(detail::scope_now.phase) {
    detail::scope_now.phase = phase;
  }
  ~PhaseScope() { detail::scope_now.phase = previous_; }
  PhaseScope(const PhaseScope&) = delete;

 private:
  Phase previous_;
};

/// A copy of `text` that is never freed; equal texts give equal pointers.
const char* intern(std::string_view text);

}  // namespace tessera
