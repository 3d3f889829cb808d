#pragma once

#include <chrono>
#include <exception>
#include <tessera/core/profile.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>
#include <vector>

namespace tessera::parallel {

using Clock = std::chrono::steady_clock;

/// What is kept of a call for reports.
struct Record {
  explicit Record(const Call& call);
  Record() = default;
  std::string str() const;

  std::uint64_t sequence = 0;
  std::int64_t amount =
      0;  ///< elements of a reduction, else bytes (both directions of an exchange)
  int root = 0;
  int peer = 0;
  int tag = 0;
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  bool done = false;
  Group group;
  CallInfo info;
};

/// The state of a call in flight behind a Request.
struct Request::Flight : RefCounted {
  /// Tests it and books it when done. Errors are kept for whoever waits.
  bool advance();

  Record record;
  Ref<Operation> operation;
  std::vector<Ref<const RefCounted>> kept;
  Clock::time_point started;
  double waited = 0;
  std::vector<ProfilePeer> peers;  // while a profile records
  std::exception_ptr error;
  bool finished = false;
  bool counted = true;    ///< those of the check mode and of a dry run are not
  std::size_t place = 0;  ///< in the list of active flights
};

/// Waits with test, poll, spin and yield; `timeout` in seconds, 0: for ever.
void wait_for(Request::Flight& flight, double timeout);
double watchdog_timeout();

/// All flights and control messages; throws only what MPI's failure makes it throw.
void progress_all();
/// `waits for X`, or `computes; its last call was X`.
std::string activity();
/// The last `most` calls, oldest first, indented lines.
std::string recent_calls_text(std::size_t most);
/// Waits for all calls in flight.
void finish_flights();

/// Makes this thread the one that communicates.
void adopt_thread();
bool on_comm_thread();
/// Throws UsageError on any other thread.
void check_thread(const char* op);
/// More processes than cores on this node.
void set_oversubscribed(bool value);

/// TESSERA_CHECKS=collective: all members compare the call before it starts. Throws CommError on
/// every one of them.
void check_call(const Call& call);
bool checks_enabled();

/// Throws CommError when the job has failed.
void check_job(const char* op);
/// The same for a call in flight, a moment after another process has failed: what had been sent
/// before may still arrive, so that a process that lags behind meets an error that all have by
/// itself.
void check_wait(CallKind kind);
/// Throws CommError where a message lies here that the call it belongs to did not ask for.
/// `record`: what this process waits for, null: nothing.
void check_unexpected(const Record* record);
void poll_control();
/// Reports a call that does not end and ends the job.
[[noreturn]] void end_stuck_job(const Request::Flight& flight, double seconds);

}  // namespace tessera::parallel
