// ranks: 1 2
#include <sched.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tessera/parallel/launch.hpp>

#include "affinity.hpp"

using namespace tessera;
using namespace tessera::parallel;

namespace {

/// A node with nothing wrong: 4 processes with 4 threads on 16 cores of their own.
LaunchFacts healthy() {
  return {.processes = 8,
          .local_processes = 4,
          .threads = 4,
          .cores = 4,
          .core_list = "0-3",
          .node_cores = 16,
          .machine_cores = 16,
          .memory = std::int64_t{64} << 30,
          .shared_memory_free = std::int64_t{1} << 30,
          .mpi = "MPICH Version: 4.0.2",
          .mpiexec = "/usr/bin/mpiexec",
          .mpiexec_family = "MPICH"};
}

/// The one thing that is wrong, as problem and advice; "" where nothing is, or more.
std::string only_advice(const LaunchFacts& facts) {
  const std::vector<LaunchAdvice> all = advise(facts);
  for (const LaunchAdvice& a : all) UNSCOPED_INFO(a.problem << ": " << a.advice);
  CHECK(all.size() == 1);
  return all.size() == 1 ? all[0].problem + ": " + all[0].advice : "";
}

using Catch::Contains;

class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("tessera-launch-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string str() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("a healthy node gets no advice") { CHECK(advise(healthy()).empty()); }

TEST_CASE("processes that do not find each other") {
  LaunchFacts f = healthy();
  f.processes = 1;
  f.local_processes = 1;
  f.environment = {{"OMPI_COMM_WORLD_SIZE", "8"}};
  CHECK_THAT(only_advice(f),
             Contains("Open MPI's mpiexec has started 8 processes") && Contains("mpiexec.mpich"));
  f.environment = {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_JOB_ID", "3"}};
  CHECK_THAT(only_advice(f), Contains("srun has started 8 processes") && Contains("--mpi=pmi2"));
  f.environment = {{"PMI_SIZE", "3"}};
  CHECK_THAT(only_advice(f), Contains("a launcher has started 3 processes"));
  f.environment = {{"PMI_SIZE", "1"}};
  CHECK(advise(f).empty());
  f = healthy();
  f.environment = {{"SLURM_STEP_NUM_TASKS", "8"}};
  CHECK(advise(f).empty());
}

TEST_CASE("another MPI's mpiexec comes first in PATH") {
  LaunchFacts f = healthy();
  f.mpiexec_family = "Open MPI";
  CHECK_THAT(only_advice(f), Contains("/usr/bin/mpiexec belongs to Open MPI"));
  f.mpiexec_family = "";  // not known: no word
  CHECK(advise(f).empty());
}

TEST_CASE("cores, threads and binding") {
  LaunchFacts f = healthy();
  f.cores = 1;
  f.core_list = "2";
  CHECK_THAT(only_advice(f), Contains("4 threads per process are bound to 1 core (2)") &&
                                 Contains("mpiexec -bind-to core:4"));
  f = healthy();
  f.threads = 5;
  f.cores = 16;
  CHECK_THAT(only_advice(f),
             Contains("4 processes with 5 threads share 16 cores: Set TESSERA_THREADS=4"));
  f = healthy();
  f.threads = 20;
  f.cores = 16;
  CHECK_THAT(only_advice(f), Contains("20 threads") && Contains("TESSERA_THREADS=4"));
  f = healthy();
  f.threads = 1;
  f.cores = 1;
  f.node_cores = 1;
  CHECK_THAT(only_advice(f),
             Contains("4 processes take turns on 1 core of 16: they are bound to the same ones"));
  f.machine_cores = 1;
  CHECK_THAT(only_advice(f), Contains("at most one process per core"));
  f = healthy();
  f.cpu_quota = 8;
  CHECK_THAT(only_advice(f), Contains("may use 8 cores at once, 16 threads run"));
  f = healthy();
  f.cores = 16;
  f.environment = {{"OMP_PROC_BIND", "close"}};
  CHECK_THAT(only_advice(f), Contains("OMP_PROC_BIND=close"));
  f.environment = {{"OMP_PROC_BIND", "false"}};
  CHECK(advise(f).empty());
  f = healthy();  // bound processes may bind their threads
  f.environment = {{"OMP_PROC_BIND", "close"}};
  CHECK(advise(f).empty());
}

TEST_CASE("memory") {
  LaunchFacts f = healthy();
  f.shared_memory_free = 64 << 20;
  CHECK_THAT(only_advice(f), Contains("/dev/shm has") && Contains("--shm-size"));
  f.shared_memory_free = -1;
  CHECK_THAT(only_advice(f), Contains("no /dev/shm"));
  f = healthy();
  f.container_limit = std::int64_t{10} << 30;
  CHECK_THAT(only_advice(f), Contains("TESSERA_MEMORY_LIMIT=2304MiB"));
  f.pool_limit = std::int64_t{2} << 30;
  CHECK(advise(f).empty());
  f.pool_limit = std::int64_t{3} << 30;
  CHECK_THAT(only_advice(f), Contains("for 4 processes is more than the"));
}

TEST_CASE("a GPU without its driver; no limit of waiting") {
  LaunchFacts f = healthy();
  f.gpu = true;
  CHECK_THAT(only_advice(f), Contains("driver cannot be reached"));
  f.gpu_driver = true;
  CHECK(advise(f).empty());
  f.environment = {{"TESSERA_TIMEOUT", "0"}};
  CHECK_THAT(only_advice(f), Contains("waits for ever"));
}

TEST_CASE("threads where nothing is said") {
  const auto threads = [](int local, int own, int node, double quota = 0) {
    return default_threads(
        {.local_processes = local, .cores = own, .node_cores = node, .cpu_quota = quota});
  };
  CHECK(threads(1, 16, 16) == 16);
  CHECK(threads(4, 16, 16) == 4);  // not bound
  CHECK(threads(4, 4, 16) == 4);   // each bound to its own four
  CHECK(threads(4, 1, 16) == 1);   // bound to one
  CHECK(threads(4, 4, 4) == 1);    // all bound to the same four
  CHECK(threads(8, 2, 2) == 1);
  CHECK(threads(1, 64, 64, 2) == 2);
  CHECK(threads(2, 64, 64, 2) == 1);
  CHECK(threads(4, 64, 64, 2) == 1);
}

TEST_CASE("the quotas of a container, of both versions of control groups") {
  const TemporaryFolder at;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(at / name).parent_path());
    std::ofstream(at / name) << text << '\n';
  };
  CHECK(cpu_quota(at.str()) == 0);
  CHECK(memory_quota(at.str()) == 0);
  write("cpu/cpu.cfs_quota_us", "-1");
  write("cpu/cpu.cfs_period_us", "100000");
  write("memory/memory.limit_in_bytes", "9223372036854771712");
  CHECK(cpu_quota(at.str()) == 0);
  CHECK(memory_quota(at.str()) == 0);
  write("cpu/cpu.cfs_quota_us", "250000");
  write("memory/memory.limit_in_bytes", "1073741824");
  CHECK(cpu_quota(at.str()) == 2.5);
  CHECK(memory_quota(at.str()) == 1073741824);
  write("cpu.max", "max 100000");
  write("memory.max", "max");
  CHECK(cpu_quota(at.str()) == 0);
  CHECK(memory_quota(at.str()) == 0);
  write("cpu.max", "150000 100000");
  write("memory.max", "2147483648");
  CHECK(cpu_quota(at.str()) == 1.5);
  CHECK(memory_quota(at.str()) == 2147483648);
}

TEST_CASE("the facts of this process") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  CHECK(launch_facts(false).cores == CPU_COUNT(&before));
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  const LaunchFacts bound = launch_facts(false);
  REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
  CHECK(bound.cores == 1);
  CHECK(bound.core_list == std::to_string(core));
  CHECK(bound.machine_cores >= CPU_COUNT(&before));
  CHECK(bound.memory > 0);

  const TemporaryFolder at;
  const std::string path = std::getenv("PATH");
  for (const auto& [says, family] :
       {std::pair("mpiexec (OpenRTE) 4.1.4", "Open MPI"),
        std::pair("Intel(R) MPI Library for Linux", "Intel MPI"),
        std::pair("HYDRA build details:", "MPICH"), std::pair("something else", "")}) {
    std::ofstream(at / "mpiexec") << "#!/bin/sh\necho '" << says << "'\n";
    std::filesystem::permissions(at / "mpiexec", std::filesystem::perms::owner_all);
    setenv("PATH", (at.str() + ":" + path).c_str(), 1);
    const LaunchFacts f = launch_facts();
    setenv("PATH", path.c_str(), 1);
    CHECK(f.mpiexec == at / "mpiexec");
    CHECK(f.mpiexec_family == family);
  }
}

TEST_CASE("lists of cores") {
  CHECK(text_of({0b1}) == "0");
  CHECK(text_of({0b101111}) == "0-3, 5");
  CHECK(text_of({std::uint64_t{1} << 63, 0b11}) == "63-65");
  CHECK(text_of({0b110}) == "1, 2");
  CHECK(count({0b101111, 1}) == 6);
}
