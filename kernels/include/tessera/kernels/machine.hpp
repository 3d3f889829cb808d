#pragma once

namespace tessera::kernels {

/// What this process's threads reach at most, as measured.
struct MachinePeak {
  double flops_f32 = 0.0;  ///< multiply-adds on registers, two operations each, per second
  double flops_f64 = 0.0;  ///< the same in double
  double bytes_per_second =
      0.0;  ///< a[i] = b[i] + s c[i] on 192 MiB (McCalpin's triad): read and written
};

/// Measures the peaks of the CPU with thread_count() threads in about a quarter of a second.
/// Processes that share a node measure their share when they call it at the same time.
MachinePeak measure_machine_peak();

}  // namespace tessera::kernels
