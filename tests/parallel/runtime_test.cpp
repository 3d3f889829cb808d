// ranks: 1 2 3
#include <catch2/catch.hpp>
#include <cstdlib>
#include <tessera/core/error.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/failure.hpp>
#include <tessera/parallel/runtime.hpp>

#include "support/ranks.hpp"

using namespace tessera;
using namespace tessera::parallel;

namespace {

// Before main() there is no Runtime: each process is a job of its own.
struct BeforeMain {
  BeforeMain() {
    rank = process().rank;
    count = process().count;
    all_reduce(Group::world(), &sum, 1, DType::kFloat32).wait();
    Request receive = irecv(&received, 4, 0, 3);
    isend(&sum, 4, 0, 3).wait();
    receive.wait();
    const std::vector<std::int64_t> bytes{4};
    all_to_all(group, &sum, bytes, &exchanged, bytes).wait();
    barrier(group).wait();
    poll();
    had_version = !Runtime::mpi_version().empty();
  }
  Group group;
  int rank = -1;
  int count = -1;
  float sum = 2.5f;
  float received = 0;
  float exchanged = 0;
  bool had_version = true;
};
const BeforeMain before_main;

}  // namespace

TEST_CASE("without a Runtime a program is a job of one process") {
  CHECK(before_main.rank == 0);
  CHECK(before_main.count == 1);
  CHECK(before_main.sum == 2.5f);
  CHECK(before_main.received == 2.5f);
  CHECK(before_main.exchanged == 2.5f);
  CHECK_FALSE(before_main.had_version);
  // A group made then still means process 0.
  CHECK(before_main.group.rank() == (process().rank == 0 ? 0 : -1));
  CHECK(before_main.group.processes() == std::vector<int>{0});
  CHECK(Group().processes() == std::vector<int>{process().rank});
}

TEST_CASE("the Runtime sets the process and the MPI library") {
  CHECK(process().rank == test::launch_rank());
  CHECK(process().count == test::launch_size());
  CHECK(Runtime::mpi_version().find("MPICH") == 0);
  CHECK(thread_count() >= 1);
  const Mesh mesh = Mesh::world({{"data", process().count}});
  CHECK(mesh.rank() == process().rank);
}

TEST_CASE("there is one Runtime") {
  CHECK_THROWS_AS(Runtime(0, nullptr), UsageError);
  CHECK_FALSE(job_failed());
  float x = 1;
  all_reduce(Group::world(), &x, 1, DType::kFloat32).wait();
  CHECK(x == static_cast<float>(process().count));
}

TEST_CASE("guard hands on what its function returns") {
  CHECK(Runtime::guard([] { return 5; }) == 5);
  CHECK(Runtime::guard([] {}) == 0);
}

TEST_CASE("transports exist for the devices of the build") {
  CHECK_NOTHROW(transport(Device::kCpu));
}
