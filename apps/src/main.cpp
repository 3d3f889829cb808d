#include <csignal>
#include <cstdio>
#include <functional>
#include <iostream>
#include <sstream>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/suggest.hpp>
#include <tessera/parallel/runtime.hpp>

#include "commands.hpp"

namespace tessera::app {
namespace {

constexpr int kUsage = 2;

constexpr const char* kFooter =
    "Run it under mpiexec to use several processes; the mesh says how they share the work:\n"
    "  mpiexec.mpich -n 4 tessera train unet --data etopo5.cdf --mesh h=2,w=2 --out run\n"
    "Exit codes: 0 done, 1 compare or plan --check found a difference, 2 wrong usage, 65 unusable\n"
    "data, 70 internal error, 74 input or output failed, 75 stopped by a signal (continue with\n"
    "--resume).";

/// The option or command that resembles the first word that nothing took, as a line; or nothing.
std::string suggestion(const CLI::App& program) {
  const std::vector<std::string> words = program.remaining(true);
  if (words.empty()) return "";
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const CLI::App* sub : command->get_subcommands(nullptr)) known.push_back(sub->get_name());
  const std::string word = words.front().substr(0, words.front().find('='));
  const std::string text = io::did_you_mean(word, known);
  return text.empty() ? "" : word + ":" + text + "\n";
}

/// All processes must have been started alike: they would wait for each other in different places.
void check_arguments(int argc, char** argv) {
  std::string all;
  for (int i = 1; i < argc; ++i) all += std::string(argv[i]) + '\n';
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(process().count), 0);
  hashes[static_cast<std::size_t>(process().rank)] =
      static_cast<std::int64_t>(std::hash<std::string>{}(all) >> 1);
  if (process().count > 1) nn::collective(Mesh::world({{"all", process().count}})).sum(hashes);
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    throw UsageError(str("start: processes 0 and ", rank,
                         " were given different arguments. Start all with the same."));
  }
}

/// What was printed has arrived.
void check_output() {
  std::cout.flush();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
    throw IoError("output: standard output cannot be written. Make room where it goes.");
  }
}

int run(int argc, char** argv) {
  check_arguments(argc, argv);
  CLI::App program("Deep learning on decomposed fields.", "tessera");
  program.require_subcommand(1);
  program.footer(kFooter);
  Command chosen;
  add_train(program, chosen);
  add_evaluate(program, chosen);
  add_predict(program, chosen);
  add_bench(program, chosen);
  add_info(program, chosen);
  add_generate(program, chosen);
  add_plan(program, chosen);
  add_compare(program, chosen);
  add_md(program, chosen);
  add_relax(program, chosen);
  add_weights(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out;
    std::ostringstream errors;
    const int code = program.exit(e, out, errors);
    if (code != 0) errors << suggestion(program);
    if (process().rank == 0) {
      std::cout << out.str() << std::flush;
      std::cerr << errors.str() << std::flush;
    }
    return code == 0 ? 0 : kUsage;
  }
  const int code = chosen();
  check_output();
  Runtime::finish();  // no command leaves work to one process
  return code;
}

}  // namespace
}  // namespace tessera::app

int main(int argc, char** argv) {
  // A limit on the size of files is an error of the write that meets it.
  std::signal(SIGXFSZ, SIG_IGN);
  tessera::Runtime runtime(argc, argv);
  return runtime.guard([&] { return tessera::app::run(argc, argv); });
}
