// ranks: 1
// deep: 1
// Whatever happens to a byte of a checkpoint is noticed, and the one before is taken.
#include <fstream>
#include <iostream>
#include <random>

#include "io/shard_index.hpp"
#include "snapshot_support.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// Snapshots of steps 1 and 2, written by three ranks.
class Damaged {
 public:
  Damaged() {
    for (const std::int64_t step : {1, 2}) {
      const auto errors = run_as_ranks(3, [&](const io::Collective& ranks) {
        io::Snapshots snapshots(snapshot_options(dir_ / "c"), ranks);
        SmallState(ranks.rank, ranks.size).save(snapshots, step);
        snapshots.finish();
      });
      for (const std::string& error : errors) REQUIRE(error.empty());
    }
    for (const auto& entry : fs::directory_iterator(newest()))
      files_.emplace_back(entry.path().string(), read_file(entry.path().string()));
    std::sort(files_.begin(), files_.end());
    REQUIRE(files_.size() == 4);
  }
  std::string newest() const { return dir_ / "c/step-000000002"; }
  const std::vector<std::pair<std::string, std::string>>& files() const { return files_; }

  /// With this content of a file the snapshot is refused; the one before is taken, with a word.
  void check(const std::string& file, const std::string& content) {
    write_file(file, content);
    check();
    write_file(file, read_original(file));
  }
  void check() {
    for (const int ranks : {1, 2}) {
      std::vector<std::string> lines;
      const auto errors = run_as_ranks(ranks, [&](const io::Collective& c) {
        io::Snapshots snapshots(snapshot_options(dir_ / "c", c.rank == 0 ? &lines : nullptr), c);
        const std::int64_t step = SmallState::load(snapshots);
        if (step != 1) throw std::runtime_error(str("step ", step, " was loaded"));
      });
      for (const std::string& error : errors) CHECK(error.empty());
      REQUIRE(lines.size() == 2);
      CHECK(lines[0].find("step-000000002") != std::string::npos);
      CHECK(lines[1].find("continuing from") != std::string::npos);
      CHECK(lines[1].find("step-000000001") != std::string::npos);
    }
  }
  void restore() {
    for (const auto& [path, content] : files_) write_file(path, content);
  }

 private:
  const std::string& read_original(const std::string& file) const {
    for (const auto& [path, content] : files_)
      if (path == file) return content;
    throw std::logic_error(file);
  }
  TempDir dir_;
  std::vector<std::pair<std::string, std::string>> files_;
};

}  // namespace

TEST_CASE("every byte that is changed, and every length that is cut, is noticed") {
  Damaged damaged;
  std::mt19937_64 random(run_seed());
  const bool deep = draw_count(20) >= 500;
  int draws = 0;
  for (const auto& [path, content] : damaged.files()) {
    INFO(path);
    for (std::size_t at = 0; at < content.size(); ++at) {
      if (!deep && random() % 4 != 0) continue;
      std::string other = content;
      other[at] = static_cast<char>(other[at] ^ (1 << random() % 8));
      damaged.check(path, other);
      other[at] = static_cast<char>(content[at] + 1 + static_cast<int>(random() % 255));
      damaged.check(path, other);
      damaged.check(path, content.substr(0, at));
      damaged.check(path, content.substr(0, at) + content.substr(at + 1));
      damaged.check(path, content.substr(0, at) + static_cast<char>(random()) + content.substr(at));
      draws += 5;
    }
    damaged.check(path, content + '\0');
    damaged.check(path, content + content);
  }
  std::cout << draws << " damages" << std::endl;
  CHECK(draws >= 1000);
}

TEST_CASE("files that are missing, exchanged or of another checkpoint are noticed") {
  Damaged damaged;
  for (const auto& [path, content] : damaged.files()) {
    fs::remove(path);
    damaged.check();
    fs::create_directory(path);
    damaged.check();
    fs::remove(path);
    damaged.restore();
    std::string before = path;
    before[before.find("step-000000002") + 13] = '1';
    const std::string old = read_file(before);
    // An index of the step before is whole in itself; its checksums are of other files.
    damaged.check(path, old);
    for (const auto& [other, bytes] : damaged.files())
      if (other != path) damaged.check(path, bytes);
  }
  std::error_code ignored;
  fs::remove_all(damaged.newest(), ignored);
  std::ofstream(damaged.newest()) << "a file";
  damaged.check();
}

TEST_CASE("an index whose parts do not make the tensor is refused") {
  io::ShardIndex index;
  for (int rank = 0; rank < 2; ++rank) index.files.push_back({.rank = rank, .bytes = 8});
  io::ShardedTensor& x = index.tensors.emplace_back();
  x.name = "x";
  x.shape = {4, 3};
  const auto fits = [&](const std::vector<io::ShardPart>& parts) {
    x.parts = parts;
    const std::string text = io::format_index(index);
    if (io::parts_cover(x))
      return io::parse_index("x", text).tensors[0].parts.size() == parts.size();
    CHECK_THROWS_WITH(io::parse_index("x", text), Catch::Contains("do not make the tensor"));
    return false;
  };
  const io::ShardPart low = {.rank = 0, .box = Box({0, 0}, {2, 3})};
  const io::ShardPart high = {.rank = 1, .box = Box({2, 0}, {4, 3})};
  CHECK(fits({low, high}));
  CHECK(fits({high, low}));
  CHECK(!fits({low}));
  CHECK(!fits({}));
  CHECK(!fits({low, {.rank = 1, .box = Box({3, 0}, {4, 3})}}));
  CHECK(!fits({low, high, {.rank = 1, .box = Box({0, 0}, {1, 1})}}));
  CHECK(!fits({low, {.rank = 1, .box = Box({2, 0}, {5, 3})}}));
  CHECK(!fits({low, {.rank = 1, .box = Box({2}, {4})}}));
  x.shape = {0, 3};
  CHECK(fits({}));
}

TEST_CASE("when all are damaged that is an error; what is no checkpoint is passed by") {
  const TempDir dir;
  io::Snapshots none(snapshot_options(dir / "c"), {});
  CHECK(SmallState::load(none) == 0);
  CHECK(none.list().empty());
  fs::create_directory(dir / "c");
  for (const char* name :
       {"step-1", "step-000000001.", "step-000000001.1", "step-00000000x", "step-",
        "step-000000002.tmp-0123456789abcdef", "notes", "step-000000001.02"})
    fs::create_directory(dir / "c" + "/" + name);
  CHECK(SmallState::load(none) == 0);
  fs::create_directory(dir / "c/step-000000003");
  CHECK_THROWS_AS(SmallState::load(none), DataError);

  // The damaged one goes once there is a better one; others' things stay, unfinished ones go.
  SmallState state(0, 1);
  state.save(none, 3);
  none.finish();
  CHECK(none.list() == std::vector<std::string>{dir / "c/step-000000003.2"});
  CHECK(SmallState::load(none) == 3);
  CHECK(fs::exists(dir / "c/notes"));
  CHECK(!fs::exists(dir / "c/step-000000002.tmp-0123456789abcdef"));

  CHECK_THROWS_AS(state.save(none, 2), UsageError);
  state.save(none, 3);
  state.save(none, 1'000'000'000);
  none.finish();
  CHECK(none.list() ==
        std::vector<std::string>{dir / "c/step-000000003.3", dir / "c/step-1000000000"});
  CHECK(SmallState::load(none) == 1'000'000'000);
}

}  // namespace tessera::test
