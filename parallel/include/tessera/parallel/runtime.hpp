#pragma once

#include <cstdint>
#include <string>
#include <tessera/core/mesh.hpp>
#include <type_traits>
#include <vector>

namespace tessera {

struct RuntimeOptions {
  /// Key of all random numbers; the environment variable TESSERA_SEED goes before it.
  std::uint64_t seed = 0;
  /// Threads for kernels; 0: TESSERA_THREADS, else cores / processes on this node.
  int threads = 0;
};

/// The job: starts MPI (or adopts an MPI that is already initialised), and ends it. One per
/// program; one process without mpiexec is a job of one. Programs that never make one are a job of
/// one process too.
///
/// The destructor waits for the other processes (without a limit, unless all called finish()). When
/// the job has failed, or an exception is on its way through, it ends the job with one report and
/// the error's exit code (parallel/failure.hpp) instead. An exception that leaves main() does the
/// same. A process that is killed is reported by a witness, a process beside it that sleeps
/// otherwise (launchers of the Hydra kind only, such as MPICH's mpiexec).
class Runtime {
 public:
  /// Throws UsageError when there is one already, CommError when the MPI library is not MPICH. An
  /// environment variable of Tessera that makes no sense ends the job as `guard` does.
  Runtime(int argc, char** argv, const RuntimeOptions& options = {});
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  int rank() const { return process().rank; }
  int size() const { return process().count; }
  /// Processes of the job on this node.
  int local_size() const { return local_size_; }
  std::uint64_t seed() const { return seed_; }

  /// All processes as a mesh: Mesh::world.
  Mesh mesh(const std::vector<MeshAxis>& axes) const { return Mesh::world(axes); }

  /// Runs `f` and returns its int (or 0). An exception from it fails the job: every process ends
  /// with one report and the error's exit code. `int main(int argc, char** argv) { Runtime
  /// runtime(argc, argv); return runtime.guard([&] {...}); }`
  template <class F>
  static int guard(F&& f) {
    try {
      if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
        f();
        return 0;
      } else {
        return f();
      }
    } catch (...) {
      fail_with_current_exception();
    }
  }

  /// For programs that leave no work to single processes at their end: waits for the others, and
  /// puts what is left, the end of the program, under the watchdog. Every process must call.
  static void finish();

  /// Version of the MPI library; empty when this process runs without MPI.
  static std::string mpi_version();

 private:
  [[noreturn]] static void fail_with_current_exception();
  int local_size_ = 1;
  int exceptions_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace tessera
