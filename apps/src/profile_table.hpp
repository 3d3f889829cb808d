#pragma once

#include <string>
#include <tessera/core/profile.hpp>
#include <tessera/kernels/machine.hpp>
#include <vector>

namespace tessera::app {

/// All calls of one op by one layer.
struct OpCost {
  std::string op;
  std::string where;  ///< the layer, else the layouts
  bool in_layer = false;
  std::int64_t calls = 0;
  double seconds = 0.0;  ///< without the waits and the ops inside
  double waited = 0.0;
  double flops = 0.0;
  double bytes = 0.0;
  bool wide = false;  ///< f64
};

/// Where the time of a profile went.
struct ProfileSummary {
  std::vector<OpCost> ops;  ///< costliest first
  double op_seconds = 0.0;
  double wait_seconds = 0.0;
};

ProfileSummary summarize(const Profile& profile);

/// The `most` costliest ops, waits included, with their rates outside of waits: floating-point
/// operations where the op counts them, else bytes read and written, each beside the peak.
/// `seconds` passed in `steps` steps.
std::string profile_table(const ProfileSummary& summary,
                          const kernels::MachinePeak& peak,
                          double seconds,
                          std::int64_t steps,
                          std::size_t most = 10);

}  // namespace tessera::app
