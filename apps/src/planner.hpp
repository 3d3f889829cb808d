#pragma once

#include <string>
#include <vector>

#include "spread.hpp"
#include "step_cost.hpp"

namespace tessera::app {

/// A model whose training is to be spread over ranks.
struct PlannedModel {
  std::string name;
  std::string command;  ///< words of `tessera` that train it, without a mesh
  StepCosts::Size size;
  std::function<nn::MakeWorkload(const StepCosts::Size&, const Spread&)> make;
  std::vector<std::string> axes;  ///< names for the dimensions of the domain
  std::int64_t batch = 1;
  /// Domains of more elements are not planned: one process holds what all ranks do.
  double most_elements = 1e18;
  Spread spread = {};         ///< of its settings
  bool other_shards = false;  ///< whether others may be proposed, too
  bool other_tensors = false;
};

struct ProposalRequest {
  int ranks = 0;          ///< 0: nothing is proposed
  std::string memory;     ///< of a rank, `80GiB`; empty: any
  std::string latency;    ///< of a message; empty: measured, or 2 us where there is one process
  std::string bandwidth;  ///< empty: measured, or 12.5 GB/s
  int scaling = 16384;    ///< most ranks of the scaling table; 0: no table
  int rows = 10;          ///< meshes in the table
  std::string pictures;   ///< directory for plan.png and plan.svg; empty: none
  std::string json;       ///< file for all numbers; empty: none
};

/// A mesh, and how parameters lie over it.
struct Choice {
  std::vector<MeshAxis> axes;
  Spread spread;
};

/// A choice, and what a step costs by the plan of the mesh's corners and its interior.
struct Proposal : Choice {
  int ranks = 1;
  std::int64_t memory = 0;                     ///< peak of the rank that needs most
  nn::Traffic sent;                            ///< by the rank that sends most
  std::map<std::string, nn::Traffic> by_axes;  ///< of that rank
  StepTime time;                               ///< of the slowest rank
  double efficiency = 1.0;                     ///< beside one rank alone
};

/// `data=2,h=4`, as --mesh takes it.
std::string mesh_text(const std::vector<MeshAxis>& axes);
/// `data=2,h=4 --shard zero3`, as --mesh and the options after it take it.
std::string choice_text(const Choice& choice);

/// The meshes of `ranks` ranks that can cut a domain of this size: an axis `data` that divides the
/// batch, the others along the dimensions. For each size of `data` the `most` with the least cut
/// surface.
std::vector<std::vector<MeshAxis>> candidate_meshes(const PlannedModel& model,
                                                    const StepCosts::Size& size,
                                                    int ranks,
                                                    int most);

/// Plans a few ranks of the mesh. Throws what the model throws on such a mesh.
Proposal propose_on(const PlannedModel& model,
                    const StepCosts::Size& size,
                    const Choice& choice,
                    const StepCosts& costs,
                    const MessageCost& network);

/// Prints meshes for the model, fastest first, with predicted memory, traffic, time and efficiency,
/// and how the best family scales. On the mesh with the least cut surface of each size of `data`
/// parameters are also shared, and split in use along each axis of the domain. Returns the best.
/// Throws UsageError when nothing fits into the memory, with the smallest number of ranks that
/// would. Every process must call; process 0 works.
Choice propose(const PlannedModel& model,
               const ProposalRequest& request,
               const StepCosts& costs,
               const MessageCost& network);

/// The network that a request describes. Every process must call.
MessageCost message_cost_of(const std::string& latency, const std::string& bandwidth);

}  // namespace tessera::app
