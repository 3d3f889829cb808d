#pragma once

#include <tessera/core/denormals.hpp>

#include "launch.hpp"

namespace tessera::kernels::cpu {

/// Below this many multiply-adds a team of threads costs more than it saves.
inline constexpr double kSerialWork = 32768;

/// Threads for `count` independent tiles of `work` multiply-adds in all.
inline int tile_threads(std::int64_t count, double work) {
  if (work < kSerialWork) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(count, 1, thread_count()));
}

/// Calls f(tile) for every tile of [0, count), each once, in any order; denormals are zeros to it.
template <class F>
void for_each_tile(std::int64_t count, int threads, const F& f) {
  const auto tile = [&](std::int64_t i) {
    const Denormals flushed(true);
    f(i);
  };
  if (threads > 1) return parallel_for(count, tile);
  for (std::int64_t i = 0; i < count; ++i) {
    tile(i);
    if (i + 1 < count) poll_progress();
  }
}

/// The same where a thread takes `together` neighbouring tiles at a time, for what they share in
/// its cache; messages still move between tiles.
template <class F>
void for_each_tile(std::int64_t count, int threads, std::int64_t together, const F& f) {
  for_each_tile((count + together - 1) / together, threads, [&](std::int64_t group) {
    const std::int64_t end = std::min(count, (group + 1) * together);
    for (std::int64_t i = group * together; i < end; ++i) {
      f(i);
      if (i + 1 < end && omp_get_thread_num() == 0) poll_progress();
    }
  });
}

}  // namespace tessera::kernels::cpu
