#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/core/error.hpp>
#include <utility>
#include <vector>

#include "measure.hpp"
#include "peer.hpp"

// What benchmarks of a step beside a peer's share: turns, a fresh process's number, the last line.
namespace tessera::bench {

/// Medians of both sides' seconds, and how far the peer's losses are from ours.
struct Turns {
  double ours = 0, peer = 0;
  double first_difference = 0, difference = 0;  ///< relative; of the first turn, the largest
};

/// Ours, then the peer's step where there is one; the first `warm_up` turns do not count as time.
template <class F>
Turns take_turns(F&& step, Server* peer, const std::string& command, int rounds, int warm_up) {
  Turns turns;
  std::vector<double> ours, theirs;
  for (int round = 0; round < rounds + warm_up; ++round) {
    const Timing own = step();
    if (round >= warm_up) ours.push_back(own.seconds);
    if (peer == nullptr) continue;
    const Timing other = timed(*peer, command);
    if (round >= warm_up) theirs.push_back(other.seconds);
    const double difference = std::abs(own.loss - other.loss) / other.loss;
    if (round == 0) turns.first_difference = difference;
    turns.difference = std::max(turns.difference, difference);
  }
  turns.ours = median(ours);
  turns.peer = median(theirs);
  return turns;
}

/// Gives the peer a case. Throws when its model has another number of parameters.
inline void set_case(Server& peer, const std::string& words, std::int64_t parameters) {
  const std::string answer = peer.ask("case " + words);
  if (answer != str("parameters ", parameters, "\n"))
    throw Error(
        str("benchmark: the peer's model differs: ", answer, " for ", parameters, " parameters."));
}

/// The number that a program prints.
inline double number_from(std::vector<std::string> command) {
  return std::atof(Server(std::move(command)).read().c_str());
}

/// The last line of a benchmark. The peer's value and the ratio count where it takes part.
inline nlohmann::json last_line(const char* benchmark,
                                double value,
                                const char* unit,
                                nlohmann::json cases,
                                const Peer& peer,
                                double peer_value,
                                double ratio) {
  nlohmann::json line = {{"benchmark", benchmark}, {"value", value},   {"unit", unit},
                         {"peer", nullptr},        {"ratio", nullptr}, {"cases", std::move(cases)}};
  if (peer.takes_part()) {
    line["peer"] = {{"name", peer.name()}, {"value", peer_value}};
    line["ratio"] = ratio;
  }
  return line;
}

/// Means over the cases of a training: of times, geometric ones of ratios.
struct TrainingMeans {
  int cases = 0;
  double ours = 0, peer = 0;  ///< ms per step, sums
  double log_speed = 0, log_memory = 0;

  void add(double our_time, double peer_time, double our_memory, double peer_memory) {
    ++cases;
    ours += our_time;
    peer += peer_time;
    log_speed += std::log(peer_time / our_time);
    log_memory += std::log(our_memory / peer_memory);
  }
  nlohmann::json last_line(const char* benchmark, nlohmann::json each, const Peer& script) const {
    nlohmann::json line =
        bench::last_line(benchmark, ours / cases, "ms per training step, mean", std::move(each),
                         script, peer / cases, std::exp(log_speed / cases));
    if (script.takes_part()) line["memory_ratio"] = std::exp(log_memory / cases);
    return line;
  }
};

}  // namespace tessera::bench
