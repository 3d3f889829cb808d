// ranks: none
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <tessera/core/error.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/failure.hpp>
#include <tessera/parallel/runtime.hpp>

#include "support/run_job.hpp"

using namespace tessera;
using namespace tessera::parallel;
using test::Outcome;
using test::run_job;

namespace {
bool stops_after_finalize = false;
}

// Tessera's call ends here: a process can be stopped when MPI, and the launcher with it, has let go
// of it.
extern "C" int PMPI_Finalize();
extern "C" int MPI_Finalize() {
  const int result = PMPI_Finalize();
  if (stops_after_finalize) ::raise(SIGSTOP);
  return result;
}

// Each test starts a job of its own: this program again, with one of the hidden cases below.
namespace {

void sum_of_all(std::int64_t n = 10) {
  std::vector<float> x(static_cast<std::size_t>(n), 1.0f);
  const Layout layout = Layout::replicated(Mesh::self(), {2, n});
  all_reduce(Group::world(), x.data(), n, DType::kFloat32, ReduceOp::kSum,
             {.op = "mean", .layout = layout})
      .wait();
}

// Process 1 returns after all others have left the calls before; a failure may stop those, too.
void let_process_1_be_last() {
  char x = 0;
  if (process().rank != 1) {
    isend(&x, 1, 1, 0).wait();
  } else {
    for (int p = 0; p < process().count; ++p) {
      if (p != 1) irecv(&x, 1, p, 0).wait();
    }
  }
}

}  // namespace

TEST_CASE("job: one process throws", "[.]") {
  std::exit(Runtime::guard([] {
    sum_of_all();
    let_process_1_be_last();
    if (process().rank == 1) throw IoError("read: disk full. Make room.");
    try {
      sum_of_all();
    } catch (const CommError& error) {
      std::printf("process %d caught: %s\n", process().rank, error.what());
      // Poisoned: nothing works any more.
      for (int i = 0; i < 2; ++i) {
        bool refused = false;
        try {
          sum_of_all();
        } catch (const CommError&) {
          refused = true;
        }
        std::printf("process %d %s\n", process().rank, refused ? "stays poisoned" : "goes on");
      }
      throw;
    }
  }));
}

TEST_CASE("one process that throws stops all, with one report") {
  for (const int processes : {2, 3, 4}) {
    const Outcome job = run_job(processes, "one process throws");
    INFO(job.text);
    CHECK(job.code == 74);  // that of an IoError
    CHECK(job.count("tessera: the job has failed") == 1);
    CHECK(job.count(str("  process 1 of ", processes, ": read: disk full. Make room.")) == 1);
    CHECK(job.says("    it computes; its last call was receive #"));
    CHECK(
        job.says("process 0 caught: all_reduce: the job has failed (process 1: read: disk full. "
                 "Make room.)"));
    CHECK(job.count("process 0 stays poisoned") == 2);
    CHECK_FALSE(job.says("goes on"));
  }
}

TEST_CASE("job: all throw alike", "[.]") {
  std::exit(Runtime::guard([] {
    sum_of_all();
    throw ShapeError("conv: kernel 5 does not fit.");
  }));
}

TEST_CASE("an error that all processes throw is reported once") {
  const Outcome job = run_job(4, "all throw alike");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.count("tessera: conv: kernel 5 does not fit.\n") == 1);
  CHECK(job.count("kernel") == 1);
  CHECK_FALSE(job.says("Abort"));
}

TEST_CASE("job: escapes", "[.]") {
  // What an exception that leaves main() does: no handler, so std::terminate.
  const std::function<void()> program = [] {
    sum_of_all();
    if (process().rank == 2) throw OutOfMemory("allocate: nothing left.");
    sum_of_all();
  };
  const auto body = [&]() noexcept { program(); };
  body();
}

TEST_CASE("an exception without a handler does the same") {
  const Outcome job = run_job(3, "escapes");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.count("  process 2 of 3: allocate: nothing left.") == 1);
  CHECK(job.count("tessera: the job has failed") == 1);
}

TEST_CASE("job: fail_job and return", "[.]") {
  if (process().rank == 0) fail_job("the user's own reason");
  CHECK((process().rank != 0 || job_failed()));
}

TEST_CASE("a failed job ends as such when the Runtime goes") {
  const Outcome job = run_job(3, "fail_job and return");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.count("  process 0 of 3: the user's own reason") == 1);
}

TEST_CASE("job: fails while others compute", "[.]") {
  std::exit(Runtime::guard([] {
    sum_of_all();
    let_process_1_be_last();
    if (process().rank == 1) throw Error("early");
    // Polls as a kernel does; must not throw here, must stop at the next call.
    for (int i = 0; i < 200000 && !job_failed(); ++i) poll();
    std::printf("process %d computed\n", process().rank);
    sum_of_all();
  }));
}

TEST_CASE("a failure during others' computation reaches them") {
  const Outcome job = run_job(3, "fails while others compute");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.says("process 0 computed"));
  CHECK(job.count("  process 1 of 3: early") == 1);
}

TEST_CASE("job: one does not come", "[.]") {
  sum_of_all();
  if (process().rank == 1) {
    ::sleep(30);
  } else {
    sum_of_all(7);
  }
}

TEST_CASE("the watchdog names the call, the layout and who has not arrived") {
  for (const int processes : {2, 4}) {
    const Outcome job = run_job(processes, "one does not come", "TESSERA_TIMEOUT=1.5");
    INFO(job.text);
    CHECK(job.code == kFailureExitCode);
    CHECK(job.count("tessera: no progress for") == 1);
    CHECK(job.says("process 0 waits for all_reduce #2 sum f32 x 7 in {0"));
    CHECK(job.says("for mean [2, 7]"));
    CHECK(job.says("not arrived: process 1\n"));
    CHECK(job.says("process 1 does not answer"));
    if (processes > 2) CHECK(job.says("process 2 waits for all_reduce #2"));
    CHECK(job.says("last calls of process 0:\n    all_reduce #1"));
  }
}

TEST_CASE("job: one is somewhere else", "[.]") {
  sum_of_all();
  if (process().rank == 0) {
    float x = 0;
    irecv(&x, 4, 1, 7, {.op = "lost message"}).wait();
  } else {
    barrier(Group::world()).wait();
  }
}

TEST_CASE("the watchdog shows what each process waits for") {
  const Outcome job = run_job(2, "one is somewhere else", "TESSERA_TIMEOUT=1");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.count("tessera: no progress for") == 1);
  CHECK(job.says("receive #2 of 4 bytes from process 1 with tag 7 for lost message"));
  CHECK(job.says("barrier #2 in {0, 1}"));
}

TEST_CASE("job: one is done early", "[.]") {
  if (process().rank == 0) {
    // Longer than the limit: who is done waits without one.
    ::sleep(2);
  }
}

TEST_CASE("the end of the program has no watchdog") {
  const Outcome job = run_job(2, "one is done early", "TESSERA_TIMEOUT=0.5");
  INFO(job.text);
  CHECK(job.code == 0);
}

TEST_CASE("job: one stops at the end", "[.]") {
  Runtime::finish();
  if (process().rank == 0) ::raise(SIGSTOP);
}

TEST_CASE("the end of a program that has finished its work has a watchdog") {
  const Outcome job = run_job(2, "one stops at the end", "TESSERA_TIMEOUT=1");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.says("not arrived: process 0\n"));
}

TEST_CASE("job: one stops behind the end", "[.]") {
  if (process().rank == 0) std::atexit([] { ::raise(SIGSTOP); });
}

TEST_CASE("a process that is stopped when all is done does not keep the job") {
  const Outcome job = run_job(2, "one stops behind the end", "TESSERA_TIMEOUT=1");
  INFO(job.text);
  CHECK(job.code != 0);
  CHECK(job.says("tessera: the job is done, but process 0 is stopped; it is ended\n"));
}

TEST_CASE("job: wrong length", "[.]") {
  std::exit(Runtime::guard([] {
    std::vector<char> x(100);
    if (process().rank == 0) {
      isend(x.data(), std::getenv("LONGER") != nullptr ? 20 : 5, 1, 0).wait();
      barrier(Group::world()).wait();
    } else {
      irecv(x.data(), 10, 0, 0).wait();
      barrier(Group::world()).wait();
    }
  }));
}

TEST_CASE("a message of another length than expected is an error") {
  const Outcome shorter = run_job(2, "wrong length");
  INFO(shorter.text);
  CHECK(shorter.code == kFailureExitCode);
  CHECK(shorter.count(
            "process 1 of 2: receive: the message from process 0 has 5 instead of the 10 bytes") ==
        1);
  const Outcome longer = run_job(2, "wrong length", "LONGER=1");
  INFO(longer.text);
  CHECK(longer.code == kFailureExitCode);
  CHECK(longer.count(
            "process 1 of 2: receive: the message from process 0 is longer than the 10 bytes") ==
        1);
}

TEST_CASE("job: checks from the environment", "[.]") {
  std::exit(Runtime::guard([] { sum_of_all(process().rank == 1 ? 11 : 10); }));
}

TEST_CASE("TESSERA_CHECKS=collective finds calls that differ") {
  const Outcome job = run_job(3, "checks from the environment", "TESSERA_CHECKS=collective");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.says(
      "all_reduce: processes disagree (process 0 calls all_reduce sum f32 x 10 (call 1 in "
      "its group) "
      "for mean [2, 10] as its call #1, process 1 calls all_reduce sum f32 x 11 (call 1 in "
      "its group))"));
}

TEST_CASE("job: a killed process", "[.]") {
  sum_of_all();
  if (process().rank == 1) {
    const char* const how = std::getenv("HOW");
    if (*how == 'e') ::_exit(3);
    ::signal(SIGSEGV, SIG_DFL);  // not the test framework's
    ::kill(::getpid(), *how == 'k' ? SIGKILL : SIGSEGV);
  }
  sum_of_all();
}

TEST_CASE("a process that ends on its own is reported by its witness") {
  const std::string where =
      " while it computed; its last call was all_reduce #1 sum f32 x 10 for mean.";
  for (const auto& [how, what] :
       {std::pair("kill", "ended by signal 9 (Killed)"),
        std::pair("segmentation", "ended by signal 11 (Segmentation fault)"),
        std::pair("exit", "exited with code 3 before the end of the job")}) {
    const Outcome job = run_job(3, "a killed process", str("TESSERA_TIMEOUT=20 HOW=", how));
    INFO(job.text);
    CHECK(job.code == kFailureExitCode);
    CHECK(job.count("tessera: the job has failed\n") == 1);
    CHECK(job.count("process ") == 1);
    // On a busy machine the launcher may have asked for the status before the witness could.
    CHECK((job.says(str("  process 1 of 3: ", what, where)) ||
           job.says("  process 1 of 3: was killed, or crashed," + where)));
  }
}

TEST_CASE("job: killed while it waits", "[.]") {
  sum_of_all();
  if (process().rank == 1) {
    // A process that was forked kills it a moment later.
    const pid_t self = ::getpid();
    if (::fork() == 0) {
      ::usleep(300'000);
      ::kill(self, SIGKILL);
      ::_exit(0);
    }
    sum_of_all(7);
  } else {
    ::sleep(30);
  }
}

TEST_CASE("the report of a witness says what the process waited for") {
  const Outcome job = run_job(2, "killed while it waits");
  INFO(job.text);
  CHECK(job.code == kFailureExitCode);
  CHECK(job.says("  process 1 of 2: "));
  CHECK(job.count(" while it waited for all_reduce #2 sum f32 x 7 for mean.") == 1);
}

TEST_CASE("job: own children", "[.]") {
  sum_of_all();
  const int status = std::system("exit 7");
  CHECK(WEXITSTATUS(status) == 7);
  sum_of_all();
}

TEST_CASE("the witness leaves the user's own child processes alone") {
  const Outcome job = run_job(2, "own children");
  INFO(job.text);
  CHECK(job.code == 0);
  CHECK_FALSE(job.says("failed"));
}

TEST_CASE("a wrong TESSERA_TIMEOUT is named") {
  const Outcome job = run_job(2, "all throw alike", "TESSERA_TIMEOUT=soon");
  INFO(job.text);
  CHECK(job.code == 2);
  CHECK(1 == job.count("TESSERA_TIMEOUT: 'soon' is not a number of seconds"));
}

TEST_CASE("job: stopped after its last words", "[.]") {
  sum_of_all();
  stops_after_finalize = process().rank == 1;
}

TEST_CASE("a process that is stopped while the job ends does not keep it") {
  const Outcome job = run_job(2, "stopped after its last words", "TESSERA_TIMEOUT=1");
  INFO(job.text);
  CHECK(job.code != 0);
  CHECK(job.says("one of them is stopped or gone"));
}
