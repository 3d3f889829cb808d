#pragma once

#include <functional>
#include <map>
#include <string>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/inspect/workload.hpp>
#include <utility>
#include <vector>

namespace tessera::app {

/// What a message costs: `latency` seconds, and its bytes at `bandwidth` bytes per second.
struct MessageCost {
  double latency = 2e-6;
  double bandwidth = 12.5e9;
  std::string source = "assumed";

  double seconds(const nn::Traffic& sent) const {
    return latency * static_cast<double>(sent.messages) +
           static_cast<double>(sent.bytes) / bandwidth;
  }
};

/// "2us", "0.5 ms" -> seconds; "12.5GB/s", "100Gb/s" -> bytes per second. Throw UsageError.
double parse_seconds(const std::string& text);
double parse_bandwidth(const std::string& text);

/// Measures messages between this job's processes, pairs of them all at once: empty ones and ones
/// of 1 MiB. Every process must call; there have to be at least 2.
MessageCost measure_network();

/// Predicted time of a step on one rank.
struct StepTime {
  double compute = 0.0;  ///< ops, update of the parameters, the rest of the program
  double exposed = 0.0;  ///< communication that nothing hides
  double hidden = 0.0;   ///< communication under computing
  double seconds() const { return compute + exposed; }
};

/// What each op of each layer costs on this machine, as measured on one rank: seconds in a step by
/// the work in it, from up to three sizes of the domain. Work is floating-point operations where an
/// op counts them, else bytes.
class StepCosts {
 public:
  using Size = std::vector<std::int64_t>;
  using MakeSized = std::function<nn::MakeWorkload(const Size&)>;

  /// Measures steps of the largest size among `size` and its halves (in each dimension) that takes
  /// at most about half a second and 2 GiB here, of the smallest, and of one between them. On each
  /// process of the job at once, so that they share the machine as they will. Throws what making
  /// the smallest throws.
  static StepCosts measure(const Size& size, const MakeSized& make);

  /// What the rank of a plan with events takes.
  StepTime time_of(const nn::RankPlan& plan, const MessageCost& network) const;
  /// The sizes that were measured, with the seconds of a step.
  const std::vector<std::pair<Size, double>>& measured() const { return measured_; }

 private:
  /// Seconds by work, through the points; in proportion beyond the largest.
  struct Curve {
    std::vector<std::pair<double, double>> points;
    void add(double work, double seconds);
    double at(double work) const;
  };
  /// Of one op in a step, or in several.
  struct Sum {
    double calls = 0.0;
    double work = 0.0;
    double seconds = 0.0;
  };
  struct Sample;
  static Sample sample(const nn::MakeWorkload& make);

  std::map<std::pair<std::string, std::string>, Curve> by_layer_;  ///< by op and layer
  std::map<std::string, Sum> by_op_;  ///< for what only a mesh calls in a layer
  Curve rest_;                        ///< outside of ops, by the bytes that all ops move
  std::vector<std::pair<Size, double>> measured_;
};

/// The median, of all ranks' slowest, of `count` steps of a workload that has run some; and the
/// quartiles.
struct MeasuredTime {
  double low = 0.0;
  double median = 0.0;
  double high = 0.0;
};
MeasuredTime measure_steps(const Mesh& mesh, nn::Workload& workload, int count);

}  // namespace tessera::app
