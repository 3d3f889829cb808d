#include "info.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <iostream>
#include <map>
#include <tessera/core/memory.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/launch.hpp>
#include <tessera/parallel/runtime.hpp>

#include "mesh_option.hpp"
#include "nodes.hpp"
#include "trained.hpp"

namespace tessera::app {

namespace {

using parallel::LaunchAdvice;
using parallel::LaunchFacts;

/// `0..3, 7`
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += str(text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += str(last > i + 1 ? ".." : ", ", numbers[last]);
    i = last + 1;
  }
  return text;
}

/// The processes by what each of them says.
std::map<std::string, std::vector<int>> who_says(const std::string& mine) {
  using Text = std::array<char, 4096>;
  const auto self = static_cast<std::size_t>(process().rank);
  std::vector<Text> texts(static_cast<std::size_t>(process().count));
  mine.copy(texts[self].data(), texts[self].size() - 1);
  if (process().count > 1) {
    parallel::all_gather(parallel::Group::world(), &texts[self], texts.data(), sizeof(Text),
                         {"launch report", {}, {}})
        .wait();
  }
  std::map<std::string, std::vector<int>> all;
  for (std::size_t p = 0; p < texts.size(); ++p)
    all[texts[p].data()].push_back(static_cast<int>(p));
  return all;
}

std::string problems_of(const LaunchFacts& facts) {
  std::string text;
  for (const LaunchAdvice& a : parallel::advise(facts))
    text += "  " + a.problem + ".\n    " + a.advice + "\n";
  return text;
}

/// What was detected of job and machine, and what is wrong with it. Every process must call.
std::string launch_report() {
  const bool first = process().rank == 0;
  const LaunchFacts facts = parallel::launch_facts(first);
  const auto cores = who_says(facts.core_list);
  const auto problems = who_says(problems_of(facts));
  if (!first) return "";

  std::string text = fmt::format("cores      {} of this node's {} for a process", facts.cores,
                                 facts.machine_cores);
  if (cores.size() == 1) {
    text += " (" + facts.core_list + ")\n";
  } else {
    text += '\n';
    for (const auto& [list, processes] : cores)
      text += fmt::format("             process {}: {}\n", ranges(processes), list);
  }
  text +=
      fmt::format("memory     {} in this node{}; {} per process (TESSERA_MEMORY_LIMIT)\n",
                  format_bytes(facts.memory),
                  facts.container_limit > 0 && facts.container_limit < facts.memory
                      ? ", " + format_bytes(facts.container_limit) + " for this container"
                      : "",
                  facts.pool_limit > 0 ? "at most " + format_bytes(facts.pool_limit) : "no limit");
  text += "/dev/shm   " +
          (facts.shared_memory_free >= 0 ? format_bytes(facts.shared_memory_free) + " free"
                                         : std::string("none")) +
          "\n";
  text += fmt::format("MPI        {}\n", facts.mpi.empty() ? "not in use" : facts.mpi);
  text += fmt::format("mpiexec    {}{}\n", facts.mpiexec.empty() ? "none in PATH" : facts.mpiexec,
                      facts.mpiexec_family.empty() ? "" : " (" + facts.mpiexec_family + ")");
  text += fmt::format("GPU        {}\n", !facts.gpu         ? "none"
                                         : facts.gpu_driver ? "NVIDIA"
                                                            : "NVIDIA, without driver");
  if (problems.size() == 1 && problems.begin()->first.empty())
    return text + "\nNothing looks wrong.\n";
  text += "\nLooks wrong:\n";
  for (const auto& [what, processes] : problems) {
    if (what.empty()) continue;
    if (static_cast<int>(processes.size()) < process().count)
      text += " process " + ranges(processes) + ":\n";
    text += what;
  }
  return text;
}

}  // namespace

int info(const std::string& run, const std::string& mesh) {
  const bool first = process().rank == 0;
  if (run.empty()) {
    const std::string map = mesh.empty() ? std::string() : mesh_map(parse_mesh(mesh));
    const std::string report = launch_report();
    if (!first) return 0;
    std::cout << "tessera    " << TESSERA_VERSION << "\n"
              << "processes  " << process().count << "\n"
              << "threads    " << thread_count() << " per process (TESSERA_THREADS)\n"
              << report << (map.empty() ? "" : "\n") << map << std::flush;
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
