// ranks: none
// `tessera info` as a doctor: what is wrong with the launch, by faked environments.
#include <sched.h>

#include "program.hpp"

namespace tessera::test {
namespace {

/// `tessera info` with these variables set.
Outcome info(const TemporaryFolder& at,
             int ranks,
             const std::vector<std::pair<std::string, std::string>>& variables = {},
             const std::function<void()>& more = {}) {
  return run(at, command(ranks, {"info"}), [&] {
    for (const char* name : {"OMP_PROC_BIND", "TESSERA_TIMEOUT", "OMPI_COMM_WORLD_SIZE"})
      unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    if (more) more();
  });
}

void bind_to_one_core() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  int core = 0;
  while (!CPU_ISSET(core, &set)) ++core;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

TEST_CASE("info shows the machine") {
  const TemporaryFolder at;
  const Outcome o = info(at, 2, {{"TESSERA_THREADS", "1"}});
  INFO(o.output);
  CHECK(o.code == 0);
  CHECK(o.says("processes  2\n"));
  CHECK(o.says("cores      "));
  CHECK(o.says("/dev/shm   "));
  CHECK(o.says("MPI        MPICH"));
  CHECK(o.says("mpiexec    "));
  CHECK(o.says("GPU        "));
}

TEST_CASE("info says what is wrong and what to do") {
  const TemporaryFolder at;
  const auto check = [](const Outcome& o, const std::vector<std::string>& words) {
    INFO(o.output);
    CHECK(o.code == 0);
    CHECK(o.says("Looks wrong:"));
    for (const std::string& word : words) CHECK(o.says(word));
  };
  check(info(at, 2, {{"TESSERA_THREADS", "500"}}), {"500 threads", "TESSERA_THREADS="});
  check(info(at, 2, {{"TESSERA_THREADS", "1"}}, bind_to_one_core),
        {"2 processes take turns on 1 core"});
  check(info(at, 0, {{"TESSERA_THREADS", "3"}}, bind_to_one_core),
        {"3 threads per process are bound to 1 core"});
  check(info(at, 0, {{"OMPI_COMM_WORLD_SIZE", "4"}}),
        {"Open MPI's mpiexec has started 4 processes", "mpiexec.mpich"});
  check(info(at, 0, {{"SLURM_STEP_NUM_TASKS", "4"}}), {"srun has started 4", "--mpi=pmi2"});
  check(info(at, 2, {{"TESSERA_TIMEOUT", "0"}}), {"waits for ever"});

  std::filesystem::create_directories(at / "bin");
  std::ofstream(at / "bin/mpiexec") << "#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n";
  std::filesystem::permissions(at / "bin/mpiexec", std::filesystem::perms::owner_all);
  check(info(at, 2, {{"PATH", at / "bin" + ":" + std::getenv("PATH")}}),
        {"mpiexec    " + at / "bin/mpiexec", "belongs to Open MPI"});
}

TEST_CASE("threads per process follow the cores that it may use") {
  const TemporaryFolder at;
  const auto bound = [&](int ranks) {
    return run(at, command(ranks, {"info"}), [] {
      unsetenv("TESSERA_THREADS");
      bind_to_one_core();
    });
  };
  CHECK(bound(0).says("threads    1 per process"));
  CHECK(bound(2).says("threads    1 per process"));
}

TEST_CASE("the jobs for Slurm and PBS resume what is there and are put back when stopped") {
  const TemporaryFolder at;
  const std::string scripts = std::string(TESSERA_SOURCE_DIR) + "/scripts/cluster/";
  std::filesystem::create_directories(at / "bin");
  const auto fake = [&](const std::string& name, const std::string& body) {
    std::ofstream(at / ("bin/" + name)) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(at / ("bin/" + name), std::filesystem::perms::owner_all);
  };
  // Launchers that note their words and end with the code asked for.
  for (const char* name : {"srun", "mpiexec"})
    fake(name, "echo \"$0 $@\" >> " + at / "calls" + "; exit $CODE");
  for (const char* name : {"scontrol", "qrerun"}) fake(name, "echo \"$0 $@\" >> " + at / "calls");
  fake("qstat", "echo '    Resource_List.walltime = 24:00:00'");
  std::ofstream(at / "hosts") << "a\na\nb\nb\n";

  const auto job = [&](const std::string& script, const Words& words, const char* code) {
    std::filesystem::remove(at / "calls");
    Words all = {"/bin/bash", scripts + script};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome o = run(at, all, [&] {
      const std::string path = std::getenv("PATH");
      setenv("PATH", (at / "bin" + ":" + path).c_str(), 1);
      for (const auto& [name, value] : {std::pair<const char*, std::string>("CODE", code),
                                        {"SLURM_JOB_ID", "7"},
                                        {"SLURM_CPUS_PER_TASK", "4"},
                                        {"PBS_JOBID", "8.host"},
                                        {"PBS_NODEFILE", at / "hosts"},
                                        {"PBS_O_WORKDIR", at / "."},
                                        {"OMP_NUM_THREADS", "2"},
                                        {"OUT", at / "run"},
                                        {"ARGUMENTS", "unet --data x.nc --mesh h=4"}}) {
        setenv(name, value.c_str(), 1);
      }
    });
    INFO(o.output);
    CHECK(o.code == std::atoi(code));
    return read_file(at / "calls");
  };
  const Words words = {"unet", "--data", "x.nc", "--mesh", "h=4"};
  const std::string trains = "tessera train unet --data x.nc --mesh h=4 --out " + at / "run";
  for (const bool again : {false, true}) {
    if (again) {
      std::filesystem::create_directories(at / "run");
      std::ofstream(at / "run/metrics.jsonl");
    }
    const std::string command = trains + (again ? " --resume\n" : "\n");
    for (const char* code : {"0", "70", "75"}) {
      INFO(code);
      const std::string slurm = job("train.slurm", words, code);
      INFO(slurm);
      CHECK(slurm.find("bin/srun --mpi=pmi2") != std::string::npos);
      CHECK(slurm.find(command) != std::string::npos);
      CHECK((slurm.find("scontrol requeue 7") != std::string::npos) == (std::string(code) == "75"));
      const std::string pbs = job("train.pbs", {}, code);
      INFO(pbs);
      CHECK(pbs.find("bin/mpiexec -f " + at / "hosts" + " -n 4 -bind-to core:2 ") !=
            std::string::npos);
      CHECK(pbs.find(command) != std::string::npos);
      CHECK((pbs.find("qrerun 8.host") != std::string::npos) == (std::string(code) == "75"));
    }
  }
}

}  // namespace tessera::test
