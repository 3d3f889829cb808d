#pragma once

#include <cstdint>
#include <string>

#include "step_profiler.hpp"

namespace tessera::app {

/// A measurement of training steps.
struct ScalingOptions {
  std::string model;
  bool weak = false;  ///< `size` and `batch` are those of one rank, else those of all together
  std::string size;   ///< 64x64x64
  std::string mesh;   ///< empty: chosen so that the cut surface is smallest
  std::int64_t batch = 1;
  std::int64_t width = 0;  ///< 0: the model's own
  std::int64_t steps = 20;
  std::int64_t warmup = 3;
  std::string precision = "f32";
  std::string out;  ///< file to append the line to; empty: none
  std::string profile;
  std::int64_t profile_steps = 5;
};

/// Trains some steps and prints what they took as one JSON line. Returns the exit code.
int bench_scaling(const ScalingOptions& options);

}  // namespace tessera::app
