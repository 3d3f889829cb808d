// How many more atoms several ranks hold than one in the same memory for each rank: quartz in a
// MACE of two layers, energies and forces on 16 ranks, a training step (a loss of both, AdamW)
// on 8. What one rank needs for `atoms` is the limit for each of the ranks, twice: for the most
// bytes that the memory pool hands out at a time, and for these and all else by which the process
// grows from before the atoms are placed. Boxes are near cubes of whole cells; the largest that
// stays within both limits is searched by running them. It runs once more under
// TESSERA_MEMORY_LIMIT.
//
// Usage: bench_mace-capacity [inference|training|both] [atoms] [channels] [ranks]
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/runtime.hpp>
#include <tessera/tessera.hpp>

#include "jobs.hpp"
#include "peer.hpp"

namespace {

using namespace tessera;

constexpr double kCutoff = 4.0;
constexpr double kNeighbours = 18.7;  // of quartz

struct Box {
  std::array<std::int64_t, 3> cells{};
  std::int64_t atoms() const { return 9 * cells[0] * cells[1] * cells[2]; }
  std::string str() const { return fmt::format("{}x{}x{}", cells[0], cells[1], cells[2]); }
};

/// The largest box of at most `atoms` atoms, or the smallest of at least as many, whose sides
/// differ by three cells at most.
enum class Side { kBelow, kAbove };
Box near(std::int64_t atoms, Side side) {
  Box best;
  for (std::int64_t a = 1; 9 * a * a * a <= 2 * atoms + 9; ++a) {
    for (std::int64_t b = a; b <= a + 3; ++b) {
      for (std::int64_t c = b; c <= a + 3; ++c) {
        const Box box{{c, b, a}};
        const std::int64_t n = box.atoms();
        const bool better = side == Side::kBelow
                                ? n <= atoms && n > best.atoms()
                                : n >= atoms && (best.atoms() == 0 || n < best.atoms());
        if (better) best = box;
      }
    }
  }
  return best;
}

/// The part of the crystal that this rank starts with; atoms are out of place by up to 0.05 A.
nn::LocalAtoms share(const Box& box, const nn::Structure& cell) {
  nn::LocalAtoms mine;
  const std::int64_t cells = box.atoms() / 9;
  const std::int64_t ranks = process().count;
  for (std::int64_t i = cells * process().rank / ranks; i < cells * (process().rank + 1) / ranks;
       ++i) {
    const std::array<std::int64_t, 3> at = {i / (box.cells[1] * box.cells[2]),
                                            i / box.cells[2] % box.cells[1], i % box.cells[2]};
    for (std::int64_t k = 0; k < 9; ++k) {
      const std::int64_t id = 9 * i + k;
      mine.ids.push_back(id);
      mine.species.push_back(cell.species[static_cast<std::size_t>(k)]);
      for (std::size_t c = 0; c < 3; ++c) {
        double r = cell.positions[static_cast<std::size_t>(3 * k) + c] +
                   0.05 * std::sin(static_cast<double>(7 * id) + static_cast<double>(c));
        for (std::size_t axis = 0; axis < 3; ++axis)
          r += static_cast<double>(at[axis]) * cell.cell.vectors[axis][c];
        mine.positions.push_back(r);
      }
    }
  }
  return mine;
}

/// Returns the ghosts of this rank.
std::int64_t compute(const Box& box, bool training, std::int64_t channels) {
  const Mesh mesh = Mesh::world({{"atoms", process().count}});
  const nn::Structure cell = atomistic::quartz();
  nn::Cell whole = cell.cell;
  for (std::size_t axis = 0; axis < 3; ++axis)
    for (double& v : whole.vectors[axis]) v *= static_cast<double>(box.cells[axis]);
  models::MaceOptions options{.elements = {8, 14}, .r_max = kCutoff, .channels = channels};
  options.avg_num_neighbors = kNeighbours;
  options.radial_intervals = 256;
  models::Mace model(options, mesh);
  std::optional<optim::AdamW> adam;
  if (training) {
    adam.emplace(model.parameters(), optim::AdamWOptions{.lr = 1e-4});
    (void)adam->state();
  }
  const nn::AtomDomain domain(share(box, cell), whole, mesh, {.cutoff = kCutoff});
  const models::MaceResult r = model.compute(domain.graph(), {.create_graph = training});
  if (!training) return domain.graph().ghosts.local();
  backward(mean(square(r.energy / static_cast<double>(box.atoms()))) + mean(square(r.forces)));
  adam->step();
  return domain.graph().ghosts.local();
}

/// Of the fullest rank.
struct Use {
  std::int64_t pool = 0;   ///< bytes
  std::int64_t other = 0;  ///< bytes of the process that the pool does not hold
  std::int64_t ghosts = 0;
};

int work(int argc, char** argv) {
  Runtime runtime(argc, argv);
  // The report of a job that ran out of memory is no news here.
  if (std::freopen("/dev/null", "w", stderr) == nullptr) return 1;
  return runtime.guard([&] {
    bench::serve(argv[2], runtime.rank(), [&](const std::string& line) {
      Box box;
      std::istringstream(line) >> box.cells[0] >> box.cells[1] >> box.cells[2];
      std::array<std::int64_t, 3> most{};
      const std::int64_t grown = bench::added_memory(
          [&] { most[2] = compute(box, std::string(argv[3]) == "training", std::atoll(argv[4])); });
      const MemoryStats pool = MemoryPool::of(Device{}).stats();
      most[0] = pool.peak_bytes;
      most[1] = std::max<std::int64_t>(grown - pool.live_bytes - pool.cached_bytes, 0);
      parallel::all_reduce(parallel::Group::world(), most.data(), 3, DType::kInt64, ReduceOp::kMax)
          .wait();
      return fmt::format("{} {} {}", most[0], most[1], most[2]);
    });
  });
}

struct Search {
  std::string kind;
  std::int64_t channels;

  /// Nothing where it does not fit.
  std::optional<Use> run(int ranks, const Box& box, std::int64_t pool_limit = 0) const {
    std::vector<std::string> environment = {"TESSERA_THREADS=1"};
    if (pool_limit > 0) environment.push_back("TESSERA_MEMORY_LIMIT=" + std::to_string(pool_limit));
    bench::Job job(ranks, {kind, std::to_string(channels)}, environment);
    const std::string answer =
        job.run(fmt::format("{} {} {}", box.cells[0], box.cells[1], box.cells[2]));
    fmt::print("  {:2} ranks, {:>8}: {:7} atoms, ", ranks, box.str(), box.atoms());
    std::optional<Use> use;
    if (answer.empty()) {
      fmt::print("out of memory\n");
    } else {
      use.emplace();
      std::istringstream(answer) >> use->pool >> use->other >> use->ghosts;
      fmt::print("{} ghosts, {} of the pool", use->ghosts, format_bytes(use->pool));
      // Under a limit the pool gives back blocks that it does not hand out.
      fmt::print("{}\n", pool_limit > 0 ? "" : ", " + format_bytes(use->other) + " beside it");
    }
    std::fflush(stdout);
    return use;
  }

  /// How full the fuller of the two limits is.
  double fullness(int ranks, const Box& box, const Use& limit) const {
    const std::optional<Use> use = run(ranks, box);
    if (!use) throw Error(fmt::format("{} does not run on {} ranks", box.str(), ranks));
    const auto ratio = [](std::int64_t a, std::int64_t b) {
      return static_cast<double>(a) / static_cast<double>(b);
    };
    return std::max(ratio(use->pool, limit.pool),
                    ratio(use->pool + use->other, limit.pool + limit.other));
  }

  /// The largest box within the limits. Bytes are about as many as atoms, so the search aims at
  /// where these end.
  Box most(int ranks, std::int64_t guess, const Use& limit) const {
    std::int64_t good = 0, bad = 0;
    Box at = near(guess, Side::kBelow), best;
    while (true) {
      const double full = fullness(ranks, at, limit);
      auto aim = static_cast<std::int64_t>(static_cast<double>(at.atoms()) / full);
      if (full <= 1.0) {
        best = at;
        good = at.atoms();
        aim = std::max(aim, near(good + 1, Side::kAbove).atoms());
      } else {
        bad = at.atoms();
      }
      if (bad > 0) aim = std::min(aim, near(bad - 1, Side::kBelow).atoms());
      at = near(aim, Side::kBelow);
      if (at.atoms() <= good) return best;
    }
  }
};

/// Prints what is found; the JSON line's numbers.
nlohmann::json measure(const std::string& kind,
                       int ranks,
                       std::int64_t atoms,
                       std::int64_t channels) {
  const Search search{kind, channels};
  const Box one = near(atoms, Side::kBelow);
  fmt::print("{}, {} channels, L = 1, two layers, cutoff {} A\n", kind, channels, kCutoff);
  const std::optional<Use> limit = search.run(1, one);
  if (!limit) throw Error("one rank does not run");
  const Box many = search.most(ranks, one.atoms() * ranks * 15 / 16, *limit);
  fmt::print("under TESSERA_MEMORY_LIMIT={}:\n", limit->pool);
  const bool runs = search.run(ranks, many, limit->pool).has_value();
  const double ratio = static_cast<double>(many.atoms()) / static_cast<double>(one.atoms());
  fmt::print("{}: {} atoms on {} ranks, {} on one: {:.2f} times as many, {} per rank\n", kind,
             many.atoms(), ranks, one.atoms(), ratio, many.atoms() / ranks);
  std::fflush(stdout);
  return {{"atoms", many.atoms()},
          {"ranks", ranks},
          {"one", one.atoms()},
          {"ratio", ratio},
          {"runs", runs}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--worker") return work(argc, argv);
  const std::string kind = argc > 1 ? argv[1] : "both";
  const std::int64_t atoms = argc > 2 ? std::atoll(argv[2]) : 11000;
  const std::int64_t channels = argc > 3 ? std::atoll(argv[3]) : 16;
  const int ranks = argc > 4 ? std::atoi(argv[4]) : 0;
  nlohmann::json inference, training;
  if (kind != "training") inference = measure("inference", ranks > 0 ? ranks : 16, atoms, channels);
  if (kind != "inference") training = measure("training", ranks > 0 ? ranks : 8, atoms, channels);
  const nlohmann::json& first = inference.is_null() ? training : inference;
  fmt::print(
      "for comparison, as published: ShardTensor's MACE 13.6 times on 16 GPUs, with the shell "
      "of all layers copied 6.2 times\n");
  nlohmann::json line = {{"benchmark", "mace-capacity"},
                         {"value", first["atoms"]},
                         {"unit", fmt::format("atoms on {} ranks", first["ranks"].get<int>())},
                         {"peer", {{"name", "one rank, the same memory"}, {"value", first["one"]}}},
                         {"ratio", first["ratio"]},
                         {"inference", inference},
                         {"training", training}};
  fmt::print("{}\n", line.dump());
  for (const nlohmann::json& j : {inference, training})
    if (!j.is_null() && !j["runs"].get<bool>()) return 1;
}
