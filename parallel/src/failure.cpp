#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tessera/core/error.hpp>
#include <tessera/parallel/failure.hpp>
#include <thread>

#include "flight.hpp"
#include "mpi.hpp"
#include "remote_failure.hpp"
#include "report.hpp"
#include "witness.hpp"

namespace tessera::parallel {

namespace {

// How long the process that writes the report waits for others, and others for it, in seconds.
constexpr double kGraceSeconds = 0.2;
constexpr double kGatherSeconds = 0.5;
constexpr double kAnswerSeconds = 2;
constexpr double kReadSeconds = 2;
constexpr double kYieldSeconds = 5;
constexpr double kYieldSecondsPerProcess = 0.25;  // so that the next one reports alone, too

struct Failure {
  std::string what;
  int code;
  std::string place;

  bool alike(const Failure& other) const { return what == other.what && code == other.code; }
};

struct State {
  std::map<int, Failure> failures;     // by process
  std::map<int, std::string> answers;  // to our query
  Clock::time_point first_failure;
  int reporter = -1;  // lowest other process that asks for the same
};
State& state() {
  static State* const instance = new State;
  return *instance;
}

void send_to_others(mpi::Control::Type type,
                    std::string_view text,
                    int code = 0,
                    std::string_view place = "") {
  if (!mpi::active()) return;
  mpi::Control message;
  message.type = type;
  message.code = code;
  message.origin = process().rank;
  message.set_text(text);
  message.set_place(place);
  for (int peer = 0; peer < process().count; ++peer) {
    if (peer != process().rank) mpi::send_control(peer, message);
  }
}

template <class Done>
void poll_for(double seconds, Done&& done) {
  const Clock::time_point start = Clock::now();
  while (!done() && std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    poll_control();
    sched_yield();
  }
}

std::string join(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += str(i > 0 ? ", " : "", numbers[i]);
    if (last > i) text += str(last > i + 1 ? ".." : ", ", numbers[last]);
    i = last + 1;
  }
  return text;
}

void print(const std::string& text) {
  witness::claim_report();
  std::fflush(nullptr);
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  wait_until_read(STDOUT_FILENO);
  wait_until_read(STDERR_FILENO);
}

// What all processes of the job say alike; null: they do not, or some has not spoken.
const Failure* common_failure() {
  const auto& failures = state().failures;
  if (static_cast<int>(failures.size()) != process().count) return nullptr;
  const Failure& first = failures.begin()->second;
  const bool alike = std::all_of(failures.begin(), failures.end(),
                                 [&](const auto& failure) { return failure.second.alike(first); });
  return alike ? &first : nullptr;
}

}  // namespace

int exit_code(const std::exception& error) {
  if (const auto* known = dynamic_cast<const HasExitCode*>(&error)) return known->exit_code();
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return 2;
  if (dynamic_cast<const IoError*>(&error) != nullptr) return 74;
  return kFailureExitCode;
}

void wait_until_read(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  const Clock::time_point start = Clock::now();
  for (int left = 1; std::chrono::duration<double>(Clock::now() - start).count() < kReadSeconds;) {
    if (ioctl(descriptor, FIONREAD, &left) != 0 || left == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // On its way from the launcher's local helper to the launcher.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

void poll_control() {
  if (!mpi::active()) return;
  State& s = state();
  mpi::Control message;
  while (mpi::receive_control(message)) {
    switch (message.type) {
      case mpi::Control::kFail:
        if (s.failures.empty()) s.first_failure = Clock::now();
        s.failures.emplace(message.origin,
                           Failure{message.text.data(), message.code, message.place.data()});
        witness::leave_report_to_others();
        break;
      case mpi::Control::kStatus:
        s.answers[message.origin] = message.text.data();
        break;
      case mpi::Control::kQuery: {
        if (s.reporter < 0 || message.origin < s.reporter) s.reporter = message.origin;
        witness::leave_report_to_others();
        const int asker = message.origin;
        message.type = mpi::Control::kStatus;
        message.origin = process().rank;
        message.set_text(activity());
        mpi::send_control(asker, message);
        break;
      }
    }
  }
}

void fail_job(std::string_view what, int exit_code) {
  try {
    // Cut as the message is, so that all processes compare the same.
    const std::string text(what.substr(0, mpi::Control().text.size() - 1));
    const std::string place = activity();
    if (!state().failures.emplace(process().rank, Failure{text, exit_code, place}).second) return;
    send_to_others(mpi::Control::kFail, text, exit_code, place);
  } catch (const std::exception& error) {
    // The message did not get out; the others notice by their watchdog.
    std::fprintf(stderr, "tessera: %s\n", error.what());
  }
}

bool job_failed() { return !state().failures.empty(); }

std::string failure_text() {
  std::string text;
  for (const auto& [origin, failure] : state().failures) {
    text += str(text.empty() ? "" : "; ", "process ", origin, ": ", failure.what);
  }
  return text;
}

void check_job(const char* op) {
  if (!job_failed()) return;
  throw RemoteFailure(str(op, ": the job has failed (", failure_text(),
                          "). It ends; nothing can be sent any more."));
}

void check_wait(CallKind kind) {
  const State& s = state();
  if (s.failures.empty()) return;
  const std::chrono::duration<double> age = Clock::now() - s.first_failure;
  if (age.count() > kGraceSeconds || s.failures.contains(process().rank)) check_job(name(kind));
}

void end_failed_job() {
  State& s = state();
  const int self = process().rank;
  const auto all_failed = [&] { return static_cast<int>(s.failures.size()) == process().count; };
  try {
    poll_for(kGatherSeconds, all_failed);
    if (const Failure* const common = common_failure(); common != nullptr && outstanding() == 0) {
      // Every process is here: the job can end in order. Where one is not, it ends the others.
      if (self == 0) print(str("tessera: ", common->what, "\n"));
      const int code = common->code;
      std::fflush(nullptr);
      witness::set_ending();
      mpi::stop();
      witness::stop();
      std::_Exit(code);
    }
    if (self > 0) poll_for(kYieldSeconds + kYieldSecondsPerProcess * self, [] { return false; });
  } catch (const std::exception&) {
    // Report what is known.
  }
  const int code = s.failures.empty() ? kFailureExitCode : s.failures.begin()->second.code;
  std::string report;
  if (process().count == 1) {
    for (const auto& [origin, failure] : s.failures) report += str("tessera: ", failure.what, "\n");
  } else {
    std::map<std::string, std::vector<int>> origins;
    for (const auto& [origin, failure] : s.failures) origins[failure.what].push_back(origin);
    report = "tessera: the job has failed\n";
    for (const auto& [what, processes] : origins) {
      report += str(processes.size() > 1 ? "  processes " : "  process ", join(processes), " of ",
                    process().count, ": ", what, "\n");
      if (processes.size() == 1) report += str("    it ", s.failures.at(processes[0]).place, "\n");
    }
    const std::string calls = recent_calls_text(4);
    if (!calls.empty()) report += str("  last calls of process ", self, ":\n", calls);
  }
  print(report);
  mpi::abort(code);
}

void end_stuck_job(const Request::Flight& flight, double seconds) {
  State& s = state();
  const int self = process().rank;
  const std::vector<int> missing =
      flight.operation ? flight.operation->missing() : std::vector<int>();
  try {
    s.answers.clear();
    send_to_others(mpi::Control::kQuery, "");
    const auto lower_reports = [&] { return s.reporter >= 0 && s.reporter < self; };
    poll_for(kAnswerSeconds, [&] {
      return lower_reports() || static_cast<int>(s.answers.size()) == process().count - 1;
    });
    if (lower_reports())
      poll_for(kYieldSeconds + kYieldSecondsPerProcess * self, [] { return false; });
  } catch (const std::exception&) {
    // Report what is known.
  }
  std::string report =
      str("tessera: no progress for ", static_cast<std::int64_t>(seconds + 0.5),
          " s (TESSERA_TIMEOUT); the job ends\n  process ", self, " waits for ",
          flight.record.str(), "\n  not arrived: ",
          missing.empty() ? "unknown"
                          : (missing.size() > 1 ? "processes " : "process ") + join(missing),
          "\n");
  for (int p = 0; p < process().count; ++p) {
    if (p == self) continue;
    const auto it = s.answers.find(p);
    report += str("  process ", p, " ",
                  it != s.answers.end()
                      ? it->second
                      : "does not answer (long work without communication, stopped, or gone)",
                  "\n");
  }
  report += str("  last calls of process ", self, ":\n", recent_calls_text(8),
                "  Where work between two calls takes longer, raise TESSERA_TIMEOUT (seconds; 0: "
                "wait for ever).\n");
  print(report);
  mpi::abort(kFailureExitCode);
}

}  // namespace tessera::parallel
