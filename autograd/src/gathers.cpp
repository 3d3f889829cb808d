// Values that backward moves again instead of keeping them: nodes of redistribute_again() by
// number, which is the order in which backward meets them, from the newest to the oldest.

#include "gathers.hpp"

#include <map>
#include <optional>
#include <tessera/parallel/redistribute.hpp>
#include <utility>

namespace tessera {

namespace {

struct Gather {
  Node* node = nullptr;
  int readers = 0;
  std::optional<parallel::Redistribution> flight;
};

std::map<std::uint64_t, Gather>& gathers() {
  static auto* instance = new std::map<std::uint64_t, Gather>;  // outlives static tensors
  return *instance;
}

const Layout& target_of(const Node& node) { return node.outputs[0].layout; }

}  // namespace

void add_gather(Node& node) { gathers()[node.number].node = &node; }
void forget_gather(const Node& node) { gathers().erase(node.number); }
void count_gather_reader(const Node& node) {
  if (const auto it = gathers().find(node.number); it != gathers().end()) ++it->second.readers;
}

Tensor gather_again(Node& node, Tensor (*input)(const Ref<Node>&)) {
  const auto at = gathers().find(node.number);
  std::optional<parallel::Redistribution> flight = std::exchange(at->second.flight, std::nullopt);
  // What is on its way is what would be moved now: nothing has changed since it was recorded.
  const Tensor y =
      flight ? flight->wait()
             : parallel::redistribute(input(Ref<Node>(&node)), target_of(node), "parameter");

  auto older = at;
  while (older != gathers().begin()) {
    Gather& next = (--older)->second;
    if (next.readers == 0) continue;
    if (next.flight) break;
    const Tensor from = input(Ref<Node>(next.node));
    if (from.defined())
      next.flight.emplace(parallel::start_redistribute(from, target_of(*next.node), "parameter"));
    break;
  }
  return y;
}

}  // namespace tessera
