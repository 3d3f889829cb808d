#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::parallel {

/// What launcher and system give to this process.
struct LaunchFacts {
  int processes = 1;        ///< of the job
  int local_processes = 1;  ///< of them on this node
  int threads = 1;          ///< for kernels
  int cores = 1;            ///< on which this process may run
  std::string core_list = "0";
  int node_cores = 1;     ///< on which any process of the job on this node may run
  int machine_cores = 1;  ///< of this node
  double cpu_quota = 0;   ///< cores that the container may use at once; 0: no limit

  std::int64_t memory = 0;           ///< of this node, bytes
  std::int64_t container_limit = 0;  ///< bytes of all processes in the container; 0: none
  std::int64_t pool_limit = 0;       ///< TESSERA_MEMORY_LIMIT; 0: none

  std::int64_t shared_memory_free = -1;  ///< in /dev/shm, bytes; -1: there is none

  std::string mpi = {};             ///< version of the library; empty: not in use
  std::string mpiexec = {};         ///< the one that PATH finds; empty: none
  std::string mpiexec_family = {};  ///< MPICH, Open MPI, Intel MPI; empty: unknown

  bool gpu = false;         ///< an NVIDIA device is in this node
  bool gpu_driver = false;  ///< and can be reached

  /// Variables that launchers, OpenMP and Tessera read.
  std::map<std::string, std::string> environment = {};
};

/// Something that will go wrong, and what to do about it.
struct LaunchAdvice {
  std::string problem;
  std::string advice;
};

/// The facts of this process. With `launcher`, `mpiexec --version` is started where the name does
/// not tell whose it is.
LaunchFacts launch_facts(bool launcher = true);

/// What is wrong with them; a pure function.
std::vector<LaunchAdvice> advise(const LaunchFacts& facts);

/// Threads per process where nothing is said: the cores of this process, shared with the others on
/// them, as far as the container's quota goes; at least 1.
int default_threads(const LaunchFacts& facts);

}  // namespace tessera::parallel
