#include <tessera/parallel/plan_cache.hpp>

namespace tessera::parallel {

namespace {

constexpr std::size_t kCapacity = 1024;

int member_rank(const char* op, const Layout& layout) {
  const int rank = layout.mesh().rank();
  if (rank < 0) {
    throw LayoutError(str(op, ": process ", process().rank, " is not part of the mesh (",
                          layout.mesh().str(), "). Call it on the members only."));
  }
  return rank;
}

}  // namespace

PlanCache<ExchangePlan>& window_plans() {
  static PlanCache<ExchangePlan> cache(kCapacity);
  return cache;
}

PlanCache<RedistributionPlan>& redistribution_plans() {
  static PlanCache<RedistributionPlan> cache(kCapacity);
  return cache;
}

std::shared_ptr<const ExchangePlan> cached_window_plan(const Layout& input,
                                                       std::span<const EdgeRule> edges,
                                                       const NeededFunction& needed,
                                                       std::uint64_t key) {
  const int rank = member_rank("plan_window", input);
  return window_plans().get(input, input, key,
                            [&] { return plan_window(input, edges, rank, needed); });
}

std::shared_ptr<const RedistributionPlan> cached_redistribution_plan(const Layout& from,
                                                                     const Layout& to) {
  const int rank = member_rank("redistribute", from);
  return redistribution_plans().get(from, to, 0,
                                    [&] { return plan_redistribution(from, to, rank); });
}

}  // namespace tessera::parallel
