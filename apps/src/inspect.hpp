#pragma once

#include <string>
#include <tessera/nn/inspect/workload.hpp>

namespace tessera::app {

struct PlanRequest {
  std::string mesh;
  std::string json;         ///< file to write; empty: none
  bool every_rank = false;  ///< instead of those that stand for all
  bool check = false;       ///< run real steps on the processes of this job, too
};

/// Prints what a training step costs on the mesh. Returns 0, or 1 when a check finds that it costs
/// something else.
int plan(const nn::MakeWorkload& workload, const PlanRequest& request);

struct CompareRequest {
  std::string mesh;
  std::int64_t steps = 3;
  double tolerance = 0.0;
};

/// Trains on the mesh and on one rank; says where the two part. Returns 0, or 1 when they do.
int compare(const nn::MakeWorkload& workload, const CompareRequest& request);

}  // namespace tessera::app
