#include "step_cost.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <set>
#include <tessera/core/memory.hpp>
#include <tessera/core/profile.hpp>
#include <tessera/parallel/communicator.hpp>

#include "profile_table.hpp"

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;
using Key = std::pair<std::string, std::string>;

constexpr int kSteps = 5;                              // of each size, after two that plan
constexpr double kEnough = 3.0;                        // seconds after which a size has been seen
constexpr double kLongest = 0.5;                       // estimated seconds of a measured step
constexpr std::int64_t kMost = std::int64_t{2} << 30;  // bytes of a measured step

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

/// Number and unit of "2.5 us".
double parse(const std::string& text,
             std::initializer_list<std::pair<const char*, double>> units,
             const char* what,
             const char* example) {
  double number = 0.0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(static_cast<const char*>(stop), text.data() + text.size());
  unit.erase(std::remove(unit.begin(), unit.end(), ' '), unit.end());
  for (const auto& [name, factor] : units)
    if (error == std::errc() && unit == name && number >= 0.0) return number * factor;
  throw UsageError(
      str(what, ": \"", text, "\" has no number and unit. Write for example ", example, "."));
}

/// The share of a step's work that estimates its time before anything is measured.
double rough_seconds(const nn::RankPlan& plan) {
  double seconds = 0.0;
  for (const nn::StepEvent& e : plan.events) seconds += e.flops / 3e10 + e.bytes / 4e9;
  return seconds;
}

}  // namespace

double parse_seconds(const std::string& text) {
  return parse(text, {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}}, "latency", "2us");
}

double parse_bandwidth(const std::string& text) {
  const double bandwidth = parse(text,
                                 {{"MB/s", 1e6},
                                  {"GB/s", 1e9},
                                  {"MiB/s", 1048576.0},
                                  {"GiB/s", 1073741824.0},
                                  {"Mb/s", 1.25e5},
                                  {"Gb/s", 1.25e8}},
                                 "bandwidth", "12.5GB/s");
  if (bandwidth == 0.0)
    throw UsageError("bandwidth: 0 bytes per second. Write for example 12.5GB/s.");
  return bandwidth;
}

MessageCost measure_network() {
  constexpr std::int64_t kLong = 1 << 20;
  const int self = process().rank;
  const int peer = self ^ 1;
  const bool takes_part = peer < process().count;
  std::vector<char> out(kLong, 1), in(kLong);
  const auto exchange = [&](std::int64_t bytes, int count) {
    std::vector<double> seconds;
    for (int i = 0; i < count && takes_part; ++i) {
      const auto start = Clock::now();
      const parallel::Send send{peer, out.data(), bytes};
      const parallel::Recv recv{peer, in.data(), bytes};
      parallel::exchange_messages({&send, 1}, {&recv, 1}, {"ping", {}, {}}).wait();
      seconds.push_back(since(start));
    }
    return median(std::move(seconds));
  };
  exchange(8, 10);
  std::vector<double> times = {exchange(8, 101), exchange(kLong, 21)};
  parallel::all_reduce(parallel::Group::world(), times.data(), 2, DType::kFloat64, ReduceOp::kMax,
                       {"ping", {}, {}})
      .wait();
  return {times[0], static_cast<double>(kLong) / std::max(times[1] - times[0], 1e-9), "measured"};
}

struct StepCosts::Sample {
  std::map<Key, Sum> ops;
  double bytes = 0.0;  ///< of all ops
  double rest = 0.0;
  double seconds = 0.0;
};

StepCosts::Sample StepCosts::sample(const nn::MakeWorkload& make) {
  const std::unique_ptr<nn::Workload> workload =
      make(Mesh::of({process().rank}, std::vector<MeshAxis>{{"h", 1}}));
  workload->run(0);
  workload->run(1);
  Sample result;
  std::map<Key, std::vector<double>> seconds;
  std::vector<double> steps;
  double total = 0.0;
  for (int i = 0; i < kSteps && total < kEnough; ++i) {
    Profile profile;
    profile.start();
    const auto start = Clock::now();
    workload->run(2 + i);
    steps.push_back(since(start));
    total += steps.back();
    profile.stop();
    std::map<Key, Sum> ops;
    for (const OpCost& cost : summarize(profile).ops) {
      Sum& op = ops[{cost.op, cost.in_layer ? cost.where : ""}];
      op.calls += static_cast<double>(cost.calls);
      op.work += cost.flops > 0.0 ? cost.flops : cost.bytes;
      op.seconds += cost.seconds;
      if (i == 0) result.bytes += cost.bytes;
    }
    for (auto& [key, op] : ops) seconds[key].push_back(op.seconds);
    result.ops = std::move(ops);
  }
  result.seconds = median(steps);
  result.rest = result.seconds;
  for (auto& [key, op] : result.ops) {
    op.seconds = median(seconds[key]);
    result.rest -= op.seconds;
  }
  result.rest = std::max(0.0, result.rest);
  return result;
}

StepCosts StepCosts::measure(const Size& size, const MakeSized& make) {
  struct Candidate {
    Size size;
    nn::MakeWorkload make;
    double rough;
  };
  std::vector<Candidate> ladder;
  for (Size s = size;;) {
    try {
      nn::MakeWorkload workload = make(s);
      const nn::RankPlan plan = nn::plan_rank({{"h", 1}}, 0, workload, {.events = true});
      const double rough = rough_seconds(plan);
      if (plan.peak_bytes <= kMost && rough <= kLongest)
        ladder.push_back({s, std::move(workload), rough});
      if (rough < 1e-3) break;
    } catch (const Error&) {
      if (s == size) throw;
      break;  // too small for the model
    }
    // All even dimensions at once: the shape decides what an op costs, too.
    Size half = s;
    for (std::int64_t& n : half)
      if (n % 2 == 0) n /= 2;
    if (half == s) break;
    s = half;
  }
  if (ladder.empty()) {
    throw NotSupported(
        "plan: no size at or below the one given can be measured here (a step would take more than "
        "2 GiB or too long). Give a --size that halves to smaller ones, powers of two say.");
  }
  // The smallest shows what a call costs, the largest what work costs, one between them the caches.
  std::set<std::size_t> places = {0, ladder.size() - 1};
  const double middle = std::sqrt(ladder.front().rough * ladder.back().rough);
  std::size_t between = 0;
  while (between + 1 < ladder.size() && ladder[between].rough > middle) ++between;
  places.insert(between);
  StepCosts costs;
  for (const std::size_t place : places) {
    const Sample s = sample(ladder[place].make);
    costs.measured_.emplace_back(ladder[place].size, s.seconds);
    for (const auto& [key, op] : s.ops) {
      costs.by_layer_[key].add(op.work, op.seconds);
      Sum& rate = costs.by_op_[key.first];
      rate.work += op.work;
      rate.seconds += op.seconds;
      rate.calls += op.calls;
    }
    costs.rest_.add(s.bytes, s.rest);
  }
  return costs;
}

void StepCosts::Curve::add(double work, double seconds) {
  points.emplace_back(work, seconds);
  std::sort(points.begin(), points.end());
}

double StepCosts::Curve::at(double work) const {
  if (points.empty()) return 0.0;
  const auto& [most, longest] = points.back();
  if (work >= most) return most > 0.0 ? longest * work / most : longest;
  const auto& [least, shortest] = points.front();
  const auto line = [&](std::size_t i) {
    const auto& [x0, t0] = points[i];
    const auto& [x1, t1] = points[i + 1];
    return x1 > x0 ? t0 + (t1 - t0) * (work - x0) / (x1 - x0) : t0;
  };
  // Below all sizes: between in proportion to the work and as long as the least of them.
  if (work <= least) {
    const double proportional = least > 0.0 ? shortest * work / least : shortest;
    return points.size() < 2 ? proportional : std::clamp(line(0), proportional, shortest);
  }
  std::size_t i = 0;
  while (points[i + 1].first < work) ++i;
  return line(i);
}

StepTime StepCosts::time_of(const nn::RankPlan& plan, const MessageCost& network) const {
  const auto work_of = [](const nn::StepEvent& e) { return e.flops > 0.0 ? e.flops : e.bytes; };
  std::map<std::pair<std::string_view, std::uint32_t>, Sum> sums;
  double bytes = 0.0;
  for (const nn::StepEvent& e : plan.events) {
    if (e.op == nullptr) continue;
    Sum& sum = sums[{e.op, e.layer}];
    sum.calls += 1.0;
    sum.work += work_of(e);
    bytes += e.bytes;
  }
  for (auto& [key, sum] : sums) {
    const Key name(key.first, plan.layer_names[key.second]);
    if (const auto it = by_layer_.find(name); it != by_layer_.end()) {
      sum.seconds = it->second.at(sum.work);
    } else if (const auto op = by_op_.find(name.first); op != by_op_.end()) {
      const Sum& r = op->second;
      sum.seconds = r.work > 0.0 ? r.seconds * sum.work / r.work : r.seconds * sum.calls / r.calls;
    }
  }

  StepTime time;
  double flying = 0.0;      // of the exchange that belongs to the next op
  double background = 0.0;  // reductions of gradients that are left
  for (const nn::StepEvent& e : plan.events) {
    if (e.op == nullptr) {
      const double seconds = network.seconds(e.sent);
      if (e.phase == Phase::kUpdate) {  // the first one waits for all gradients
        time.exposed += background;
        background = 0.0;
      }
      if (e.exchange) {
        flying += seconds;
      } else if (e.background) {
        background += seconds;
      } else {
        time.exposed += seconds;
      }
      continue;
    }
    const Sum& sum = sums[{e.op, e.layer}];
    const double seconds =
        sum.work > 0.0 ? sum.seconds * work_of(e) / sum.work : sum.seconds / sum.calls;
    time.compute += seconds;
    const double under = std::min(flying, e.interior * seconds);
    time.hidden += under;
    time.exposed += flying - under;
    flying = 0.0;
    const double behind = std::min(background, seconds - under);
    background -= behind;
    time.hidden += behind;
  }
  time.exposed += flying + background;
  time.compute += rest_.at(bytes);
  return time;
}

MeasuredTime measure_steps(const Mesh& mesh, nn::Workload& workload, int count) {
  std::vector<double> seconds;
  const parallel::Group group = parallel::Group::of(mesh, mesh.all_axes());
  for (int i = 0; i < count; ++i) {
    parallel::barrier(group, {"plan check", {}, {}}).wait();
    const auto start = Clock::now();
    workload.run(2 + i);
    seconds.push_back(since(start));
  }
  parallel::all_reduce(group, seconds.data(), count, DType::kFloat64, ReduceOp::kMax,
                       {"plan check", {}, {}})
      .wait();
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double q) {
    return seconds[static_cast<std::size_t>(q * static_cast<double>(count - 1) + 0.5)];
  };
  return {at(0.25), at(0.5), at(0.75)};
}

}  // namespace tessera::app
