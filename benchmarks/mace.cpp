// MACE beside mace-torch on as many threads, in turns, with the same weights on the same atoms
// (alpha-quartz, every atom moved a little): energies and forces, a training step on both (Adam),
// and the memory that either adds to a process that holds the model. The peer is the faster of
// mace-torch as it is and in TorchScript. Ours runs its radial networks on every edge, as the peer
// does, or reads them from tables.
// Usage: bench_mace [threads] [case substring] [rounds]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/autograd/autograd.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/models/atomistic/silica.hpp>
#include <tessera/models/mace_file.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/graph/batch.hpp>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/optim.hpp>
#include <utility>
#include <vector>

#include "jobs.hpp"
#include "turns.hpp"

namespace {

using namespace tessera;

struct Case {
  const char* name;
  std::int64_t channels;
  int max_L;
  DType dtype;
  const char* type;
  std::int64_t forces_cells, train_cells;  ///< along each axis, 9 atoms each
};

const Case kCases[] = {{"K 128 L 1 f64", 128, 1, DType::kFloat64, "f64", 2, 2},
                       {"K 128 L 1 f32", 128, 1, DType::kFloat32, "f32", 2, 2},
                       {"K 64 L 0 f64", 64, 0, DType::kFloat64, "f64", 2, 2},
                       {"K 64 L 0 f32", 64, 0, DType::kFloat32, "f32", 2, 2},
                       {"K 128 L 2 f64", 128, 2, DType::kFloat64, "f64", 2, 2}};
constexpr std::int64_t kIntervals = 256;
const char* const kSteps[] = {"forces", "train"};
const char* const kWays[] = {"networks", "tables"};

models::MaceOptions options_of(const Case& c) {
  models::MaceOptions o;
  o.elements = {8, 14};
  o.r_max = 6.0;
  o.channels = c.channels;
  o.max_L = c.max_L;
  o.couplings = kernels::CouplingBasis::kTabulated;
  o.e0 = {-1.5, -2.5};
  o.scale = 0.8;
  o.shift = 0.1;
  o.avg_num_neighbors = 74.0;
  return o;
}

nn::Structure atoms(std::int64_t cells) {
  nn::Structure s = atomistic::rattled(atomistic::quartz({cells, cells, cells}), 0.05, 0.0, 1);
  s.energy = -2.0 * static_cast<double>(s.atoms());
  for (std::size_t i = 0; i < s.positions.size(); ++i)
    s.forces.push_back(std::sin(1.7 * static_cast<double>(i)));
  return s;
}

/// Weights from `folder`: the same in every program.
class Ours {
 public:
  Ours(const Case& c, const std::string& folder, bool tables)
      : model_(options(c, tables), Mesh::self(), c.dtype),
        adam_(parameters(folder), {.weight_decay = 0.0}) {
    for (const std::int64_t cells : {std::int64_t{1}, c.forces_cells, c.train_cells}) {
      if (batches_.count(cells) != 0) continue;
      const std::vector<nn::Structure> one = {atoms(cells)};
      Batch b;
      b.graph = nn::batch_graph(one, Mesh::self(), {.cutoff = model_.options().r_max});
      b.labels = nn::batch_labels(one, b.graph);
      batches_.emplace(cells, std::move(b));
    }
  }

  double forces(std::int64_t cells) {
    const models::MaceResult r = model_.compute(batches_.at(cells).graph);
    return r.energy.at({0});
  }
  double train(std::int64_t cells) {
    const Batch& b = batches_.at(cells);
    const models::MaceResult r = model_.compute(b.graph, {.create_graph = true});
    const Tensor loss = nn::atom_loss(r, b.labels, {});
    backward(loss);
    adam_.step();
    return loss.item();
  }
  std::int64_t edges(std::int64_t cells) const { return batches_.at(cells).graph.edge_count(); }
  std::int64_t parameter_count() { return model_.parameter_count(); }

 private:
  struct Batch {
    nn::Graph graph;
    nn::AtomLabels labels;
  };
  static models::MaceOptions options(const Case& c, bool tables) {
    models::MaceOptions o = options_of(c);
    o.radial_intervals = tables ? kIntervals : 0;
    return o;
  }
  std::vector<nn::Parameter> parameters(const std::string& folder) {
    nn::load_weights(folder + "/model.safetensors", model_);
    return model_.parameters();
  }

  models::Mace model_;
  optim::AdamW adam_;
  std::map<std::int64_t, Batch> batches_;
};

void write(const Case& c, const std::string& folder) {
  models::Mace model(options_of(c), Mesh::self(), c.dtype);
  models::save_mace(folder + "/model.safetensors", model);
  io::write_extxyz(folder + "/cell.xyz", {atoms(1)});
  io::write_extxyz(folder + "/forces.xyz", {atoms(c.forces_cells)});
  io::write_extxyz(folder + "/train.xyz", {atoms(c.train_cells)});
}

double run(Ours& ours, int step, std::int64_t cells) {
  return step == 0 ? ours.forces(cells) : ours.train(cells);
}

/// Processor time where a single thread computes: other programs disturb it less.
template <class F>
bench::Timing timed(F&& f) {
  if (thread_count() > 1) return bench::timed(f);
  const std::clock_t start = std::clock();
  const double loss = f();
  return {static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, loss};
}

/// Times and memory of one step (forces, train): ours by way, the peer's.
struct Measured {
  double ours[2] = {0, 0}, peer = 0;           ///< s
  double memory[2] = {0, 0}, peer_memory = 0;  ///< bytes
  double difference[2] = {0, 0};
  std::string mode;  ///< of the peer
};

void time_step(const Case& c,
               int step,
               const std::string& folder,
               int rounds,
               bench::Server* peer,
               Measured& m) {
  const std::int64_t cells = step == 0 ? c.forces_cells : c.train_cells;
  std::vector<double> times[2], theirs;
  Ours networks(c, folder, false);
  Ours tables(c, folder, true);
  Ours* const ways[] = {&networks, &tables};
  double expected = 0;
  if (peer != nullptr) {
    double best = 1e300;
    for (const char* mode : {"eager", "script"}) {
      const std::string command = str(kSteps[step], " ", mode);
      const std::string parameters = peer->ask(str("case ", folder, " ", c.type, " ", mode));
      if (parameters != str("parameters ", networks.parameter_count(), "\n")) {
        std::printf("mace-torch, %s: %s", mode, parameters.c_str());
        continue;
      }
      try {
        // TorchScript compiles in the first three steps; its second is the slowest.
        const double first = bench::timed(*peer, command).loss;
        if (std::strcmp(mode, "eager") == 0) expected = first;
        for (int i = 0; i < 2; ++i) bench::timed(*peer, command);
        const double seconds = bench::timed(*peer, command).seconds;
        if (seconds < best) {
          best = seconds;
          m.mode = mode;
        }
      } catch (const Error&) {
        std::printf("mace-torch, %s: does not run\n", mode);
      }
    }
  }
  const std::string command = str(kSteps[step], " ", m.mode);
  for (int round = 0; round <= rounds; ++round) {  // the first is warm-up
    for (int way = 0; way < 2; ++way) {
      const bench::Timing t = timed([&] { return run(*ways[way], step, cells); });
      if (round > 0) times[way].push_back(t.seconds);
      if (round == 0) m.difference[way] = std::abs(t.loss - expected) / std::abs(expected);
    }
    if (!m.mode.empty()) {
      const bench::Timing t = bench::timed(*peer, command);
      if (round > 0) theirs.push_back(t.seconds);
    }
  }
  for (int way = 0; way < 2; ++way) m.ours[way] = bench::median(times[way]);
  m.peer = bench::median(theirs);
}

}  // namespace

int main(int argc, char** argv) {
  const bool memory_only = argc > 6 && std::strcmp(argv[1], "memory") == 0;
  const int threads = argc > 1 ? std::atoi(argv[memory_only ? 2 : 1]) : 2;
  tessera::set_thread_count(threads);
  if (memory_only) {
    const Case& c = kCases[std::atoi(argv[3])];
    const int step = std::atoi(argv[5]);
    Ours ours(c, argv[4], std::atoi(argv[6]) != 0);
    for (int i = 0; i < 3; ++i) run(ours, step, 1);
    const std::int64_t added =
        bench::added_memory([&] { run(ours, step, step == 0 ? c.forces_cells : c.train_cells); });
    std::printf("%lld\n", static_cast<long long>(added));
    return 0;
  }
  const std::string wanted = argc > 2 ? argv[2] : "";
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  bench::Peer script("mace_torch.py");
  bench::Server* const peer = script.serve(threads);

  std::printf("MACE, cutoff 6 A, %d thread(s): tessera / %s: ratio\n", threads,
              script.name().c_str());
  nlohmann::json line = {{"benchmark", "mace"},
                         {"value", nullptr},
                         {"unit", "atom steps/s/core"},
                         {"peer", nullptr},
                         {"ratio", nullptr}};
  nlohmann::json cases;
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& c = kCases[i];
    if (std::string(c.name).find(wanted) == std::string::npos) continue;
    const bench::TemporaryFolder temporary;
    const std::string folder = temporary.path().string();
    write(c, folder);
    for (int step = 0; step < 2; ++step) {
      Measured m;
      time_step(c, step, folder, rounds, peer, m);
      const std::int64_t cells = step == 0 ? c.forces_cells : c.train_cells;
      const auto count = static_cast<double>(9 * cells * cells * cells);
      for (int way = 0; way < 2; ++way) {
        m.memory[way] = bench::number_from(
            {"/proc/self/exe", "memory", str(threads), str(i), folder, str(step), str(way)});
      }
      if (!m.mode.empty()) {
        m.peer_memory = bench::number_from(script.command(
            str("memory ", threads, " ", folder, " ", c.type, " ", m.mode, " ", kSteps[step])));
      }
      for (int way = 0; way < 2; ++way) {
        const double rate = count / m.ours[way];
        std::printf("%-14s %-7s %-9s %5.0f atoms: %8.1f / %-8.1f ms %6.2f x", c.name, kSteps[step],
                    kWays[way], count, 1e3 * m.ours[way], 1e3 * m.peer, m.peer / m.ours[way]);
        std::printf("  %6.0f atom steps/s, %5.0f per core", rate, rate / threads);
        std::printf("  memory %7.1f / %-7.1f KB/atom %6.3f x", m.memory[way] / count * 1e-3,
                    m.peer_memory / count * 1e-3, m.memory[way] / std::max(m.peer_memory, 1.0));
        std::printf("  (peer: %s, within %.0e)\n", m.mode.c_str(), m.difference[way]);
        std::fflush(stdout);
        cases[c.name][kSteps[step]][kWays[way]] = {
            {"seconds", {m.ours[way], m.peer}},
            {"memory_bytes_per_atom", {m.memory[way] / count, m.peer_memory / count}}};
        if (!line["value"].is_null() || step != 0 || way != 1) continue;
        line["value"] = rate / threads;
        if (m.mode.empty()) continue;
        line["peer"] = {{"name", script.name()}, {"value", count / m.peer / threads}};
        line["ratio"] = m.peer / m.ours[way];
      }
    }
  }
  if (cases.empty()) return 1;
  line["cases"] = cases;
  std::printf("%s\n", line.dump().c_str());
}
