#pragma once

// Faults at random moments of a training on several processes, and what must hold after each: the
// job ends soon with a report that names the process, the last checkpoint is whole, and the resumed
// run has the bits of an uninterrupted one, in each step and at its end.

#include <sys/resource.h>

#include <map>
#include <random>
#include <tessera/nn/io/shards.hpp>

#include "program.hpp"

namespace tessera::test {

enum class Fault { kKill, kStop, kThrow };

/// Faults of one training after the other: what a fault leaves is gone on with, until the next
/// fault, so each costs no more than the time to its moment.
class FaultTest {
 public:
  explicit FaultTest(std::uint64_t seed, int ranks = 2) : ranks_(ranks), random_(seed) {
    const auto start_time = Clock::now();
    const pid_t launcher = start(command(ranks_, training("whole")), at_ / "output");
    wait_for_steps("whole", 1);
    first_step_ = seconds_since(start_time);
    const int code = wait_for(launcher);
    duration_ = seconds_since(start_time);
    INFO(read_file(at_ / "output"));
    REQUIRE(code == 0);
    model_ = read_file(at_ / "whole/model.safetensors");
    losses_ = losses(at_, "whole");
  }

  /// One fault, on one process, at one moment: from its start to the middle of what an undisturbed
  /// training takes. Returns whether it came before the job's end.
  bool strike(Fault fault) {
#ifndef TESSERA_THROW_ON_SIGNAL
    if (fault == Fault::kThrow) return false;  // allocation belongs to the sanitizers
#endif
    const int rank = static_cast<int>(below(static_cast<std::uint64_t>(ranks_)));
    const double longest = first_step_ + 0.5 * (duration_ - first_step_);
    const double delay = std::uniform_real_distribution<double>(0, longest)(random_);
    const char* const words[] = {"killed", "stopped", "made to throw"};
    INFO("process " << rank << " " << words[static_cast<int>(fault)] << " after " << delay
                    << " s of " << duration_ << " s");
    Words job = next_job();
    job.insert(job.begin(), {"/usr/bin/env", "TESSERA_TIMEOUT=4"});
#ifdef TESSERA_THROW_ON_SIGNAL
    if (fault == Fault::kThrow) job.insert(job.begin() + 1, "LD_PRELOAD=" TESSERA_THROW_ON_SIGNAL);
#endif
    const std::vector<double> before = losses_of(chain_);
    const pid_t launcher = start(job, at_ / "output");
    const bool struck = hit(launcher, rank, delay, fault);
    const int code = wait_for(launcher, struck ? 30 : 60);  // else it goes on to its end
    const Outcome o = {code, read_file(at_ / "output")};
    INFO("code " << code << "\n" << o.output);
    REQUIRE(code != kHangs);
    const bool begun = std::ssize(losses_of(chain_)) > std::ssize(before);
    const bool finished = std::filesystem::exists(at_ / chain_ + "/loss.png");
    if (code != 0) check_report(o, fault, rank, begun, finished);
    check_link(code);
    return struck && code != 0;
  }

  /// Kills one process while a checkpoint is being written. Returns whether that one was not
  /// committed: whether the kill was soon enough.
  bool strike_in_write() {
    const int rank = static_cast<int>(below(static_cast<std::uint64_t>(ranks_)));
    const auto through = static_cast<std::int64_t>(below(4));  // checkpoints to be let through
    const auto delay = std::chrono::microseconds(below(2000));
    const Words job = next_job();
    const std::int64_t from = newest_step(chain_);
    const pid_t launcher = start(job, at_ / "output");
    pid_t process = 0;
    std::string writing;
    const auto begin = Clock::now();
    while (seconds_since(begin) < 60 && writing.empty() &&
           !std::filesystem::exists(at_ / chain_ + "/loss.png")) {
      if (process == 0) process = process_of(launcher, rank);
      if (process == 0 || newest_step(chain_) < from + kEvery * through) {
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        continue;
      }
      for (const std::string& entry : unfinished(at_ / chain_)) {
        // Those that are being removed have such names, too.
        if (entry.starts_with("step-") && step_of(entry) > newest_step(chain_))
          writing = entry.substr(0, entry.find(".tmp-"));
      }
    }
    std::this_thread::sleep_for(delay);
    const bool killed = !writing.empty() && process > 0 && kill(process, SIGKILL) == 0;
    const int code = wait_for(launcher, 60);
    INFO("process " << rank << " killed while " << writing << " was written; code " << code << "\n"
                    << read_file(at_ / "output"));
    REQUIRE(code != kHangs);
    bool committed = false;
    for (const std::string& path : checkpoints(at_ / chain_))
      committed = committed || path.ends_with(writing);
    check_link(code);
    return killed && !committed;
  }

  /// What the last fault has left goes on to its end.
  void finish() {
    if (chain_.empty()) return;
    check_resumed(chain_, std::filesystem::exists(at_ / chain_ + "/metrics.jsonl"));
    chain_.clear();
  }

  /// Takes a resource from one process in the middle of the training, so that its files fail.
  void take(int rank, __rlimit_resource resource, rlim_t left, const std::string& word) {
    const std::string name = "run-" + std::to_string(++count_);
    INFO("process " << rank << ", limit " << resource << " of " << left);
    const pid_t launcher = start(command(ranks_, training(name)), at_ / "output");
    wait_for_steps(name, 2);
    const struct rlimit limit = {left, left};
    const pid_t process = process_of(launcher, rank);
    const bool taken = process > 0 && prlimit(process, resource, &limit, nullptr) == 0;
    const int code = wait_for(launcher, 60);
    const Outcome o = {code, read_file(at_ / "output")};
    INFO("code " << code << "\n" << o.output);
    if (taken && code != 0) {  // 0: the training was faster
      CHECK(code == 74);
      CHECK(o.says(word));
      CHECK(o.count("tessera: ") == 1);
    }
    check_whole(name);
    check_resumed(name);
  }

  /// A signal that asks one process (-1: the launcher) to stop; the whole job stops after the same
  /// step.
  void ask_to_stop(int signal, int rank) {
    const std::string name = "run-" + std::to_string(++count_);
    INFO("signal " << signal << " to process " << rank);
    const pid_t launcher = start(command(ranks_, training(name)), at_ / "output");
    wait_for_steps(name, 2);
    const pid_t process = rank < 0 ? launcher : process_of(launcher, rank);
    if (process > 0) kill(process, signal);
    const int code = wait_for(launcher, 60);
    INFO("code " << code << "\n" << read_file(at_ / "output"));
    REQUIRE((code == 75 || code == 0));  // 0: the training was faster
    if (code == 75) CHECK(losses_of(name).size() < losses_.size());
    check_resumed(name);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  std::uint64_t below(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
  }
  static constexpr std::int64_t kEvery = 7;  // steps from one checkpoint to the next

  Words training(const std::string& name) const {
    return train(at_, name,
                 {"--steps", "160", "--checkpoint-every", std::to_string(kEvery), "--mesh",
                  "h=" + std::to_string(ranks_)});
  }
  /// Goes on with the training that was struck last, or starts one.
  Words next_job() {
    if (chain_.empty()) chain_ = "run-" + std::to_string(++count_);
    const bool begun = std::filesystem::exists(at_ / chain_ + "/metrics.jsonl");
    return command(ranks_, begun ? Words{"train", "unet", "--resume", "--out", at_ / chain_}
                                 : training(chain_));
  }
  /// After a fault: checkpoints are whole, and all steps so far have the bits of the undisturbed
  /// training. `code` 0: it has ended, and is as a whole what it should be.
  void check_link(int code) {
    if (std::filesystem::exists(at_ / chain_ + "/metrics.jsonl")) check_whole(chain_);
    const std::vector<double> so_far = losses_of(chain_);
    REQUIRE(so_far.size() <= losses_.size());
    CHECK(std::equal(so_far.begin(), so_far.end(), losses_.begin()));
    if (code != 0) return;
    check_end(chain_);
    chain_.clear();
  }
  std::vector<double> losses_of(const std::string& name) const {
    return std::filesystem::exists(at_ / name + "/metrics.jsonl") ? losses(at_, name)
                                                                  : std::vector<double>();
  }

  void wait_for_steps(const std::string& name, std::int64_t steps) const {
    const auto begin = Clock::now();
    while (std::ssize(losses_of(name)) < steps && seconds_since(begin) < 60) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// Going on, or starting again where nothing had begun, ends like the uninterrupted training.
  void check_resumed(const std::string& name, bool begun = true) const {
    const Words again =
        begun ? Words{"train", "unet", "--resume", "--out", at_ / name} : training(name);
    const Outcome o = run(at_, command(ranks_, again));
    INFO("resumed: code " << o.code << "\n" << o.output);
    REQUIRE(o.code == 0);
    check_end(name);
  }
  void check_end(const std::string& name) const {
    CHECK(read_file(at_ / name + "/model.safetensors") == model_);
    CHECK(losses(at_, name) == losses_);
    CHECK(unfinished(at_ / name).empty());
    std::filesystem::remove_all(at_ / name);
  }

  /// The process of this rank below a launcher; 0 when there is none (yet).
  static pid_t process_of(pid_t launcher, int rank) {
    const std::string wanted = "PMI_RANK=" + std::to_string(rank);
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      if (read_file(entry.path().string() + "/comm") != "tessera\n") continue;
      const std::string environment = read_file(entry.path().string() + "/environ");
      if (environment.find(wanted + '\0') == std::string::npos) continue;
      for (pid_t p = std::stoi(name); p > 1; p = parent_of(p)) {
        if (p == launcher) return std::stoi(name);
      }
    }
    return 0;
  }
  static pid_t parent_of(pid_t process) {
    const std::string stat = read_file("/proc/" + std::to_string(process) + "/stat");
    const std::size_t at = stat.rfind(')');
    return at == std::string::npos ? 0 : std::stoi(stat.substr(at + 4));
  }
  static bool hit(pid_t launcher, int rank, double delay, Fault fault) {
    const auto begin = Clock::now();
    pid_t process = 0;
    while (seconds_since(begin) < delay) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (process == 0) process = process_of(launcher, rank);
    }
    if (process == 0) process = process_of(launcher, rank);
    if (process == 0) return false;
    const int signal = fault == Fault::kKill ? SIGKILL : fault == Fault::kStop ? SIGSTOP : SIGUSR2;
    return kill(process, signal) == 0;
  }

  /// Before the training has begun and after its end, processes come and go one by one, and the
  /// launcher's own words may be all that there is; of a process killed before it has reached MPI
  /// the launcher sometimes says nothing, or ends the other one, which is then reported.
  void check_report(const Outcome& o, Fault fault, int rank, bool begun, bool finished) const {
    CHECK(o.count("tessera: ") <= 1);
    if (begun && !finished) {
      CHECK(o.code == 70);
      CHECK(o.count("tessera: ") == 1);
    }
    const std::string process = "process " + std::to_string(rank);
    const std::string of = " of " + std::to_string(ranks_) + ": ";
    // What happens while all ranks wait for one file is an error of all: op and rank.
    if (fault == Fault::kThrow && o.says("(rank " + std::to_string(rank) + ")")) return;
    if (!begun || finished) {
      CHECK((o.says(process) || o.says("MPI; one of them is stopped or gone") ||
             o.says("BAD TERMINATION") || o.says("Signal 15 comes from") ||
             (!begun && fault == Fault::kKill && o.output.empty())));
      return;
    }
    CHECK(o.says(" #"));  // a call with its number
    switch (fault) {
      case Fault::kKill:
        CHECK((o.says(process + of + "ended by signal 9 (Killed)") ||
               o.says(process + of + "was killed, or crashed,")));
        break;
      case Fault::kStop:
        CHECK(o.says("tessera: no progress for"));
        // Who waits for it may wait for another one that waits for it.
        CHECK(o.says("  " + process + " does not answer"));
        if (ranks_ == 2) CHECK(o.says("not arrived: " + process + "\n"));
        break;
      case Fault::kThrow:
        CHECK(o.says(process + of));
        break;
    }
  }
  /// There is a checkpoint, and all that are there are whole.
  void check_whole(const std::string& name) const {
    const std::vector<std::string> paths = checkpoints(at_ / name);
    REQUIRE(!paths.empty());
    for (const std::string& path : paths) {
      const io::ShardReader reader(path);
      reader.verify({});
      for (const auto& tensor : reader.tensors()) {
        std::vector<double> values(static_cast<std::size_t>(tensor.shape.product()));
        reader.read({{tensor.name, Box::whole(tensor.shape),
                      View::dense(values.data(), DType::kFloat64, tensor.shape)}});
        for (const double v : values) REQUIRE(std::isfinite(v));
      }
    }
  }
  /// -1: there is none.
  std::int64_t newest_step(const std::string& name) const {
    const std::vector<std::string> paths = checkpoints(at_ / name);
    return paths.empty() ? -1 : step_of(paths.back());
  }
  static std::int64_t step_of(const std::string& path) {
    return std::stoll(path.substr(path.rfind("step-") + 5));
  }

  int ranks_;
  TemporaryFolder at_;
  std::mt19937_64 random_;
  double first_step_ = 0;  // seconds to it
  double duration_ = 0;
  std::string chain_;  // the training that goes on; empty: none
  std::string model_;
  std::vector<double> losses_;
  int count_ = 0;
};

inline std::uint64_t seed_of_faults() {
  const char* text = std::getenv("TESSERA_TEST_SEED");
  const std::uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
  std::printf("seed of the faults: %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

/// So many faults of each kind, in turns. Prints the seed, which TESSERA_TEST_SEED repeats.
inline void strike_at_random(const std::map<Fault, int>& draws, int ranks = 2) {
  const std::uint64_t seed = seed_of_faults();
  INFO("TESSERA_TEST_SEED=" << seed);
  FaultTest test(seed, ranks);
  int struck = 0, all = 0, most = 0;
  for (const auto& [fault, count] : draws) most = std::max(most, count);
  for (int i = 0; i < most; ++i) {
    for (const auto& [fault, count] : draws) {
      if (i >= count) continue;
      struck += test.strike(fault) ? 1 : 0;
      ++all;
    }
  }
  test.finish();
  std::printf("%d of %d faults came before the end of the training\n", struck, all);
  CHECK(struck >= std::max(1, most / 2));
}

/// Kills at random moments, until so many came before the end of a training.
inline void kill_at_random(int wanted, int ranks = 2) {
  const std::uint64_t seed = seed_of_faults();
  INFO("TESSERA_TEST_SEED=" << seed);
  FaultTest test(seed, ranks);
  int struck = 0;
  int tries = 0;
  for (; struck < wanted && tries < 3 * wanted; ++tries)
    struck += test.strike(Fault::kKill) ? 1 : 0;
  test.finish();
  std::printf("%d of %d kills came before the end of the training\n", struck, tries);
  CHECK(struck == wanted);
}

/// Kills inside the writes of checkpoints, until there were so many.
inline void strike_in_writes(int wanted, int ranks = 2) {
  const std::uint64_t seed = seed_of_faults();
  INFO("TESSERA_TEST_SEED=" << seed);
  FaultTest test(seed, ranks);
  int inside = 0;
  int tries = 0;
  for (; inside < wanted && tries < 10 * wanted + 10; ++tries)
    inside += test.strike_in_write() ? 1 : 0;
  test.finish();
  std::printf("%d of %d kills came inside the write of a checkpoint\n", inside, tries);
  CHECK(inside == wanted);
}

}  // namespace tessera::test
