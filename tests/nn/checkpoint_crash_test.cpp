// ranks: 1
// deep: 1
// A crash, a power cut, a full or failing disk at every call that changes the file system.
#include <atomic>
#include <iostream>

#include "recorded_calls.hpp"
#include "snapshot_support.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

std::int64_t newest(const std::string& directory) {
  io::Snapshots snapshots(snapshot_options(directory), {});
  return SmallState::load(snapshots);
}

class CrashTest {
 public:
  explicit CrashTest(int ranks) : ranks_(ranks) {
    fs::create_directory(start_ + "/checkpoints");
    program(start_ + "/checkpoints", {1, 2}, nullptr);
    REQUIRE(newest(start_ + "/checkpoints") == 2);
    RecordedCalls calls(fresh(), {});
    CHECK(program_under(calls) == 4);
    calls_ = calls.calls();
  }
  int calls() const { return calls_; }

  /// The program dies at call n; in addition the machine does, in `draws` ways.
  void die_at(int n, int draws, std::mt19937_64& random) {
    INFO(ranks_ << " ranks, death at call " << n << " of " << calls_);
    RecordedCalls calls(fresh(), {.at = n});
    const std::int64_t committed = program_under(calls);
    CHECK(calls.dead());
    check_loads(work_, committed);
    check_goes_on(work_);
    for (int draw = 0; draw < draws; ++draw) {
      const double luck[] = {0.0, 1.0, 0.5, 0.9, 0.1};
      calls.power_cut(cut_, luck[draw % 5], random);
      INFO("power cut, draw " << draw);
      check_loads(cut_, committed);
      check_goes_on(cut_);
    }
  }

  /// Call n fails with this error, once or (`stays`) until there is room again.
  void fail_at(int n, int error, bool stays) {
    INFO(ranks_ << " ranks, error " << error << " at call " << n << " of " << calls_
                << (stays ? " and later" : ""));
    RecordedCalls calls(fresh(), {.at = n, .error = error, .stays = stays});
    const std::int64_t committed = program_under(calls);
    CHECK(failures_ <= (stays ? 2 : 1));
    check_loads(work_, committed);
    check_goes_on(work_);
  }

 private:
  /// A new process that loads, and saves steps 3 and 4, whatever happens; the last step that it
  /// knows to be committed.
  std::int64_t program_under(RecordedCalls& calls) {
    const io::SystemCallsScope scope(calls);
    return program(work_ + "/checkpoints", {3, 4}, &calls);
  }
  std::int64_t program(const std::string& directory,
                       const std::vector<std::int64_t>& steps,
                       const RecordedCalls* calls) {
    std::atomic<std::int64_t> committed = 0;
    std::atomic<int> failures = 0;
    const auto errors = run_as_ranks(ranks_, [&](const io::Collective& ranks) {
      io::Snapshots snapshots(snapshot_options(directory), ranks);
      SmallState state(ranks.rank, ranks.size);
      if (ranks.rank == 0) committed = 0;
      const std::int64_t loaded = SmallState::load(snapshots);
      if (ranks.rank == 0) committed = loaded;
      for (const std::int64_t step : steps) {
        try {
          state.save(snapshots, step);
          snapshots.finish();
          if (ranks.rank == 0 && (calls == nullptr || !calls->dead())) committed = step;
        } catch (const IoError&) {
          if (ranks.rank == 0) ++failures;
        }
      }
    });
    for (const std::string& error : errors) CHECK(error.empty());
    failures_ = failures;
    return committed;
  }
  /// `work_` as it is after two saves.
  const std::string& fresh() {
    fs::remove_all(work_);
    fs::copy(start_, work_, fs::copy_options::recursive);
    return work_;
  }
  static void check_loads(const std::string& folder, std::int64_t committed) {
    const std::int64_t step = newest(folder + "/checkpoints");
    CHECK(step >= committed);
    CHECK(step <= 4);
    CHECK(step >= 2);
  }
  /// Another process saves once more, and leaves nothing but what is to be kept.
  static void check_goes_on(const std::string& folder) {
    NoSync calls;
    const io::SystemCallsScope scope(calls);
    const std::string directory = folder + "/checkpoints";
    {
      io::Snapshots snapshots(snapshot_options(directory), {});
      SmallState state(0, 1);
      REQUIRE(SmallState::load(snapshots) >= 2);
      state.save(snapshots, 5);
      snapshots.finish();
      CHECK(snapshots.list().size() == 2);
    }
    CHECK(newest(directory) == 5);
    CHECK(std::distance(fs::directory_iterator(directory), {}) == 2);
  }

  int ranks_;
  TempDir dir_;
  std::string start_ = (fs::create_directory(dir_ / "start"), dir_ / "start");
  std::string work_ = dir_ / "work";
  std::string cut_ = dir_ / "cut";
  int calls_ = 0;
  int failures_ = 0;
};

const bool kDeep = draw_count(20) >= 500;

}  // namespace

TEST_CASE("a crash or power cut at any call leaves the last committed checkpoint") {
  std::mt19937_64 random(run_seed());
  for (const int ranks : {1, 3}) {
    CrashTest test(ranks);
    std::cout << ranks << " ranks: " << test.calls() << " calls" << std::endl;
    CHECK(test.calls() > 25);
    for (int n = 1; n <= test.calls(); ++n) test.die_at(n, kDeep ? 100 : 4, random);
  }
}

TEST_CASE("a full, failing, read-only disk at any call leaves the last committed checkpoint") {
  for (const int ranks : {1, 3}) {
    CrashTest test(ranks);
    for (int n = 1; n <= test.calls(); ++n) {
      for (const int error : {ENOSPC, EIO, EROFS, EDQUOT, EACCES}) {
        if (!kDeep && error != ENOSPC && error != EIO && n % 5 != 0) continue;
        test.fail_at(n, error, false);
        test.fail_at(n, error, true);
      }
    }
  }
}

TEST_CASE("the model of power cuts finds what is not brought to disk") {
  // The same calls without one sync: some power cut loses what was committed.
  struct Forgetful : RecordedCalls {
    using RecordedCalls::RecordedCalls;
    int left_out = 0;
    int syncs = 0;
    int sync(int fd) override { return ++syncs == left_out ? 0 : RecordedCalls::sync(fd); }
  };
  const TempDir dir;
  std::mt19937_64 random(1);
  for (int left_out = 1; left_out <= 4; ++left_out) {  // file, index, directory, parent
    const std::string work = dir / ("work" + std::to_string(left_out));
    fs::create_directory(work);
    fs::create_directory(work + "/checkpoints");
    Forgetful calls(work, {});
    {
      const io::SystemCallsScope scope(calls);
      calls.left_out = left_out;
      io::Snapshots snapshots(snapshot_options(work + "/checkpoints"), {});
      SmallState state(0, 1);
      state.save(snapshots, 1);
      snapshots.finish();
    }
    REQUIRE(calls.syncs == 4);
    bool lost = false;
    for (int draw = 0; draw < 20 && !lost; ++draw) {
      calls.power_cut(dir / "cut", 0.5, random);
      try {
        lost = newest(dir / "cut/checkpoints") != 1;
      } catch (const IoError&) {
        lost = true;
      }
    }
    CHECK(lost);
  }
}

}  // namespace tessera::test
