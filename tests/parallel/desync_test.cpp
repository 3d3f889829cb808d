// ranks: none
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <tessera/core/error.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/failure.hpp>
#include <tessera/parallel/runtime.hpp>

#include "support/run_job.hpp"

// Every way in which one process can call something else than the others: each ends the job with a
// report that says what differs. Each test starts a job of its own: this program again, with one of
// the hidden cases.
using namespace tessera;
using namespace tessera::parallel;
using test::Outcome;
using test::run_job;

namespace {

constexpr const char* kLimit = "TESSERA_TIMEOUT=5";

CallInfo info(const char* op, std::int64_t n) {
  return {.op = op, .layout = Layout::replicated(Mesh::self(), {2, n})};
}

void sum(std::int64_t n,
         DType dtype = DType::kFloat32,
         ReduceOp reduce = ReduceOp::kSum,
         const char* op = "mean") {
  std::vector<double> x(static_cast<std::size_t>(n), 1.0);
  all_reduce(Group::world(), x.data(), n, dtype, reduce, info(op, n)).wait();
}
void from(int root) {
  std::vector<char> x(40);
  broadcast(Group::world(), x.data(), 40, root, info("weights", 20)).wait();
}

/// Two calls that all make, then `odd` on process 1 and `usual` on the others, then calls that all
/// make again.
void job(const std::function<void()>& usual, const std::function<void()>& odd) {
  CHECK(0 == Runtime::guard([&] {
          sum(10);
          from(0);
          if (process().rank == 1) {
            odd();
          } else {
            usual();
          }
          for (int i = 0; i < 100; ++i) {
            sum(20);
            from(0);
          }
          std::printf("process %d is done\n", process().rank);
        }));
}

struct Run {
  Outcome outcome;
  double seconds;
};
Run timed(int processes, const std::string& scenario, const std::string& environment) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = run_job(processes, scenario, environment);
  return {outcome, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
}

/// The job ends with one report, in the time that the task allows: the limit of 5 s and the end of
/// the job. (Far more than is needed, where it is noticed at once.)
void check_ended(const Run& run) {
  CHECK(run.outcome.code == kFailureExitCode);
  CHECK(run.seconds < 15.0);
  CHECK(run.outcome.count("tessera: ") == 1);
}

/// In the check mode both calls are named, with sizes and number; nothing has to be waited for.
void check_both_named(const std::string& scenario,
                      const std::string& usual,
                      const std::string& odd) {
  for (const int processes : {2, 3}) {
    const Run run = timed(processes, scenario, str(kLimit, " TESSERA_CHECKS=collective"));
    INFO(run.outcome.text);
    check_ended(run);
    CHECK(run.outcome.says(": processes disagree (process "));
    CHECK(run.outcome.says(usual));
    CHECK(run.outcome.says(odd));
    CHECK(run.outcome.says("as its call #3"));
    CHECK_FALSE(run.outcome.says("no progress"));
    CHECK_FALSE(run.outcome.says("is done"));
  }
}

/// Without it, some process says in which call it met what it had not asked for: each word, or one
/// of those that `|` parts, where either process may be the first to notice.
void check_noticed(const std::string& scenario, const std::vector<std::string>& words) {
  const auto says_one_of = [](const Outcome& outcome, const std::string& word) {
    std::istringstream in(word);
    for (std::string one; std::getline(in, one, '|');)
      if (outcome.says(one)) return true;
    return false;
  };
  for (const int processes : {2, 3}) {
    const Run run = timed(processes, scenario, kLimit);
    INFO(run.outcome.text);
    check_ended(run);
    for (const std::string& word : words) {
      INFO(word);
      CHECK(says_one_of(run.outcome, word));
    }
    CHECK(run.outcome.says("#"));
  }
}

}  // namespace

TEST_CASE("job: other op", "[.]") {
  job([] { sum(10); }, [] { sum(10, DType::kFloat32, ReduceOp::kMax); });
}
TEST_CASE("another op is named") {
  check_both_named("other op", "all_reduce sum f32 x 10", "all_reduce max f32 x 10");
  check_noticed("other op", {"all_reduce #3",
                             "all_reduce max f32, call 3 between it and process|"
                             "all_reduce sum f32, call 3 between it and process",
                             "for mean [2, 10]"});
}

TEST_CASE("job: other kind", "[.]") {
  job([] { sum(10); }, [] { barrier(Group::world()).wait(); });
}
TEST_CASE("a collective of another kind is named") {
  check_both_named("other kind", "all_reduce sum f32 x 10", "barrier");
  check_noticed("other kind", {"#3", ", call 3 between it and process"});
}

TEST_CASE("job: other order", "[.]") {
  const auto first = [] { sum(10, DType::kFloat32, ReduceOp::kSum, "loss"); };
  const auto second = [] { sum(10, DType::kFloat64, ReduceOp::kSum, "norm"); };
  job(
      [=] {
        first();
        second();
      },
      [=] {
        second();
        first();
      });
}
TEST_CASE("another order is named") {
  check_both_named("other order", "all_reduce sum f32 x 10", "all_reduce sum f64 x 10");
  check_noticed("other order", {"#3", "call 3 between it and process"});
}

TEST_CASE("job: other count", "[.]") {
  job([] { sum(10); }, [] { sum(11); });
}
TEST_CASE("another count is named") {
  check_both_named("other count", "all_reduce sum f32 x 10", "all_reduce sum f32 x 11");
  check_noticed("other count", {"bytes expected", "all_reduce #3 sum f32 x 1"});
}

TEST_CASE("job: other dtype", "[.]") {
  // The same number of bytes.
  job([] { sum(10, DType::kInt64); }, [] { sum(10, DType::kFloat64); });
}
TEST_CASE("another element type is named") {
  check_both_named("other dtype", "all_reduce sum i64 x 10", "all_reduce sum f64 x 10");
  check_noticed("other dtype", {"all_reduce #3 sum", "call 3 between it and process"});
}

TEST_CASE("job: other root", "[.]") {
  job([] { from(0); }, [] { from(1); });
}
TEST_CASE("another root is named") {
  check_both_named("other root", "broadcast of 40 bytes from rank 0",
                   "broadcast of 40 bytes from rank 1");
  check_noticed("other root", {"bytes of its broadcast, call 3 between it and process"});
}

TEST_CASE("job: missing", "[.]") {
  CHECK(0 == Runtime::guard([&] {
          sum(10);
          if (process().rank != 1) sum(7);
          // Process 1 has left a loop early and waits for the others at the end.
        }));
}
TEST_CASE("a process that leaves out a call is named") {
  for (const char* checks : {"", " TESSERA_CHECKS=collective"}) {
    for (const int processes : {2, 3}) {
      const Run run = timed(processes, "missing", str(kLimit, checks));
      INFO(run.outcome.text);
      check_ended(run);
      CHECK(run.outcome.says("all_reduce"));
      CHECK(run.outcome.says("barrier"));
      if (*checks != '\0') {
        CHECK(run.outcome.says("all_reduce sum f32 x 7 (call 2 in its group)"));
        CHECK_FALSE(run.outcome.says("no progress"));
      }
    }
  }
}

TEST_CASE("job: throws", "[.]") {
  job([] { sum(10); }, [] { throw IoError("sample 17: cannot be read."); });
}
TEST_CASE("a process that throws is named") {
  for (const char* checks : {"", " TESSERA_CHECKS=collective"}) {
    for (const int processes : {2, 3}) {
      const Run run = timed(processes, "throws", str(kLimit, checks));
      INFO(run.outcome.text);
      CHECK(run.outcome.code == 74);
      CHECK(run.seconds < 15.0);
      CHECK(run.outcome.says(str("process 1 of ", processes, ": sample 17: cannot be read.")));
      CHECK(run.outcome.count("tessera: ") == 1);
      CHECK_FALSE(run.outcome.says("no progress"));
    }
  }
}

TEST_CASE("job: stalls", "[.]") {
  job([] { sum(10); }, [] { ::sleep(60); });
}
TEST_CASE("a process that stalls is named, with the call that waits for it") {
  for (const char* checks : {"", " TESSERA_CHECKS=collective"}) {
    const Run run = timed(3, "stalls", str("TESSERA_TIMEOUT=2", checks));
    INFO(run.outcome.text);
    check_ended(run);
    CHECK(run.outcome.says("no progress for"));
    CHECK(run.outcome.says("all_reduce #3 sum f32 x 10"));
    CHECK(run.outcome.says("for mean [2, 10]"));
    CHECK(run.outcome.says("not arrived: process 1\n"));
    CHECK(run.outcome.says("process 1 does not answer"));
  }
}

TEST_CASE("job: alike", "[.]") {
  job([] { sum(10); }, [] { sum(10); });
}
TEST_CASE("processes that agree are left alone") {
  for (const char* checks : {"", " TESSERA_CHECKS=collective"}) {
    const Run run = timed(3, "alike", str(kLimit, checks));
    INFO(run.outcome.text);
    CHECK(run.outcome.code == 0);
    CHECK(run.outcome.count("is done") == 3);
  }
}
