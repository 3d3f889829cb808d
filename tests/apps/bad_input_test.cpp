// ranks: none
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <tessera/nn/io/safetensors.hpp>

#include "program.hpp"

// What users get wrong, as a table: one message, an exit code, no hang, no file lost.
namespace tessera::test {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  int ranks;  ///< 0: without mpiexec
  Words words;
  int code;
  Words says = {};  ///< all of these, the first exactly once
  Words environment = {};
};

/// Files with every kind of defect, and a finished run.
class Workshop {
 public:
  Workshop() {
    REQUIRE(tessera(at, 0, train(at, "done")).code == 0);
    const std::string good = read_file(at.data());
    put("text.nc", "no such data");
    put("empty.nc", "");
    put("half.nc", good.substr(0, good.size() / 2));
    put("header.nc", good.substr(0, 60));
    field("nan.nc", std::numeric_limits<double>::quiet_NaN());
    field("inf.nc", std::numeric_limits<double>::infinity());
    line("line.nc");

    put("syntax.toml", "[training]\nsteps = = 3\n");
    put("key.toml", "[training]\nstpes = 3\n");
    put("table.toml", "[trainig]\nsteps = 3\n");
    put("type.toml", "[training]\nsteps = \"many\"\n");
    put("range.toml", "[training]\nsteps = 0\n");
    put("binary.toml", std::string("\x00\xff\xfe\x80", 4));
    put("nested.toml", "[training.deep]\nsteps = 3\n");

    const std::string file = "/rank-00000.safetensors";
    const std::string checkpoint = read_file(checkpoints(at / "done").back() + file);
    copy_run("truncated");
    copy_run("noise");
    for (const std::string& path : checkpoints(at / "truncated")) {
      std::ofstream(path + file, std::ios::binary) << checkpoint.substr(0, checkpoint.size() - 100);
    }
    for (const std::string& path : checkpoints(at / "noise")) {
      std::ofstream(path + "/index.json", std::ios::binary) << std::string(1000, '\xff');
    }
    copy_run("weights");
    fs::remove_all(at / "weights/checkpoints");
    put("weights/checkpoint.safetensors", read_file(at / "done/model.safetensors"));
    copy_run("other");
    std::string config = read_file(at / "done/config.toml");
    const std::string base = "base = 4";
    REQUIRE(config.find(base) != std::string::npos);
    put("other/config.toml", config.replace(config.find(base), base.size(), "base = 8"));
    copy_run("spoiled");
    put("spoiled/config.toml", "[model\n");
    copy_run("unbegun");
    fs::remove_all(at / "unbegun/checkpoints");
    copy_run("blocked");
    fs::remove(at / "blocked/metrics.jsonl");
    fs::create_directory(at / "blocked/metrics.jsonl");
    copy_run("model");
    put("model/model.safetensors", checkpoint);
    copy_run("damaged");
    put("damaged/model.safetensors", read_file(at / "done/model.safetensors").substr(0, 500));
    fs::create_directory(at / "directory");
    REQUIRE(mkfifo((at / "pipe").c_str(), 0600) == 0);
    before_ = done();
  }

  void put(const std::string& name, const std::string& content) const {
    std::ofstream(at / name, std::ios::binary) << content;
  }
  void copy_run(const std::string& name) const {
    fs::copy(at / "done", at / name, fs::copy_options::recursive);
  }
  void field(const std::string& name, double value) const {
    io::NetcdfWriter writer(at / name, {{.name = "y", .size = 48}, {.name = "x", .size = 48}},
                            {{.name = "z", .dims = {"y", "x"}}});
    std::vector<double> values(48 * 48, value);
    writer.write_box("z", Box::whole({48, 48}),
                     View::dense(values.data(), DType::kFloat64, {48, 48}));
    writer.commit();
  }
  void line(const std::string& name) const {
    io::NetcdfWriter writer(at / name, {{.name = "x", .size = 3}}, {{.name = "z", .dims = {"x"}}});
    std::vector<double> values(3);
    writer.write_box("z", Box::whole({3}), View::dense(values.data(), DType::kFloat64, {3}));
    writer.commit();
  }

  /// Names and contents of all files of the finished run.
  std::map<std::string, std::string> done() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(at / "done")) {
      if (entry.is_regular_file()) files[entry.path().string()] = read_file(entry.path().string());
    }
    return files;
  }
  void check(const Case& c) const {
    Words words = command(c.ranks, c.words);
    words.insert(words.begin(), {"/usr/bin/env"});
    words.insert(words.begin() + 1, c.environment.begin(), c.environment.end());
    const Outcome o = run(at, words);
    INFO(c.name << " on " << c.ranks << " processes, code " << o.code << "\n" << o.output);
    CHECK(o.code == c.code);
    for (const std::string& text : c.says) CHECK(o.says(text));
    if (!c.says.empty()) CHECK(o.count(c.says.front()) == 1);
    CHECK(o.count("tessera: ") <= 1);
    CHECK(std::count(o.output.begin(), o.output.end(), '\n') <= 4);
    for (const char* noise : {"terminate called", "what()", "Abort(", "BAD TERMINATION", "0x"}) {
      CHECK_FALSE(o.says(noise));
    }
    CHECK(done() == before_);
    CHECK(fs::is_fifo(at / "pipe"));
    fs::remove_all(at / "x");
    for (const auto& entry : fs::recursive_directory_iterator(at / "")) {
      CHECK(entry.path().string().find(".tmp-") == std::string::npos);
    }
  }

  const TemporaryFolder at;

 private:
  std::map<std::string, std::string> before_;
};

/// A training on other data, with few other options.
Words on(const std::string& data, const std::string& out, const Words& more = {}) {
  Words words = {"train", "unet",   "--data", data,      "--crop", "16",    "--factor",
                 "4",     "--base", "4",      "--steps", "2",      "--out", out};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("bad options give one clear message and an exit code") {
  const Workshop shop;
  const TemporaryFolder& at = shop.at;
  const std::string x = at / "x";
  const auto with = [&](const Words& more) { return train(at, "x", more); };
  const std::vector<Case> cases = {
      {"no command", 2, {}, 2, {"subcommand"}},
      {"unknown command", 2, {"trian"}, 2, {"Did you mean \"train\"?"}},
      {"unknown model", 0, {"train", "unte"}, 2, {"Did you mean \"unet\"?"}},
      {"unknown option", 2, with({"--stpes", "3"}), 2, {"Did you mean \"--steps\"?"}},
      {"option without its value", 0, with({"--seed"}), 2, {"--seed"}},
      {"word for a number", 2, with({"--base", "many"}), 2, {"\"model.base\"", "many"}},
      {"fraction for a count", 0, with({"--steps", "1.5"}), 2, {"\"training.steps\""}},
      {"number that is too large",
       0,
       with({"--steps", "99999999999999999999"}),
       2,
       {"\"training.steps\""}},
      {"no steps", 0, with({"--steps", "0"}), 2, {"\"training.steps\""}},
      {"negative rate", 0, with({"--lr", "-1"}), 2, {"\"training.lr\""}},
      {"rate that is no number", 0, with({"--lr", "nan"}), 2, {"\"training.lr\""}},
      {"probability above 1", 0, with({"--dropout", "1.5"}), 2, {"\"model.dropout\""}},
      {"unknown choice", 0, with({"--activation", "rleu"}), 2, {"\"model.activation\"", "relu"}},
      {"checkpoints never", 0, with({"--checkpoint-every", "0"}), 2, {"--checkpoint-every"}},
      {"no data", 2, {"train", "unet", "--out", x}, 2, {"--data"}},
      // The mesh.
      {"mesh of other size", 2, with({"--mesh", "h=3"}), 2, {"describe 3 ranks"}},
      {"mesh without sizes", 0, with({"--mesh", "h"}), 2, {"h=2,w=2"}},
      {"mesh of size 0", 2, with({"--mesh", "h=0"}), 2, {"h=2,w=2"}},
      {"mesh with three axes", 2, with({"--mesh", "h=2,w=1,d=1"}), 2, {"more axes"}},
      {"mesh that names an axis twice", 2, with({"--mesh", "h=2,h=1"}), 2, {"mesh"}},
      // Sizes.
      {"crop that is no multiple", 0, with({"--crop", "30"}), 2, {"crop"}},
      {"crop of nothing", 0, with({"--crop", "0"}), 2, {"\"data.crop\""}},
      {"crop larger than the field", 2, with({"--crop", "4096"}), 2, {"crop"}},
      {"factor larger than the field", 0, with({"--factor", "64", "--crop", "64"}), 2, {"data"}},
      {"factor 0", 0, with({"--factor", "0"}), 2, {"\"data.factor\""}},
      {"even kernel", 2, with({"--kernel", "4"}), 2, {"the kernel odd"}},
      {"groups that do not divide", 0, with({"--norm-groups", "3"}), 2, {"group"}},
      {"no levels", 0, with({"--multipliers", ""}), 2, {"multipliers"}},
      {"half a holdout", 2, with({"--holdout", "0"}), 2, {"data.holdout"}},
      {"holdout outside", 2, with({"--holdout", "0,360"}), 2, {"no crop"}},
      {"periodic dimension that is not there",
       0,
       with({"--periodic", "lno"}),
       2,
       {"Did you mean \"lon\"?"}},
      // The environment.
      {"limit that is no size",
       2,
       {"info"},
       2,
       {"'plenty' is not a size"},
       {"TESSERA_MEMORY_LIMIT=plenty"}},
      {"threads that are no number", 2, {"info"}, 2, {"TESSERA_THREADS"}, {"TESSERA_THREADS=all"}},
      {"timeout that is no number", 2, {"info"}, 2, {"TESSERA_TIMEOUT"}, {"TESSERA_TIMEOUT=soon"}},
      {"seed that is no number", 2, {"info"}, 2, {"TESSERA_SEED"}, {"TESSERA_SEED=lucky"}},
  };
  for (const Case& c : cases) shop.check(c);
}

TEST_CASE("bad files give one clear message and an exit code") {
  const Workshop shop;
  const TemporaryFolder& at = shop.at;
  const std::string x = at / "x";
  const auto with = [&](const Words& more) { return train(at, "x", more); };
  const auto resume = [&](const std::string& run, const Words& more = {}) {
    Words words = {"train", "unet", "--resume", "--out", at / run};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<Case> cases = {
      {"no such file", 2, on(at / "no.nc", x), 74, {"no.nc", "No such file"}},
      {"a directory", 2, on(at / "directory", x), 65, {"directory", "not a Zarr store"}},
      {"not NetCDF", 2, on(at / "text.nc", x), 65, {"text.nc"}},
      {"empty file", 0, on(at / "empty.nc", x), 65, {"empty.nc"}},
      {"truncated file", 2, on(at / "half.nc", x, {"--variable", "relief"}), 65, {"half.nc"}},
      {"truncated header", 0, on(at / "header.nc", x), 65, {"header.nc"}},
      {"unknown variable",
       2,
       on(at.data(), x, {"--variable", "relif"}),
       65,
       {"Did you mean \"relief\"?"}},
      {"one dimension", 0, on(at / "line.nc", x), 65, {"two dimensions"}},
      {"nothing but NaN", 2, on(at / "nan.nc", x), 65, {"no valid points"}},
      {"infinite values", 2, on(at / "inf.nc", x), 65, {"infinite values"}},
      // The settings file.
      {"no such config", 0, with({"--config", at / "no.toml"}), 74, {"no.toml", "No such file"}},
      {"not TOML", 2, with({"--config", at / "syntax.toml"}), 2, {"syntax.toml:2"}},
      {"unknown key",
       2,
       with({"--config", at / "key.toml"}),
       2,
       {"Did you mean \"training.steps\"?", "key.toml:2"}},
      {"unknown table",
       0,
       with({"--config", at / "table.toml"}),
       2,
       {"Did you mean \"training.steps\"?"}},
      {"text for a number", 0, with({"--config", at / "type.toml"}), 2, {"type.toml:2"}},
      {"number out of range", 0, with({"--config", at / "range.toml"}), 2, {"range.toml:2"}},
      {"bytes", 0, with({"--config", at / "binary.toml"}), 2, {"binary.toml"}},
      {"tables in tables", 0, with({"--config", at / "nested.toml"}), 2, {"nested.toml:2"}},
      // Places to write.
      {"run below a file", 2, train(at, "relief.nc/run"), 74, {"relief.nc/run"}},
      {"run where nothing can be made", 0, on(at.data(), "/proc/run"), 74, {"/proc/run"}},
      {"run that exists", 2, train(at, "done"), 2, {"--resume"}},
      {"metrics that are a directory", 2, resume("blocked"), 74, {"metrics.jsonl"}},
      {"output into a pipe",
       2,
       {"predict", at / "done", "--coarsen", "--output", at / "pipe"},
       74,
       {"not a regular file"}},
      {"output over a directory",
       0,
       {"predict", at / "done", "--coarsen", "--output", at / "directory"},
       74,
       {"not a regular file"}},
      {"output in no directory",
       2,
       {"predict", at / "done", "--coarsen", "--output", at / "no/y.nc"},
       74,
       {"no/y.nc"}},
      // Going on.
      {"resume without a run", 2, resume("nowhere"), 74, {"nowhere/config.toml"}},
      {"resume without a checkpoint", 2, resume("unbegun"), 74, {"holds no checkpoint"}},
      {"resume a truncated checkpoint", 2, resume("truncated"), 65, {"none of the 2"}},
      {"resume noise", 0, resume("noise"), 65, {"none of the 2"}},
      {"resume from weights", 2, resume("weights"), 65, {"not a checkpoint"}},
      {"resume with a spoiled config", 0, resume("spoiled"), 2, {"spoiled/config.toml:1"}},
      {"resume another model by option", 2, resume("done", {"--base", "8"}), 2, {"model.base = 8"}},
      {"resume another model by config", 2, resume("other"), 65, {"Build the model"}},
      // Other commands.
      {"evaluate nothing", 2, {"evaluate", at / "nowhere"}, 74, {"model.safetensors"}},
      {"evaluate a checkpoint", 2, {"evaluate", at / "model"}, 65, {"model.safetensors"}},
      {"evaluate a damaged model", 2, {"evaluate", at / "damaged"}, 65, {"model.safetensors"}},
      {"predict without output", 0, {"predict", at / "done"}, 2, {"--output"}},
      {"predict an unknown variable",
       2,
       {"predict", at / "done", "--coarsen", "--variable", "relif", "--output", at / "y.nc"},
       65,
       {"Did you mean \"relief\"?"}},
      {"predict with three axes",
       2,
       {"predict", at / "done", "--coarsen", "--mesh", "h=2,w=1,d=1", "--output", at / "y.nc"},
       2,
       {"more axes"}},
      {"info on nothing", 2, {"info", at / "nowhere"}, 74, {"nowhere"}},
      {"info on text", 0, {"info", at / "text.nc"}, 65, {"text.nc"}},
  };
  for (const Case& c : cases) shop.check(c);
}

TEST_CASE("processes that were started differently say so") {
  const TemporaryFolder at;
  Words words = {TESSERA_MPIEXEC, "-n",   "1", TESSERA_PROGRAM, "info", ":", "-n", "1",
                 TESSERA_PROGRAM, "infos"};
  const Outcome o = run(at, words);
  INFO(o.output);
  CHECK(o.code == 2);
  CHECK(o.count("processes 0 and 1 were given different arguments") == 1);
}

TEST_CASE("output that goes nowhere is an error") {
  const TemporaryFolder at;
  const Outcome o = run(at, command(0, {"info"}), [] { dup2(open("/dev/full", O_WRONLY), 1); });
  INFO(o.output);
  CHECK(o.code == 74);
  CHECK(o.count("standard output cannot be written") == 1);
}

TEST_CASE("a full disk ends a training with the last checkpoint whole") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 2, train(at, "run", {"--steps", "3"})).code == 0);
  constexpr std::uintmax_t kPage = 4096;
  std::uintmax_t room = 3 * kPage;  // config, metrics, half of another checkpoint
  for (const auto& entry : fs::directory_iterator(checkpoints(at / "run").back())) {
    room += (entry.file_size() + kPage - 1) / kPage * kPage;
  }

  const Words more = {"train", "unet", "--resume", "--steps", "9", "--out", at / "run"};
  // A file system of its own with room for the first checkpoint only.
  const std::string place = at / "small";
  fs::create_directory(place);
  const std::string size = "size=" + std::to_string(room);
  if (mount("tessera", place.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    WARN("not allowed to mount: a full disk was not tested here, see faults_test");
  } else {
    const Outcome o =
        run(at, command(2, train(at, "small/run", {"--steps", "9", "--checkpoint-every", "2"})));
    std::string damage;
    try {
      const std::vector<std::string> paths = checkpoints(place + "/run");
      if (paths.size() != 1) damage = str(paths.size(), " checkpoints");
      io::ShardReader(paths.at(0)).verify({});
    } catch (const IoError& e) {
      damage = e.what();
    }
    const std::vector<std::string> rest = unfinished(place + "/run");
    const std::size_t lines = losses(at, "small/run").size();
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(place + "/run")) {
      files.push_back(entry.path().filename().string());
    }
    for (const auto& entry : fs::directory_iterator(place)) fs::remove_all(entry.path());
    const Words predict = {"predict", at / "run", "--output", place + "/y.nc"};
    const Outcome predicted = run(at, command(2, predict));
    const bool nothing = fs::is_empty(place);
    umount(place.c_str());
    {
      INFO(predicted.output);
      CHECK(predicted.code == 74);
      CHECK(predicted.count("tessera: ") == 1);
      CHECK(nothing);
    }
    INFO(o.output);
    CHECK(o.code == 74);
    CHECK(o.count("No space left on device") == 1);
    CHECK(damage.empty());
    CHECK(lines <= 4);         // found out at the save after, at the latest
    CHECK(files.size() == 3);  // config, metrics, checkpoints: nothing temporary
    CHECK(rest.empty());
  }

  const Outcome again = tessera(at, 2, more);
  INFO(again.output);
  CHECK(again.code == 0);
  CHECK(losses(at, "run").size() == 9);
}

TEST_CASE("a run that was cut off while it wrote goes on") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 0, train(at, "run", {"--steps", "3"})).code == 0);
  const std::string half = at / "run/checkpoints/step-000000005.tmp-0123456789abcdef";
  fs::create_directory(half);
  std::ofstream(half + "/rank-00000.safetensors") << "the first half of a fi";
  for (const char* name : {"config.toml", "model.safetensors"}) {
    std::ofstream(at / "run/" + name + ".tmp-0123456789abcdef") << "the first half of a fi";
  }
  std::ofstream(at / "run/metrics.jsonl", std::ios::app)
      << "{\"step\": 4, \"loss\": 0.5}\n{\"step\": 5, \"lo";
  const Outcome o =
      tessera(at, 2, {"train", "unet", "--resume", "--steps", "9", "--out", at / "run"});
  INFO(o.output);
  REQUIRE(o.code == 0);
  CHECK(losses(at, "run").size() == 9);
  CHECK(unfinished(at / "run").empty());
}

TEST_CASE("a damaged checkpoint is named, and the one before continued to the same bits") {
  const TemporaryFolder at;
  REQUIRE(tessera(at, 2, train(at, "run", {"--checkpoint-every", "2"})).code == 0);
  const std::string model = read_file(at / "run/model.safetensors");
  const std::vector<double> before = losses(at, "run");
  fs::remove(at / "run/model.safetensors");
  REQUIRE(checkpoints(at / "run").size() == 2);
  const std::string newest = checkpoints(at / "run").back();
  const std::string file = newest + "/rank-00001.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(file, std::ios::binary) << bytes;
  const Outcome o = tessera(at, 2, {"train", "unet", "--resume", "--out", at / "run"});
  INFO(o.output);
  REQUIRE(o.code == 0);
  CHECK(o.count(file + ": holds other bytes than were written") == 1);
  CHECK(o.count("continuing from " + at / "run/checkpoints/step-000000004") == 1);
  CHECK(read_file(at / "run/model.safetensors") == model);
  CHECK(losses(at, "run") == before);
  CHECK(checkpoints(at / "run") ==
        std::vector<std::string>{at / "run/checkpoints/step-000000004", newest + ".2"});
}

TEST_CASE("memory that runs out on one rank is reported with the rank") {
  const TemporaryFolder at;
  for (const int rank : {0, 1}) {
    const Outcome o = run(at, command_with_environment(
                                  rank, {"-env", "TESSERA_MEMORY_LIMIT", "400KB"},
                                  train(at, "limited" + std::to_string(rank), {"--base", "16"})));
    INFO(o.output);
    CHECK(o.code == 70);
    CHECK(o.count("tessera: the job has failed") == 1);
    CHECK(o.says("  process " + std::to_string(rank) + " of 2: "));
    CHECK(o.says("TESSERA_MEMORY_LIMIT"));
  }
}

}  // namespace tessera::test
