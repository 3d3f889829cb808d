#pragma once

#include <string>
#include <tessera/nn/inspect/workload.hpp>

#include "step_cost.hpp"

namespace tessera::app {

struct PlanRequest {
  std::string mesh;
  std::string json;         ///< file to write; empty: none
  bool every_rank = false;  ///< instead of those that stand for all
};

/// Prints what a training step costs on the mesh, and returns its axes.
std::vector<MeshAxis> plan(const nn::MakeWorkload& workload, const PlanRequest& request);

/// Real steps on this job's processes beside their plan: messages, bytes and memory of each rank,
/// and the time, the median of 15. Returns 0, or 1 when messages or bytes differ or memory by more
/// than 5 %. Every process must call.
int check_plan(const nn::MakeWorkload& workload,
               const std::vector<MeshAxis>& axes,
               const StepCosts& costs,
               const MessageCost& network);

struct CompareRequest {
  std::string mesh;
  std::int64_t steps = 3;
  double tolerance = 0.0;
  bool outputs = true;  ///< of layers, beside gradients and weights
};

/// Trains on the mesh and on one rank; says where the two part. Returns 0, or 1 when they do.
int compare(const nn::MakeWorkload& workload, const CompareRequest& request);

}  // namespace tessera::app
