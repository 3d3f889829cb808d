#pragma once

#include <vector>

#include "planner.hpp"

namespace tessera::app {

/// Everything that the planner found.
struct ProposalReport {
  const PlannedModel& model;
  const ProposalRequest& request;
  const StepCosts& costs;
  const MessageCost& network;
  std::int64_t memory = 0;          ///< of a rank, at most; 0: any
  std::size_t considered = 0;       ///< meshes that can be, fitting or not
  Proposal one;                     ///< on one rank
  std::vector<Proposal> proposals;  ///< that fit, fastest first
  std::vector<Proposal> strong;     ///< by ranks
  std::vector<Proposal> weak;
  StepCosts::Size weak_part;  ///< of each rank
};

/// Tables on standard output; pictures and JSON where they are asked for.
void print_proposals(const ProposalReport& report);

}  // namespace tessera::app
