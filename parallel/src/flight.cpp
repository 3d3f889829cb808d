#include "flight.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/error.hpp>
#include <tessera/parallel/failure.hpp>
#include <thread>

#include "host_transport.hpp"
#include "mpi.hpp"
#include "witness.hpp"

namespace tessera::parallel {

namespace {

constexpr std::size_t kRecentCalls = 256;
// When it is looked whether processes have made different calls: after so long a wait, in seconds,
// and before one in so many calls.
constexpr double kLongWait = 0.25;
constexpr std::uint64_t kCallsPerLook = 64;
struct State {
  std::vector<Ref<Request::Flight>> active;
  std::array<Record, kRecentCalls> recent;
  std::uint64_t calls = 0;
  CommStats stats;
  const Request::Flight* awaited = nullptr;
  std::atomic<std::thread::id> owner;
  std::atomic<double> timeout{-1};
  unsigned idle_polls = 0;
  int spins = 50;
  bool progressing = false;
};

State& state() {
  static State* const instance = new State;  // outlives every static Request
  return *instance;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Record& recent(std::uint64_t sequence) { return state().recent[sequence % kRecentCalls]; }

void remove(Request::Flight& flight) {
  auto& active = state().active;
  if (flight.place >= active.size() || active[flight.place].get() != &flight) return;
  active.back()->place = flight.place;
  std::swap(active[flight.place], active.back());
  active.pop_back();
}

/// Whom a call concerns, for a profile.
std::vector<ProfilePeer> peers_of(const Call& call) {
  std::vector<ProfilePeer> peers;
  if (call.kind == CallKind::kSend || call.kind == CallKind::kRecv) {
    peers.push_back({call.peer, call.in_counts.front()});
  } else if (call.kind == CallKind::kExchange) {
    for (const Send& send : call.sends) peers.push_back({send.peer, send.bytes});
    for (const Recv& recv : call.recvs) peers.push_back({recv.peer, recv.bytes});
  } else {
    for (const int process : call.group.processes()) peers.push_back({process, 0});
  }
  return peers;
}

void profile_transfer(const Request::Flight& flight) {
  Profile& p = *profile();
  const double start = p.seconds(flight.started);
  if (start < 0.0) return;  // it began before the profile
  p.add({.kind = ProfileKind::kTransfer,
         .name = name(flight.record.kind),
         .start = start,
         .seconds = p.seconds(Clock::now()) - start,
         .bytes = flight.operation->bytes(),
         .sequence = flight.record.sequence,
         .detail = p.text(flight.record.info.op),
         .first_peer = static_cast<std::uint32_t>(p.peers().size()),
         .peer_count = static_cast<std::uint32_t>(flight.peers.size())});
  for (const ProfilePeer& peer : flight.peers) p.add_peer(peer);
}

// Tests all flights; those that end leave the list.
void advance_all() {
  auto& active = state().active;
  for (std::size_t i = 0; i < active.size();) {
    const Ref<Request::Flight> flight = active[i];
    if (flight->advance()) {
      remove(*flight);
    } else {
      ++i;
    }
  }
}

}  // namespace

bool Request::Flight::advance() {
  if (finished) return true;
  try {
    if (!operation->advance()) return false;
  } catch (...) {
    error = std::current_exception();
  }
  finished = true;
  if (counted) {
    CommCounters& counters = state().stats.kinds[static_cast<std::size_t>(record.kind)];
    counters.messages += operation->messages();
    counters.bytes += operation->bytes();
    counters.overlapped_seconds += std::max(0.0, seconds_since(started) - waited);
    if (recent(record.sequence).sequence == record.sequence) recent(record.sequence).done = true;
    if (profile() != nullptr) profile_transfer(*this);
  }
  // After an error MPI may still write to the buffers.
  if (!error) {
    operation = nullptr;
    kept.clear();
  }
  return true;
}

void wait_for(Request::Flight& flight, double timeout) {
  State& s = state();
  if (!flight.finished) {
    check_wait(flight.record.kind);
    struct Waiting {
      Request::Flight& flight;
      const Request::Flight* outer;
      double cpu_start = profile() != nullptr ? process_cpu_seconds() : 0.0;
      Clock::time_point start = Clock::now();
      ~Waiting() {
        state().awaited = outer;
        witness::note_wait(outer != nullptr ? &outer->record : nullptr);
        const double seconds = seconds_since(start);
        flight.waited += seconds;
        if (flight.counted) {
          state().stats.kinds[static_cast<std::size_t>(flight.record.kind)].wait_seconds += seconds;
          if (Profile* const p = profile()) {
            p->add({.kind = ProfileKind::kWait,
                    .name = name(flight.record.kind),
                    .start = p->seconds(start),
                    .seconds = seconds,
                    .cpu_seconds = process_cpu_seconds() - cpu_start,
                    .sequence = flight.record.sequence,
                    .detail = p->text(flight.record.info.op)});
          }
        }
      }
    };
    const Waiting waiting{flight, std::exchange(s.awaited, &flight)};
    witness::note_wait(&flight.record);
    for (int tries = 1; !flight.advance(); ++tries) {
      if (tries % 8 == 0) {
        progress_all();
        check_wait(flight.record.kind);
      }
      if (tries > s.spins) sched_yield();
      if (tries % 256 == 0) {
        const double seconds = seconds_since(waiting.start);
        if (seconds > kLongWait) check_unexpected(&flight.record);
        if (timeout > 0 && seconds > timeout) end_stuck_job(flight, seconds);
      }
    }
    remove(flight);
  }
  if (flight.error) std::rethrow_exception(flight.error);
}

double watchdog_timeout() {
  auto& timeout = state().timeout;
  if (timeout < 0) {
    timeout = 300;
    if (const char* text = std::getenv("TESSERA_TIMEOUT")) {
      char* end = nullptr;
      const double value = std::strtod(text, &end);
      if (end == text || *end != '\0' || !(value >= 0)) {
        throw UsageError(str("TESSERA_TIMEOUT: '", text,
                             "' is not a number of seconds. Use 300, say, or 0 to wait for ever."));
      }
      timeout = value;
    }
  }
  return timeout;
}

void set_comm_timeout(double seconds) { state().timeout = seconds; }

void check_unexpected(const Record* record) {
  if (dry_run()) return;
  const std::string message = message_without_receiver();
  if (message.empty()) return;
  throw CommError(str(record != nullptr ? record->str() : str("after call #", state().calls), ": ",
                      message,
                      " (the processes disagree on what they exchange). Run with "
                      "TESSERA_CHECKS=collective to find the first call that differs."));
}

void progress_all() {
  State& s = state();
  if (s.progressing) return;
  struct Guard {
    ~Guard() { state().progressing = false; }
  } const guard;
  s.progressing = true;
  advance_all();
  poll_control();
}

void poll() {
  State& s = state();
  if (!on_comm_thread()) return;
  if (s.active.empty() && (!mpi::active() || ++s.idle_polls % 32 != 0)) return;
  try {
    progress_all();
  } catch (const Error&) {
    // The next wait meets the same failure and may throw it.
  }
}

std::int64_t outstanding() { return static_cast<std::int64_t>(state().active.size()); }

void finish_flights() {
  auto& active = state().active;
  while (!active.empty()) {
    const Ref<Request::Flight> flight = active.back();
    wait_for(*flight, watchdog_timeout());
  }
}

void adopt_thread() { state().owner = std::this_thread::get_id(); }

bool on_comm_thread() {
  return state().owner.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

void check_thread(const char* op) {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id owner;
  if (state().owner.compare_exchange_strong(owner, self) || owner == self) return;
  throw UsageError(str(op,
                       ": called on a second thread (one thread per process communicates). Call it "
                       "on the thread that made the Runtime."));
}

void set_oversubscribed(bool value) { state().spins = value ? 15 : 50; }

std::string activity() {
  const State& s = state();
  if (s.awaited != nullptr) return "waits for " + s.awaited->record.str();
  if (s.calls == 0) return "computes; it has not communicated yet";
  return "computes; its last call was " + recent(s.calls).str();
}

std::vector<std::string> recent_calls() {
  std::vector<std::string> lines;
  const State& s = state();
  const std::uint64_t first = s.calls > kRecentCalls ? s.calls - kRecentCalls : 0;
  for (std::uint64_t k = first + 1; k <= s.calls; ++k) {
    lines.push_back(recent(k).str() + (recent(k).done ? "" : " (not done)"));
  }
  return lines;
}

std::string recent_calls_text(std::size_t most) {
  const std::vector<std::string> lines = recent_calls();
  std::string text;
  for (std::size_t k = lines.size() - std::min(most, lines.size()); k < lines.size(); ++k) {
    text += "    " + lines[k] + "\n";
  }
  return text;
}

CommStats comm_stats() { return state().stats; }
void reset_comm_stats() { state().stats = {}; }

/// Starts a call and books it.
class Starter {
 public:
  static Request start(Call call) {
    const char* op = name(call.kind);
    check_thread(op);
    check_job(op);
    State& s = state();
    call.sequence = s.calls + 1;
    if (checks_enabled()) check_call(call);
    if (call.sequence % kCallsPerLook == 0) check_unexpected(nullptr);
    s.calls = call.sequence;
    Record record(call);
    recent(call.sequence) = record;
    if (!dry_run()) {
      witness::note_call(record);
      ++s.stats.kinds[static_cast<std::size_t>(call.kind)].calls;
    }

    auto flight = make_ref<Request::Flight>();
    flight->record = std::move(record);
    flight->started = Clock::now();
    flight->counted = !dry_run();
    if (profile() != nullptr) flight->peers = peers_of(call);
    flight->operation = transport(call.info.device.kind).start(call);
    if (!flight->advance()) {
      flight->place = s.active.size();
      s.active.push_back(flight);
    } else if (flight->error) {
      std::rethrow_exception(flight->error);
    }
    return flight->finished ? Request() : Request(std::move(flight));
  }
};

Request start_call(Call call) { return Starter::start(std::move(call)); }

Request::Request() noexcept = default;
Request::Request(Request&&) noexcept = default;
Request::Request(Ref<Flight> flight) : flight_(std::move(flight)) {}

Request::~Request() {
  if (!flight_ || flight_->finished || !flight_->kept.empty()) return;
  try {
    wait();
  } catch (...) {
    // The job has failed and ends: whoever waits next is told.
  }
}

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    Request old(std::move(*this));
    flight_ = std::move(other.flight_);
  }
  return *this;
}

Request& Request::keep(Ref<const RefCounted> owner) {
  if (flight_ && !flight_->finished) flight_->kept.push_back(std::move(owner));
  return *this;
}

bool Request::test() {
  if (!flight_) return true;
  if (!flight_->finished) {
    progress_all();
    if (!flight_->finished) {
      check_wait(flight_->record.kind);
      return false;
    }
  }
  wait();
  return true;
}

void Request::wait() {
  if (!flight_) return;
  const Ref<Flight> flight = flight_;
  wait_for(*flight, watchdog_timeout());
  flight_ = nullptr;
}

void wait_all(std::span<Request> requests) {
  for (Request& request : requests) request.wait();
}

}  // namespace tessera::parallel
