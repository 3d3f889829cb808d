#include <cstdlib>
#include <exception>
#include <new>
#include <tessera/core/error.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/failure.hpp>
#include <tessera/parallel/launch.hpp>
#include <tessera/parallel/runtime.hpp>

#include "affinity.hpp"
#include "flight.hpp"
#include "mpi.hpp"
#include "remote_failure.hpp"
#include "witness.hpp"

namespace tessera {

namespace {

bool exists = false;
bool finished = false;
std::terminate_handler previous_terminate = nullptr;

// Makes the exception that is being handled this process's failure, unless it only repeats
// another's.
void fail_with(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const parallel::RemoteFailure&) {
  } catch (const std::bad_alloc&) {
    parallel::fail_job(
        "memory: the system has none left (std::bad_alloc). Use a smaller problem, or more "
        "processes "
        "on more nodes.");
  } catch (const std::exception& error) {
    parallel::fail_job(error.what(), parallel::exit_code(error));
  } catch (...) {
    parallel::fail_job("an exception that is not a std::exception");
  }
}

void on_terminate() {
  const std::exception_ptr exception = std::current_exception();
  if (exception && parallel::on_comm_thread()) {
    fail_with(exception);
    parallel::end_failed_job();
  }
  if (previous_terminate != nullptr) previous_terminate();
  std::abort();
}

std::uint64_t seed_from_environment(std::uint64_t otherwise) {
  const char* text = std::getenv("TESSERA_SEED");
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 0);
  if (end == text || *end != '\0' || *text == '-') {
    throw UsageError(str("TESSERA_SEED: '", text, "' is not a number. Use 0 to 2^64 - 1."));
  }
  return value;
}

}  // namespace

Runtime::Runtime(int argc, char** argv, const RuntimeOptions& options)
    : exceptions_(std::uncaught_exceptions()) {
  if (exists) {
    throw UsageError("runtime: there is one already. Make one Runtime per program, in main().");
  }
  const parallel::mpi::Started started = parallel::mpi::start(&argc, &argv);
  exists = true;
  set_process(started.process);
  parallel::witness::set_running();
  local_size_ = started.local.processes;
  parallel::set_local_job(started.local);
  parallel::adopt_thread();
  parallel::set_oversubscribed(local_size_ > parallel::count(started.local.cores));
  if (started.process.count > 1) set_progress_function(&parallel::poll);
  previous_terminate = std::set_terminate(&on_terminate);
  try {
    seed_ = seed_from_environment(options.seed);
    parallel::watchdog_timeout();
    MemoryPool::of({});
    if (options.threads > 0) {
      set_thread_count(options.threads);
    } else if (std::getenv("TESSERA_THREADS") == nullptr) {
      set_thread_count(
          parallel::default_threads({.local_processes = local_size_,
                                     .cores = parallel::count(parallel::own_cores()),
                                     .node_cores = parallel::count(started.local.cores),
                                     .cpu_quota = parallel::cpu_quota()}));
    } else {
      thread_count();
    }
  } catch (const Error&) {
    fail_with_current_exception();
  }
}

Runtime::~Runtime() {
  if (parallel::job_failed()) parallel::end_failed_job();
  if (size() > 1) {
    if (std::uncaught_exceptions() > exceptions_) {
      parallel::fail_job(
          "an exception left the scope of the Runtime. Catch it inside, or let it leave main(), to "
          "see its text.");
      parallel::end_failed_job();
    }
    try {
      // Whoever is done early may wait for the others' work.
      if (!finished) parallel::set_comm_timeout(0);
      parallel::finish_flights();
      parallel::barrier(parallel::Group::world(), {.op = "end of the program"}).wait();
      parallel::check_unexpected(nullptr);
    } catch (...) {
      fail_with(std::current_exception());
      parallel::end_failed_job();
    }
  }
  set_progress_function(nullptr);
  std::set_terminate(previous_terminate);
  parallel::witness::set_ending();
  parallel::mpi::stop();
  parallel::witness::stop();
  set_process({});
}

void Runtime::finish() {
  parallel::barrier(parallel::Group::world(), {.op = "end of the work"}).wait();
  parallel::check_unexpected(nullptr);
  finished = true;
}

std::string Runtime::mpi_version() { return exists ? parallel::mpi::version() : ""; }

void Runtime::fail_with_current_exception() {
  fail_with(std::current_exception());
  parallel::end_failed_job();
}

}  // namespace tessera
