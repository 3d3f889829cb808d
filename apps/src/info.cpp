#include "info.hpp"

#include <filesystem>
#include <iostream>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/runtime.hpp>

#include "mesh_option.hpp"
#include "nodes.hpp"
#include "trained.hpp"

namespace tessera::app {

int info(const std::string& run, const std::string& mesh) {
  const bool first = process().rank == 0;
  if (run.empty()) {
    const std::string map = mesh.empty() ? std::string() : mesh_map(parse_mesh(mesh));
    if (!first) return 0;
    const std::string mpi = Runtime::mpi_version();
    const std::int64_t limit = MemoryPool::of({}).stats().limit_bytes;
    std::cout << "tessera    " << TESSERA_VERSION << "\n"
              << "processes  " << process().count << "\n"
              << "threads    " << thread_count() << " per process (TESSERA_THREADS)\n"
              << "memory     "
              << (limit > 0 ? "at most " + format_bytes(limit) + " per process" : "no limit")
              << " (TESSERA_MEMORY_LIMIT)\n"
              << "MPI        " << (mpi.empty() ? "not in use" : mpi.substr(0, mpi.find('\n')))
              << "\n"
              << (map.empty() ? "" : "\n") << map << std::flush;
    return 0;
  }
  const bool directory = std::filesystem::is_directory(run);
  const Trained trained = load_trained(directory ? RunFiles{run}.weights() : run, parse_mesh(""));
  const std::string table = trained.model->network().summary();
  io::Settings all;
  trained.settings->declare(all);
  if (first) std::cout << table << '\n' << all.toml() << std::flush;
  return 0;
}

}  // namespace tessera::app
