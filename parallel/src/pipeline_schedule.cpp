#include <algorithm>
#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/parallel/pipeline_schedule.hpp>

namespace tessera::parallel {
namespace {

using Kind = PipelineAction::Kind;

void check(PipelineSchedule schedule, const PipelineShape& p, int stage) {
  if (p.stages < 1 || p.chunks < 1 || p.micro_batches < 1 || stage < 0 || stage >= p.stages) {
    throw UsageError(str("pipeline: stage ", stage, " of ", p.stages, " with ", p.chunks,
                         " chunks and ", p.micro_batches,
                         " micro-batches (all must be at least 1). Choose other sizes."));
  }
  if (schedule == PipelineSchedule::kOneForwardOneBackward && p.chunks != 1) {
    throw UsageError(str("pipeline: ", p.chunks,
                         " chunks per stage in schedule 1f1b (it has one). Choose "
                         "PipelineSchedule::kInterleaved, or chunks = 1."));
  }
  if (schedule == PipelineSchedule::kInterleaved && p.micro_batches % p.stages != 0) {
    throw UsageError(str("pipeline: ", p.micro_batches, " micro-batches on ", p.stages,
                         " stages (the interleaved schedule works in rounds of as many "
                         "micro-batches as stages). Choose a multiple of ",
                         p.stages, ", or PipelineSchedule::kOneForwardOneBackward."));
  }
}

/// The k-th pass of a stage: rounds of `stages` micro-batches go through chunk after chunk, last
/// chunk first in backward.
PipelineAction pass(const PipelineShape& p, Kind kind, int k) {
  const int round = p.stages * p.chunks;
  const int first = k / round * p.stages;
  // The last round may be short where there is one chunk only, or no backward.
  const int width = std::min(p.stages, p.micro_batches - first);
  const int chunk = k % round / width;
  return {.kind = kind,
          .micro_batch = first + k % round % width,
          .chunk = kind == Kind::kForward ? chunk : p.chunks - 1 - chunk};
}

}  // namespace

const char* name(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kOneForwardOneBackward:
      return "1f1b";
    case PipelineSchedule::kInterleaved:
      return "interleaved";
    case PipelineSchedule::kForward:
      break;
  }
  return "forward";
}

std::vector<PipelineAction> pipeline_schedule(PipelineSchedule schedule,
                                              const PipelineShape& shape,
                                              int stage) {
  check(schedule, shape, stage);
  const int passes = shape.micro_batches * shape.chunks;
  int ahead = passes;
  if (schedule == PipelineSchedule::kOneForwardOneBackward) ahead = shape.stages - stage - 1;
  if (schedule == PipelineSchedule::kInterleaved)
    ahead =
        (shape.stages - stage - 1) * (shape.chunks > 1 ? 2 : 1) + (shape.chunks - 1) * shape.stages;
  ahead = std::min(ahead, passes);
  std::vector<PipelineAction> actions;
  actions.reserve(2 * static_cast<std::size_t>(passes));
  for (int k = 0; k < ahead; ++k) actions.push_back(pass(shape, Kind::kForward, k));
  if (schedule == PipelineSchedule::kForward) return actions;
  for (int k = 0; k < passes; ++k) {
    if (ahead + k < passes) actions.push_back(pass(shape, Kind::kForward, ahead + k));
    actions.push_back(pass(shape, Kind::kBackward, k));
  }
  return actions;
}

std::vector<int> balanced_runs(std::span<const double> costs, int parts) {
  const auto n = static_cast<int>(costs.size());
  if (parts < 1 || n < parts) {
    throw UsageError(str("pipeline: ", n, " blocks for ", parts,
                         " parts (stages times chunks; each needs a block). Use fewer stages or "
                         "chunks, or cut the model into more blocks."));
  }
  std::vector<double> sum{0.0};  // of the first i costs
  for (const double cost : costs) {
    if (!std::isfinite(cost) || cost < 0.0)
      throw UsageError(str("pipeline: a block of cost ", cost,
                           " (costs are finite and not negative). Give other costs."));
    sum.push_back(sum.back() + cost);
  }
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  // largest[p][i]: the best for the last n - i costs in p + 1 runs. It falls with i while the cost
  // of the first run rises with its end j, so the best j is where they cross.
  std::vector<std::vector<double>> largest(at(parts), std::vector<double>(at(n + 1)));
  const auto with_end = [&](int p, int i, int j) {
    return std::max(sum[at(j)] - sum[at(i)], largest[at(p - 1)][at(j)]);
  };
  for (int p = 0; p < parts; ++p) {
    for (int i = n - p - 1; i >= 0; --i) {
      if (p == 0) {
        largest[0][at(i)] = sum[at(n)] - sum[at(i)];
        continue;
      }
      int low = i + 1;
      int high = n - p;  // the rest needs a cost per run
      while (low < high) {
        const int j = (low + high) / 2;
        if (sum[at(j)] - sum[at(i)] >= largest[at(p - 1)][at(j)]) {
          high = j;
        } else {
          low = j + 1;
        }
      }
      largest[at(p)][at(i)] = low > i + 1 ? std::min(with_end(p, i, low - 1), with_end(p, i, low))
                                          : with_end(p, i, low);
    }
  }
  std::vector<int> bounds{0};
  for (int p = parts - 1; p > 0; --p) {
    int j = bounds.back() + 1;
    while (with_end(p, bounds.back(), j) > largest[at(parts - 1)][0]) ++j;
    bounds.push_back(j);
  }
  bounds.push_back(n);
  return bounds;
}

}  // namespace tessera::parallel
