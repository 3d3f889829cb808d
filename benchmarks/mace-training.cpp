// Trains on real structures (examples/data) with `tessera train mace` and with mace-torch side by
// side: the same split, model, budget and options, from the same first weights (the peer's, brought
// over by scripts/import_mace.py), through the same batches. Prints the RMSE of energies and forces
// of both after each epoch, and on all files in the end; the last line's ratio is that of the
// forces on the test file (below 1: ours is better).
// Usage: bench_mace-training [acac|si] [epochs] [seed] [same|own] [structures]
// own: each program has its own first weights and batches; structures: so many of the training file
#include <fmt/format.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tessera/nn/atoms/batches.hpp>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/sampler.hpp>
#include <thread>

#include "peer.hpp"

namespace {

using namespace tessera;
namespace fs = std::filesystem;

constexpr std::size_t kEvery = 10;  // one structure in ten validates

struct Set {
  const char* train;
  const char* e0_ours;
  const char* e0_peer;
  int epochs;
  const char* options;
};
const std::map<std::string, Set> kSets = {
    {"acac",
     {"train_300K.xyz", "H:-13.568422178253735,C:-1026.8538996116154,O:-2037.796869412825",
      "{1:-13.568422178253735,6:-1026.8538996116154,8:-2037.796869412825}", 24,
      "--num_channels 16 --max_L 1 --r_max 5 --batch_size 5"}},
    {"si",
     {"train.xyz", "average", "average", 16,
      "--num_channels 16 --max_L 0 --r_max 4.2 --batch_size 2"}}};

/// RMSE of energies per atom, meV, and of forces, meV/A.
using Score = std::array<double, 2>;

/// The frames of a file under label names that both programs read alike.
std::vector<nn::Structure> labelled(const std::string& path) {
  std::vector<nn::Structure> frames = io::read_extxyz(path);
  for (nn::Structure& s : frames) s.info.clear();
  return frames;
}

void write(const fs::path& path, const std::vector<nn::Structure>& frames) {
  io::write_extxyz(path.string(), frames);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Runs a program to its end, its output in `log`.
void run(const std::string& command, const fs::path& log) {
  const int status = std::system((command + " > " + log.string() + " 2>&1").c_str());
  if (status != 0) {
    throw Error(
        str("mace-training: `", command.substr(0, 60), "...` failed. Read ", log.string(), "."));
  }
}

void print_scores(const std::string& name, const Score* ours, const Score* peer) {
  const auto text = [](const Score* s) {
    return s != nullptr ? fmt::format("{:9.3f} {:9.3f}", (*s)[0], (*s)[1])
                        : fmt::format("{:>9} {:>9}", "-", "-");
  };
  std::string ratio;
  if (ours != nullptr && peer != nullptr)
    ratio = fmt::format("{:8.3f} {:8.3f}", (*ours)[0] / (*peer)[0], (*ours)[1] / (*peer)[1]);
  fmt::print("{:>14} {} {} {}\n", name, text(ours), text(peer), ratio);
}

int compare(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "acac";
  const auto found = kSets.find(name);
  if (found == kSets.end()) throw UsageError(str("there is no set ", name, ": acac or si."));
  const Set& set = found->second;
  const int epochs = argc > 2 ? std::stoi(argv[2]) : set.epochs;
  const std::uint64_t seed = argc > 3 ? std::stoull(argv[3]) : 1;
  const bool own = argc > 4 && std::string(argv[4]) == "own";
  const char* const given = std::getenv("TESSERA");
  const std::string tessera =
      given != nullptr
          ? given
          : (fs::read_symlink("/proc/self/exe").parent_path() / "../apps/tessera").string();

  const char* const peers = std::getenv("TESSERA_PEERS");
  const fs::path root = peers != nullptr ? fs::path(peers) / "../.." : fs::path(".");
  const fs::path folder = fs::temp_directory_path() / fmt::format("mace-training-{}", getpid());
  fs::create_directories(folder);
  const fs::path data = root / "examples/data" / name;
  std::vector<nn::Structure> train, valid;
  const std::vector<nn::Structure> all = labelled((data / set.train).string());
  const std::size_t most = argc > 5 ? std::stoul(argv[5]) : all.size();
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i)
    (i % kEvery == kEvery - 1 ? valid : train).push_back(all[i]);
  write(folder / "train.xyz", train);
  write(folder / "valid.xyz", valid);
  std::string test;
  std::vector<std::string> names = {"train", "valid"};
  for (const auto& file : fs::directory_iterator(data)) {
    const std::string stem = file.path().stem().string();
    if (!stem.starts_with("test")) continue;
    write(folder / file.path().filename(), labelled(file.path().string()));
    names.push_back(stem);
  }
  std::sort(names.begin() + 2, names.end());

  // The learning rate falls to a tenth in stage one; three quarters of the epochs.
  const int second = std::max(1, epochs * 3 / 4);
  const std::string options = fmt::format(
      "{} --max_num_epochs {} --lr 0.01 --scheduler ExponentialLR --lr_scheduler_gamma "
      "{} --stage_two --start_stage_two {} --valid_batch_size 10 --default_dtype "
      "float64",
      set.options, epochs, std::pow(0.1, 1.0 / second), second);
  std::map<std::string, Score> ours, peer;
  const auto key = [](int epoch) { return fmt::format("epoch {}", epoch); };

  std::string more;
  std::thread listener;
  std::optional<bench::Server> program;
  {
    if (!own) {
      std::ofstream order(folder / "order.txt");
      for (int e = 0; e < epochs; ++e) {
        for (const std::int64_t i :
             nn::shuffled(std::ssize(train), seed, static_cast<std::uint64_t>(e)))
          order << i << ' ';
        order << '\n';
      }
    }
    std::vector<std::string> words = bench::Peer("mace_train.py").command("");
    words.insert(words.end(), {folder.string(), std::to_string(seed), "--model", "ScaleShiftMACE",
                               "--amsgrad", "--ema", "--E0s", set.e0_peer});
    for (std::string& word : words_of(options)) {
      if (word == "--stage_two") word = "--swa";
      if (word == "--start_stage_two") word = "--start_swa";
      words.push_back(word);
    }
    program.emplace(words);
    std::string line = program->read();
    if (line != "start\n") {
      fmt::print("peer skipped: no mace-torch in the interpreter that TESSERA_PYTHON names\n");
      program.reset();
    } else {
      if (!own) {
        const std::string start = (folder / "start.safetensors").string();
        run(fmt::format("{} {}/scripts/import_mace.py {} {}", words[0], root.string(),
                        (folder / "start.model").string(), start),
            folder / "import.txt");
        more = " --foundation_model " + start;
      }
      listener = std::thread([&] {
        for (std::string text = program->read(); !text.empty(); text = program->read()) {
          const std::vector<std::string> w = words_of(text);
          if (w.size() != 4) continue;
          peer[w[0] == "epoch" ? key(std::stoi(w[1])) : w[1]] = {std::stod(w[2]), std::stod(w[3])};
        }
      });
    }
  }
  const auto in = [&](const std::string& file) { return (folder / file).string(); };
  run(fmt::format("{} train mace --out {} --train_file {} --valid_file {} --E0s {} --seed {} {}{}",
                  tessera, in("ours"), in("train.xyz"), in("valid.xyz"), set.e0_ours, seed, options,
                  more),
      folder / "ours.txt");
  std::ifstream metrics(in("ours/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    if (!row.contains("rmse_f_meV_per_A")) continue;
    ours[key(row["epoch"])] = {row["rmse_e_meV_per_atom"], row["rmse_f_meV_per_A"]};
  }
  for (const std::string& file : names) {
    run(fmt::format("{} evaluate {} --configs {}", tessera, in("ours"), in(file + ".xyz")),
        folder / "evaluate.txt");
    const nlohmann::json e = nlohmann::json::parse(std::ifstream(in("ours/evaluation.json")));
    ours[file] = {e.at("energy").at("rmse_meV_per_atom"), e.at("forces").at("rmse_meV_per_A")};
  }
  if (listener.joinable()) listener.join();

  fmt::print("{}: {} structures to train on, {} to validate; {}\n", name, train.size(),
             valid.size(), options);
  fmt::print("RMSE of energies (meV/atom) and forces (meV/A): ours, mace-torch, ratios\n");
  const auto print = [&](const std::string& row) {
    const auto at = [&](const std::map<std::string, Score>& from) {
      const auto place = from.find(row);
      return place != from.end() ? &place->second : nullptr;
    };
    print_scores(row, at(ours), at(peer));
  };
  for (int e = 0; e < epochs; ++e) print(key(e));
  for (const std::string& file : names) print(file);
  const nlohmann::json theirs =
      peer.contains(names[2]) ? nlohmann::json(peer[names[2]][1]) : nullptr;
  fmt::print("{}\n", nlohmann::json{{"benchmark", "mace-training"},
                                    {"set", name},
                                    {"value", ours[names[2]][1]},
                                    {"unit", "meV/A"},
                                    {"peer", theirs},
                                    {"ratio", theirs.is_null() ? theirs
                                                               : nlohmann::json(ours[names[2]][1] /
                                                                                peer[names[2]][1])}}
                         .dump());
  fs::remove_all(folder);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return compare(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "mace-training: {}\n", e.what());
    return 1;
  }
}
