#pragma once

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>

#include "jobs.hpp"

// The same work on ranks of one thread and on one rank with as many threads, in turns: what the
// split of the domain costs. The ratio is taken per pair.
namespace tessera::bench {

/// What one process reports of a turn.
struct Turn {
  double seconds = 0;
  double waited = 0;      ///< for messages between neighbours
  double overlapped = 0;  ///< these in flight under computation
  double reduced = 0;     ///< waited for sums and gathers
  double bytes = 0;       ///< of messages between neighbours, sent
};

/// Runs `f` on all processes at once; the slowest counts.
template <class F>
Turn measure_turn(F&& f) {
  using Clock = std::chrono::steady_clock;
  const parallel::Group all = parallel::Group::world();
  parallel::barrier(all).wait();
  parallel::reset_comm_stats();
  const auto start = Clock::now();
  f();
  Turn t;
  t.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const parallel::CommStats stats = parallel::comm_stats();
  const parallel::CommCounters neighbours = stats.point_to_point();
  t.waited = neighbours.wait_seconds;
  t.overlapped = neighbours.overlapped_seconds;
  t.reduced = stats.total().wait_seconds - neighbours.wait_seconds;
  t.bytes = static_cast<double>(neighbours.bytes);
  parallel::all_reduce(all, &t.seconds, 5, DType::kFloat64, ReduceOp::kMax).wait();
  return t;
}

inline std::string text_of(const Turn& t) {
  std::ostringstream text;
  text << t.seconds << ' ' << t.waited << ' ' << t.overlapped << ' ' << t.reduced << ' ' << t.bytes;
  return text.str();
}

inline Turn take_turn(Job& job, const std::string& line) {
  std::istringstream answer(job.run(line));
  Turn t;
  if (!(answer >> t.seconds >> t.waited >> t.overlapped >> t.reduced >> t.bytes))
    throw std::runtime_error("a job ended early");
  return t;
}

/// Medians of the pairs of turns of two jobs.
struct Pairs {
  double ranks_seconds, one_seconds;
  Interval95 ratio;
  double waited, hidden, reduced, bytes;  ///< of the ranks; hidden: share of the time in flight

  static void print_header(const char* label) {
    std::printf("%-16s%12s%12s%9s%18s%12s%9s%10s%14s\n", label, "ranks ms", "one ms", "ratio",
                "95 % interval", "wait ms", "hidden", "sums ms", "KiB sent/rank");
  }
  void print(const char* label) const {
    std::printf("%-16s%12.1f%12.1f%9.3f%9.3f -%7.3f%12.2f%8.0f%%%10.2f%14.0f\n", label,
                1e3 * ranks_seconds, 1e3 * one_seconds, ratio.median, ratio.low, ratio.high,
                1e3 * waited, 100 * hidden, 1e3 * reduced, bytes / 1024);
    std::fflush(stdout);
  }
  nlohmann::json json() const {
    return {{"ratio", ratio.median},
            {"interval", {ratio.low, ratio.high}},
            {"wait_seconds", waited},
            {"overlapped_share", hidden}};
  }
};

/// `line` is given to both jobs, `warm` times before the pairs that count.
inline Pairs run_pairs(Job& ranks, Job& one, const std::string& line, int pairs, int warm) {
  for (int i = 0; i < warm; ++i) {
    take_turn(one, line);
    take_turn(ranks, line);
  }
  std::vector<double> ours, theirs, ratios, waited, hidden, reduced, bytes;
  for (int pair = 0; pair < pairs; ++pair) {
    // The order alternates, so a drift of the machine favours neither side.
    Turn a, b;
    if (pair % 2 == 0) a = take_turn(ranks, line);
    b = take_turn(one, line);
    if (pair % 2 == 1) a = take_turn(ranks, line);
    ours.push_back(a.seconds);
    theirs.push_back(b.seconds);
    ratios.push_back(a.seconds / b.seconds);
    waited.push_back(a.waited);
    hidden.push_back(a.overlapped / std::max(a.overlapped + a.waited, 1e-9));
    reduced.push_back(a.reduced);
    bytes.push_back(a.bytes);
  }
  return {median(ours),   median(theirs),  Interval95(ratios), median(waited),
          median(hidden), median(reduced), median(bytes)};
}

}  // namespace tessera::bench
