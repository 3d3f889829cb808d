#include <tessera/parallel/plan_cache.hpp>

namespace tessera::parallel {

PlanCache<RedistributionPlan>& redistribution_plans() {
  static PlanCache<RedistributionPlan> cache(1024);
  return cache;
}

std::shared_ptr<const RedistributionPlan> cached_redistribution_plan(const Layout& from,
                                                                     const Layout& to) {
  const int rank = from.mesh().rank();
  if (rank < 0) {
    throw LayoutError(str("redistribute: process ", process().rank, " is not part of the mesh (",
                          from.mesh().str(), "). Call it on the members only."));
  }
  return redistribution_plans().get(from, to, 0,
                                    [&] { return plan_redistribution(from, to, rank); });
}

}  // namespace tessera::parallel
