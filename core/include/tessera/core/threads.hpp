#pragma once

namespace tessera {

/// Threads that kernels may use: `TESSERA_THREADS`, else cores / ranks on this node, at least 1.
int thread_count();
void set_thread_count(int threads);

/// Called by kernels between tiles so that messages move while they compute. Installed by
/// `parallel`.
using ProgressFunction = void (*)();
void set_progress_function(ProgressFunction f);
void poll_progress();

}  // namespace tessera
