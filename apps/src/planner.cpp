#include "planner.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tessera/core/memory.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/parallel/communicator.hpp>

#include "bench_mesh.hpp"
#include "planner_report.hpp"

namespace tessera::app {
namespace {

constexpr int kPerData = 6;          // meshes considered for each number of parts of the batch
constexpr int kMostRanks = 1 << 16;  // looked at when nothing fits

double product(const StepCosts::Size& size) {
  return std::accumulate(size.begin(), size.end(), 1.0,
                         [](double a, std::int64_t n) { return a * static_cast<double>(n); });
}

int rank_at(const std::vector<MeshAxis>& axes, auto&& coordinate) {
  int rank = 0;
  for (const MeshAxis& axis : axes) rank = rank * axis.size + coordinate(axis.size);
  return rank;
}

/// A corner, the other corner, next to a corner, the middle: the largest part that even boundaries
/// give is among them, and a rank with neighbours on all sides.
std::vector<int> few_ranks(const std::vector<MeshAxis>& axes) {
  const std::set<int> ranks = {
      rank_at(axes, [](int) { return 0; }), rank_at(axes, [](int n) { return std::min(1, n - 1); }),
      rank_at(axes, [](int n) { return n / 2; }), rank_at(axes, [](int n) { return n - 1; })};
  return {ranks.begin(), ranks.end()};
}

int data_of(const std::vector<MeshAxis>& axes) {
  return !axes.empty() && axes[0].name == "data" ? axes[0].size : 1;
}

/// The other ways to spread parameters over a mesh.
std::vector<Spread> other_spreads(const PlannedModel& model, const std::vector<MeshAxis>& axes) {
  std::vector<std::string> tensors = {model.spread.tensor};
  for (const MeshAxis& axis : axes)
    if (model.other_tensors && axis.size > 1 && axis.name != "data") tensors.push_back(axis.name);
  std::vector<Spread> all;
  for (const std::string& tensor : tensors) {
    for (const std::string& shard : kShards) {
      const Spread spread = {shard, tensor};
      if ((model.other_shards || shard == model.spread.shard) && !(spread == model.spread))
        all.push_back(spread);
    }
  }
  return all;
}

enum class Spreads {
  kGiven,
  kAll,
  kLeast  ///< the given one, and that of least memory
};

/// Proposals for a number of ranks, fastest first; `why` keeps the first reason that a mesh cannot
/// be.
std::vector<Proposal> proposals(const PlannedModel& model,
                                const StepCosts::Size& size,
                                int ranks,
                                Spreads spreads,
                                const StepCosts& costs,
                                const MessageCost& network,
                                std::string& why) {
  std::vector<Choice> choices;
  for (auto& axes : candidate_meshes(model, size, ranks, kPerData)) {
    // The first of its size of `data` has the least cut surface.
    const bool first = choices.empty() || data_of(choices.back().axes) != data_of(axes);
    choices.push_back({axes, model.spread});
    if (spreads == Spreads::kGiven || ranks == 1 || !first) continue;
    for (const Spread& spread : other_spreads(model, axes)) {
      const bool least = spread.shard == "zero3" && spread.tensor == model.spread.tensor;
      if (spreads == Spreads::kAll || least) choices.push_back({axes, spread});
    }
  }
  std::vector<Proposal> all;
  for (const Choice& choice : choices) {
    try {
      all.push_back(propose_on(model, size, choice, costs, network));
    } catch (const Error& error) {
      if (why.empty()) why = str(mesh_text(choice.axes), ": ", error.what());
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Proposal& a, const Proposal& b) {
    return a.time.seconds() < b.time.seconds();
  });
  return all;
}

const Proposal& least_memory(const std::vector<Proposal>& all) {
  return *std::min_element(all.begin(), all.end(), [](const Proposal& a, const Proposal& b) {
    return a.memory < b.memory;
  });
}

[[noreturn]] void nothing_fits(const PlannedModel& model,
                               const ProposalRequest& request,
                               std::int64_t memory,
                               const Proposal& least,
                               const StepCosts& costs,
                               const MessageCost& network) {
  const std::string problem =
      str("plan: no mesh of ", request.ranks, " ranks fits ", model.name, " of ",
          size_text(model.size), " into ", format_bytes(memory), " per rank (the least needs ",
          format_bytes(least.memory), ", on ", choice_text(least), "). ");
  const std::string advice = "or make a step smaller: batch, recompute, bf16.";
  std::string why;
  for (int ranks = 2 * request.ranks; ranks <= kMostRanks; ranks *= 2) {
    const std::vector<Proposal> all =
        proposals(model, model.size, ranks, Spreads::kLeast, costs, network, why);
    if (all.empty()) break;
    const Proposal& p = least_memory(all);
    if (p.memory > memory) continue;
    throw UsageError(str(problem,
                         "Of twice, four times, ... as many ranks the smallest mesh that "
                         "fits is ",
                         choice_text(p), ": ", ranks, " ranks, ", format_bytes(p.memory),
                         " each. Give --ranks ", ranks, ", more --memory, ", advice));
  }
  const nn::RankPlan one =
      nn::plan_rank({{model.axes[0], 1}}, 0, model.make(model.size, model.spread));
  throw UsageError(str(problem, "No larger mesh would do: the domain cannot be cut further, and ",
                       "weights and optimiser state, ", format_bytes(one.rest_bytes),
                       model.other_shards || model.spread.shard == "zero3"
                           ? ", are shared by all ranks already"
                           : ", do not shrink with it",
                       ". Give more --memory, ", advice));
}

/// Rows for 1, 2, 4, ... ranks; fewer where a domain is too small to be cut or too large to plan.
std::vector<Proposal> scaling(
    const PlannedModel& model,
    int most,
    std::int64_t memory,
    const StepCosts& costs,
    const MessageCost& network,
    const Spread& spread,
    const std::function<StepCosts::Size(const std::vector<MeshAxis>&)>& grown) {
  std::vector<Proposal> rows;
  const auto fits = [&](const Proposal& p) { return memory == 0 || p.memory <= memory; };
  for (int ranks = 1; ranks <= most; ranks *= 2) {
    std::string why;
    std::vector<Proposal> all;
    if (!grown) {
      if (product(model.size) > model.most_elements) break;
      all = proposals(model, model.size, ranks, Spreads::kGiven, costs, network, why);
      if (std::none_of(all.begin(), all.end(), fits))
        all = proposals(model, model.size, ranks, Spreads::kAll, costs, network, why);
    } else {
      // Without an axis data; the most cubic mesh.
      const Dims cube = Dims::filled(static_cast<int>(model.size.size()), std::int64_t{1} << 24);
      std::vector<MeshAxis> axes = choose_axes(cube, ranks);
      for (std::size_t d = 0; d < axes.size(); ++d) axes[d].name = model.axes[d];
      const StepCosts::Size size = grown(axes);
      if (product(size) > model.most_elements) break;
      try {
        all.push_back(propose_on(model, size, {axes, spread}, costs, network));
      } catch (const Error&) {
        break;
      }
    }
    if (all.empty()) break;
    const auto first = std::find_if(all.begin(), all.end(), fits);
    rows.push_back(first != all.end() ? *first : all.front());
  }
  for (Proposal& p : rows) {
    const double ratio = rows.front().time.seconds() / p.time.seconds();
    p.efficiency = grown ? ratio : ratio / static_cast<double>(p.ranks);
  }
  return rows;
}

/// A rank's part on the mesh; where it does not divide the domain, a half, quarter... of that.
StepCosts::Size part_of(const StepCosts::Size& size, const std::vector<MeshAxis>& axes) {
  StepCosts::Size part = size;
  std::size_t d = 0;
  for (const MeshAxis& axis : axes) {
    if (axis.name == "data") continue;
    std::int64_t& n = part[d++];
    if (n % axis.size == 0) {
      n /= axis.size;
    } else {
      for (std::int64_t cut = axis.size; cut > 1 && n % 2 == 0; cut /= 2) n /= 2;
    }
  }
  return part;
}

}  // namespace

std::string mesh_text(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const MeshAxis& axis : axes) text += str(text.empty() ? "" : ",", axis.name, "=", axis.size);
  return text;
}

std::string choice_text(const Choice& choice) {
  std::string text = mesh_text(choice.axes);
  if (choice.spread.shard != "none") text += " --shard " + choice.spread.shard;
  if (!choice.spread.tensor.empty()) text += " --tensor " + choice.spread.tensor;
  return text;
}

std::vector<std::vector<MeshAxis>> candidate_meshes(const PlannedModel& model,
                                                    const StepCosts::Size& size,
                                                    int ranks,
                                                    int most) {
  std::vector<std::vector<MeshAxis>> all;
  for (int data = 1; data <= ranks; ++data) {
    if (ranks % data != 0 || model.batch % data != 0) continue;
    std::vector<std::pair<double, std::vector<MeshAxis>>> cuts;
    std::vector<int> parts(size.size(), 1);
    const std::function<void(std::size_t, int)> split = [&](std::size_t d, int left) {
      if (d == size.size()) {
        if (left != 1) return;
        double surface = 0.0;
        for (std::size_t cut = 0; cut < size.size(); ++cut) {
          if (parts[cut] == 1) continue;
          double face = parts[cut] == 2 ? 1.0 : 2.0;
          for (std::size_t other = 0; other < size.size(); ++other)
            if (other != cut) face *= static_cast<double>(size[other]) / parts[other];
          surface += face;
        }
        std::vector<MeshAxis> axes;
        if (data > 1) axes.push_back({"data", data});
        std::size_t last = 0;
        for (std::size_t i = 0; i < size.size(); ++i)
          if (parts[i] > 1) last = i + 1;
        if (data == 1) last = std::max<std::size_t>(last, 1);
        for (std::size_t i = 0; i < last; ++i) axes.push_back({model.axes[i], parts[i]});
        cuts.emplace_back(surface, std::move(axes));
        return;
      }
      for (int n = left; n >= 1; --n) {
        if (left % n != 0 || n > size[d]) continue;
        parts[d] = n;
        split(d + 1, left / n);
      }
    };
    split(0, ranks / data);
    std::stable_sort(cuts.begin(), cuts.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    if (std::ssize(cuts) > most) cuts.resize(static_cast<std::size_t>(most));
    for (auto& [surface, axes] : cuts) all.push_back(std::move(axes));
  }
  return all;
}

Proposal propose_on(const PlannedModel& model,
                    const StepCosts::Size& size,
                    const Choice& choice,
                    const StepCosts& costs,
                    const MessageCost& network) {
  const nn::Plan plan = nn::plan_step(choice.axes, model.make(size, choice.spread),
                                      {.ranks = few_ranks(choice.axes), .events = true});
  Proposal p;
  p.axes = choice.axes;
  p.spread = choice.spread;
  p.ranks = plan.ranks;
  p.memory = plan.largest().peak_bytes;
  const nn::RankPlan& busiest = plan.busiest();
  p.sent = {busiest.sent.total().messages, busiest.sent.total().bytes};
  p.by_axes = busiest.by_axes;
  for (const nn::RankPlan& rank : plan.plans) {
    const StepTime time = costs.time_of(rank, network);
    if (time.seconds() > p.time.seconds()) p.time = time;
  }
  return p;
}

MessageCost message_cost_of(const std::string& latency, const std::string& bandwidth) {
  MessageCost network;
  const bool given = !latency.empty() || !bandwidth.empty();
  if (process().count > 1 && (latency.empty() || bandwidth.empty())) network = measure_network();
  if (!latency.empty()) network.latency = parse_seconds(latency);
  if (!bandwidth.empty()) network.bandwidth = parse_bandwidth(bandwidth);
  if (given) network.source = latency.empty() || bandwidth.empty() ? "given in part" : "given";
  return network;
}

Choice propose(const PlannedModel& model,
               const ProposalRequest& request,
               const StepCosts& costs,
               const MessageCost& network) {
  const std::int64_t memory = request.memory.empty() ? 0 : parse_bytes(request.memory);
  Choice best;
  const Mesh world = Mesh::world({{"h", process().count}});
  nn::collective(world).together([&] {
    if (process().rank != 0) return;
    std::string why;
    std::vector<Proposal> all =
        proposals(model, model.size, request.ranks, Spreads::kAll, costs, network, why);
    if (all.empty()) {
      throw UsageError(str("plan: no mesh of ", request.ranks, " ranks cuts a domain of ",
                           size_text(model.size), " and a batch of ", model.batch,
                           why.empty() ? "" : " (" + why + ")",
                           ". Choose another number of ranks, or a larger domain or batch."));
    }
    const Proposal one =
        propose_on(model, model.size, {{{model.axes[0], 1}}, model.spread}, costs, network);
    for (Proposal& p : all)
      p.efficiency = one.time.seconds() / p.time.seconds() / static_cast<double>(p.ranks);
    const std::size_t considered = all.size();
    const Proposal least = least_memory(all);
    if (memory > 0) std::erase_if(all, [&](const Proposal& p) { return p.memory > memory; });
    if (all.empty()) nothing_fits(model, request, memory, least, costs, network);
    ProposalReport report{.model = model,
                          .request = request,
                          .costs = costs,
                          .network = network,
                          .memory = memory,
                          .considered = considered,
                          .one = one,
                          .proposals = all,
                          .strong = {},
                          .weak = {},
                          .weak_part = {}};
    best = all.front();
    if (request.scaling > 0) {
      report.strong = scaling(model, request.scaling, memory, costs, network, best.spread, {});
      report.weak_part = part_of(model.size, best.axes);
      report.weak = scaling(model, request.scaling, memory, costs, network, best.spread,
                            [&](const std::vector<MeshAxis>& axes) {
                              StepCosts::Size size = report.weak_part;
                              for (std::size_t d = 0; d < size.size(); ++d) size[d] *= axes[d].size;
                              return size;
                            });
    }
    print_proposals(report);
  });
  if (process().count == 1) return best;
  // From process 0: sizes of the axes `data` and of the domain, and the spread.
  std::vector<std::string> names = {"data"};
  names.insert(names.end(), model.axes.begin(), model.axes.end());
  std::vector<std::int64_t> told(names.size() + 2, 0);
  const auto place = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) - names.begin();
  };
  if (process().rank == 0) {
    for (const MeshAxis& axis : best.axes)
      told[static_cast<std::size_t>(place(axis.name))] = axis.size;
    told[names.size()] = best.spread.stage();
    told[names.size() + 1] = place(best.spread.tensor);
  }
  parallel::broadcast(parallel::Group::world(), told.data(),
                      std::ssize(told) * static_cast<std::int64_t>(sizeof told[0]), 0,
                      {.op = "plan"})
      .wait();
  best = {};
  for (std::size_t i = 0; i < names.size(); ++i)
    if (told[i] > 0) best.axes.push_back({names[i], static_cast<int>(told[i])});
  best.spread.shard = kShards[static_cast<std::size_t>(told[names.size()])];
  const auto tensor = static_cast<std::size_t>(told[names.size() + 1]);
  if (tensor < names.size()) best.spread.tensor = names[tensor];
  return best;
}

}  // namespace tessera::app
