#include "inspect.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <tessera/nn/inspect/compare.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/parallel/communicator.hpp>

#include "mesh_option.hpp"

namespace tessera::app {
namespace {

constexpr int kTimedSteps = 15;

}  // namespace

int check_plan(const nn::MakeWorkload& workload,
               const std::vector<MeshAxis>& axes,
               const StepCosts& costs,
               const MessageCost& network) {
  const Mesh mesh = Mesh::world(axes);
  const std::int64_t before = MemoryPool::of({}).stats().live_bytes;
  const nn::RankPlan planned = nn::plan_rank(axes, mesh.rank(), workload, {.events = true});
  const std::unique_ptr<nn::Workload> real = workload(mesh);
  const nn::RankPlan measured = nn::measure_rank(mesh, *real);
  const MeasuredTime time = measure_steps(mesh, *real, kTimedSteps);
  const StepTime own = costs.time_of(planned, network);
  // Of the rank that takes longest.
  double predicted = own.seconds();
  double exposed = own.exposed;
  const parallel::Group all_ranks = parallel::Group::of(mesh, mesh.all_axes());
  for (double* const seconds : {&predicted, &exposed}) {
    parallel::all_reduce(all_ranks, seconds, 1, DType::kFloat64, ReduceOp::kMax,
                         {"plan check", {}, {}})
        .wait();
  }
  const parallel::CommCounters plan = planned.sent.total();
  const parallel::CommCounters step = measured.sent.total();
  const double peak = static_cast<double>(measured.peak_bytes - before);
  // messages, bytes, memory in 1/1000: planned and measured
  const auto size = static_cast<std::size_t>(mesh.size());
  std::vector<std::int64_t> all(size * 6, 0);
  const std::int64_t mine[] = {plan.messages, step.messages,      plan.bytes,
                               step.bytes,    planned.peak_bytes, static_cast<std::int64_t>(peak)};
  std::copy(std::begin(mine), std::end(mine), all.begin() + 6 * mesh.rank());
  parallel::all_reduce(all_ranks, all.data(), std::ssize(all), DType::kInt64, ReduceOp::kSum,
                       {"plan check", {}, {}})
      .wait();
  bool equal = true;
  double furthest = 0.0;
  for (std::size_t r = 0; r < size; ++r) {
    const std::int64_t* const v = &all[6 * r];
    equal = equal && v[0] == v[1] && v[2] == v[3];
    furthest =
        std::max(furthest, std::abs(static_cast<double>(v[4]) / static_cast<double>(v[5]) - 1.0));
    if (mesh.rank() == 0) {
      std::cout << fmt::format(
          "rank {}: messages planned {} measured {}, bytes {} {}, peak memory {} {}\n", r, v[0],
          v[1], v[2], v[3], v[4], v[5]);
    }
  }
  const bool good = equal && furthest <= 0.05;
  if (mesh.rank() == 0) {
    std::cout << fmt::format(
        "ms per step: predicted {:.2f} ({:.2f} exposed), measured {:.2f} (median of {}, quartiles "
        "{:.2f} and {:.2f}): {:+.1f} %\n",
        1e3 * predicted, 1e3 * exposed, 1e3 * time.median, kTimedSteps, 1e3 * time.low,
        1e3 * time.high, 100.0 * (predicted / time.median - 1.0));
    std::cout << fmt::format("check: messages and bytes {}, memory within {:.2f} %: {}\n",
                             equal ? "equal" : "DIFFER", 100.0 * furthest,
                             good ? "good" : "NOT what was planned")
              << std::flush;
  }
  return good ? 0 : 1;
}

std::vector<MeshAxis> plan(const nn::MakeWorkload& workload, const PlanRequest& request) {
  const std::vector<MeshAxis> axes = request.mesh.empty()
                                         ? std::vector<MeshAxis>{{"h", process().count}}
                                         : parse_axes(request.mesh);
  if (process().rank == 0) {
    nn::PlanOptions options;
    if (request.every_rank) options.all_ranks = std::numeric_limits<int>::max();
    const nn::Plan plan = nn::plan_step(axes, workload, options);
    std::cout << plan.table() << std::flush;
    if (!request.json.empty()) io::write_text(request.json, plan.json() + '\n');
  }
  return axes;
}

int compare(const nn::MakeWorkload& workload, const CompareRequest& request) {
  const Mesh mesh = parse_mesh(request.mesh);
  const nn::Comparison result = nn::compare_steps(
      mesh, workload,
      {.steps = request.steps, .tolerance = request.tolerance, .outputs = request.outputs});
  if (mesh.rank() == 0) {
    if (result.first) {
      std::cout << "first difference: " << result.first->str() << "\n";
    } else {
      std::cout << fmt::format("{} and one rank agree: {} values of {} steps\n", mesh.str(),
                               result.tensors, request.steps);
    }
    if (!result.closest.empty()) {
      std::cout << (result.first ? "largest before: " : "largest difference: ") << result.closest
                << "\n";
    }
    if (!request.outputs)
      std::cout << "compared: gradients and weights (with --tensor, ops are others than those of "
                   "one rank)\n";
    std::cout << std::flush;
  }
  return result.first ? 1 : 0;
}

}  // namespace tessera::app
