#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tessera/core/error.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/launch.hpp>
#include <tessera/parallel/runtime.hpp>

#include "affinity.hpp"

namespace tessera::parallel {

namespace {

namespace fs = std::filesystem;

/// What MPICH puts into /dev/shm: measured, with room for large messages.
constexpr std::int64_t kSharedPerProcess = std::int64_t{32} << 20;
/// Of the memory that processes get, the rest is for libraries and messages.
constexpr double kShareForPools = 0.9;

LocalJob& local_job() {
  static LocalJob job{.cores = own_cores()};
  return job;
}

constexpr std::array kVariables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK",          "PMI_SIZE",
                                "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID",       "OMP_NUM_THREADS",
                                "OMP_PROC_BIND",        "OMP_PLACES",         "TESSERA_THREADS",
                                "TESSERA_TIMEOUT",      "SLURM_CPUS_PER_TASK"};

std::string find_in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::string rest = path != nullptr ? path : "";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const std::string file = (fs::path(rest.substr(0, end)) / program).string();
    if (access(file.c_str(), X_OK) == 0 && !fs::is_directory(file)) return file;
    rest.erase(0, end + 1);
  }
  return "";
}

std::string family_in(const std::string& text) {
  const auto has = [&](const char* word) { return text.find(word) != std::string::npos; };
  if (has("Open MPI") || has("OpenRTE") || has("PRRTE") || has("orterun") || has("prterun") ||
      has("openmpi"))
    return "Open MPI";
  if (has("Intel(R) MPI") || has("impi")) return "Intel MPI";
  if (has("HYDRA") || has("MPICH") || has("mpich") || has("hydra")) return "MPICH";
  return "";
}

std::string family_of(const std::string& mpiexec) {
  std::error_code ignored;
  const std::string real = fs::canonical(mpiexec, ignored).filename().string();
  if (const std::string family = family_in(real); !family.empty()) return family;
  const std::string command = str("timeout 5 '", mpiexec, "' --version 2>&1 < /dev/null");
  std::string text;
  if (FILE* const pipe = popen(command.c_str(), "r"); pipe != nullptr) {
    std::array<char, 512> block{};
    while (const std::size_t n = std::fread(block.data(), 1, block.size(), pipe))
      text.append(block.data(), n);
    pclose(pipe);
  }
  return family_in(text);
}

bool has_nvidia_device() {
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator("/sys/bus/pci/devices", ignored)) {
    std::string vendor;
    std::string kind;
    std::ifstream(device.path() / "vendor") >> vendor;
    std::ifstream(device.path() / "class") >> kind;
    if (vendor == "0x10de" && kind.starts_with("0x03")) return true;
  }
  return fs::exists("/dev/nvidia0", ignored);
}

int number(const LaunchFacts& facts, const char* variable) {
  const auto it = facts.environment.find(variable);
  return it != facts.environment.end() ? std::atoi(it->second.c_str()) : 0;
}
std::string text(const LaunchFacts& facts, const char* variable) {
  const auto it = facts.environment.find(variable);
  return it != facts.environment.end() ? it->second : std::string();
}

void advise_about_launcher(const LaunchFacts& f, std::vector<LaunchAdvice>& all) {
  if (f.processes == 1 && number(f, "OMPI_COMM_WORLD_SIZE") > 1) {
    all.push_back({str("Open MPI's mpiexec has started ", number(f, "OMPI_COMM_WORLD_SIZE"),
                       " processes, and each is a job of its own"),
                   "Start them with MPICH's: mpiexec.mpich."});
  } else if (f.processes == 1 && number(f, "SLURM_STEP_NUM_TASKS") > 1) {
    all.push_back({str("srun has started ", number(f, "SLURM_STEP_NUM_TASKS"),
                       " processes, and each is a job of its own"),
                   "Let srun speak MPICH's protocol: srun --mpi=pmi2 (srun --mpi=list shows what "
                   "there is)."});
  } else if (f.processes == 1 && number(f, "PMI_SIZE") > 1) {
    all.push_back({str("a launcher has started ", number(f, "PMI_SIZE"),
                       " processes, and each is a job of its own"),
                   "Use the mpiexec of the MPICH that the program was linked with; ldd shows it."});
  }
  if (!f.mpiexec_family.empty() && f.mpiexec_family != "MPICH") {
    all.push_back({str(f.mpiexec, " belongs to ", f.mpiexec_family,
                       "; under it each process would be a job of its own"),
                   "Write mpiexec.mpich, or put MPICH's folder first in PATH."});
  }
}

void advise_about_cores(const LaunchFacts& f, std::vector<LaunchAdvice>& all) {
  const int wanted = f.threads * f.local_processes;
  if (f.threads > f.cores) {
    all.push_back({str(f.threads, " threads per process ",
                       f.cores < f.machine_cores ? "are bound to " : "run on ", f.cores,
                       f.cores == 1 ? " core (" : " cores (", f.core_list, ")"),
                   f.cores < f.machine_cores && wanted <= f.machine_cores
                       ? str("Give each process ", f.threads, " cores: mpiexec -bind-to core:",
                             f.threads, ", or srun --cpus-per-task=", f.threads,
                             " --cpu-bind=cores; or set TESSERA_THREADS=", f.cores, ".")
                       : str("Set TESSERA_THREADS=", std::max(1, f.node_cores / f.local_processes),
                             ", or leave it out.")});
  } else if (wanted > f.node_cores && f.local_processes <= f.node_cores) {
    all.push_back({str(f.local_processes, " processes with ", f.threads, " threads share ",
                       f.node_cores, " cores"),
                   str("Set TESSERA_THREADS=", f.node_cores / f.local_processes,
                       ", or start fewer processes.")});
  }
  if (f.local_processes > f.node_cores) {
    const bool bound = f.node_cores < f.machine_cores;
    all.push_back(
        {str(f.local_processes, " processes take turns on ", f.node_cores,
             f.node_cores == 1 ? " core" : " cores",
             bound ? str(" of ", f.machine_cores, ": they are bound to the same ones") : ""),
         bound ? "Bind each to its own: mpiexec -bind-to core, or srun --cpu-bind=cores; in a "
                 "batch job ask for a core per process."
               : "Start at most one process per core."});
  }
  if (f.cpu_quota > 0 && wanted > f.cpu_quota + 0.5) {
    all.push_back(
        {str("the container may use ", f.cpu_quota, " cores at once, ", wanted, " threads run"),
         "Set TESSERA_THREADS lower, or raise the container's limit (docker --cpus)."});
  }
  const std::string places = text(f, "OMP_PROC_BIND");
  if (f.threads > 1 && f.local_processes > 1 && f.cores == f.machine_cores && !places.empty() &&
      places != "false" && places != "FALSE") {
    all.push_back({str("OMP_PROC_BIND=", places, " binds the threads of every one of the ",
                       f.local_processes, " processes here to the same first cores"),
                   str("Bind the processes first: mpiexec -bind-to core:", f.threads,
                       ", or srun --cpu-bind=cores; or unset OMP_PROC_BIND.")});
  }
}

void advise_about_memory(const LaunchFacts& f, std::vector<LaunchAdvice>& all) {
  const std::int64_t shared = kSharedPerProcess * std::max(2, f.local_processes);
  if (f.shared_memory_free >= 0 && f.shared_memory_free < shared) {
    all.push_back(
        {str("/dev/shm has ", format_bytes(f.shared_memory_free), " left, MPICH may take ",
             format_bytes(shared), " for the processes of this node"),
         "Make it larger (docker --shm-size=1g), or remove what ended jobs left there."});
  } else if (f.shared_memory_free < 0) {
    all.push_back({"there is no /dev/shm; processes of one node cannot share memory",
                   "Mount a tmpfs there."});
  }
  const bool contained = f.container_limit > 0 && (f.memory == 0 || f.container_limit < f.memory);
  const std::int64_t limit = contained ? f.container_limit : f.memory;
  const auto fair =
      static_cast<std::int64_t>(kShareForPools * static_cast<double>(limit) / f.local_processes);
  if (contained && f.pool_limit == 0) {
    all.push_back({str("the container may use ", format_bytes(limit),
                       "; beyond that the system kills a process"),
                   str("Set TESSERA_MEMORY_LIMIT=", fair >> 20,
                       "MiB per process: the error then names the tensors.")});
  } else if (limit > 0 && f.pool_limit * f.local_processes > limit) {
    all.push_back(
        {str("TESSERA_MEMORY_LIMIT of ", format_bytes(f.pool_limit), " for ", f.local_processes,
             " processes is more than the ", format_bytes(limit), " there are"),
         str("Set TESSERA_MEMORY_LIMIT=", fair >> 20, "MiB.")});
  }
}

}  // namespace

void set_local_job(const LocalJob& job) { local_job() = job; }

LaunchFacts launch_facts(bool launcher) {
  LaunchFacts f;
  f.processes = process().count;
  f.local_processes = local_job().processes;
  f.threads = thread_count();
  const CoreSet own = own_cores();
  f.cores = count(own);
  f.core_list = text_of(own);
  f.node_cores = std::max(f.cores, count(local_job().cores));
  f.machine_cores = std::max(f.node_cores, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  f.cpu_quota = cpu_quota();
  f.memory = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  f.container_limit = memory_quota();
  f.pool_limit = MemoryPool::of({}).stats().limit_bytes;
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0) {
    f.shared_memory_free =
        static_cast<std::int64_t>(shared.f_bavail) * static_cast<std::int64_t>(shared.f_frsize);
  }
  f.mpi = Runtime::mpi_version();
  if (launcher) f.mpiexec = find_in_path("mpiexec");
  if (!f.mpiexec.empty()) f.mpiexec_family = family_of(f.mpiexec);
  f.gpu = has_nvidia_device();
  f.gpu_driver = fs::exists("/proc/driver/nvidia/version") && fs::exists("/dev/nvidiactl");
  for (const char* const name : kVariables) {
    if (const char* const value = std::getenv(name)) f.environment[name] = value;
  }
  return f;
}

std::vector<LaunchAdvice> advise(const LaunchFacts& facts) {
  std::vector<LaunchAdvice> all;
  advise_about_launcher(facts, all);
  advise_about_cores(facts, all);
  advise_about_memory(facts, all);
  if (facts.gpu && !facts.gpu_driver) {
    all.push_back({"there is a GPU, but its driver cannot be reached",
                   "Load the driver (nvidia-smi tells), or give the container its devices (docker "
                   "--gpus all). Without it everything runs on the CPU."});
  }
  if (text(facts, "TESSERA_TIMEOUT") == "0" && facts.processes > 1) {
    all.push_back({"TESSERA_TIMEOUT=0: a job in which one process does not come waits for ever",
                   "Leave it out (300 s), or give seconds."});
  }
  return all;
}

int default_threads(const LaunchFacts& facts) {
  const int fair = std::min(facts.cores, facts.node_cores / std::max(1, facts.local_processes));
  const int granted =
      facts.cpu_quota > 0 ? static_cast<int>(facts.cpu_quota + 0.5) / facts.local_processes : fair;
  return std::max(1, std::min(fair, granted));
}

}  // namespace tessera::parallel
