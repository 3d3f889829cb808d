// ranks: 1 2 3
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/random.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/checkpoints.hpp>
#include <tessera/nn/layers.hpp>
#include <thread>

#include "io/system_calls.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

Mesh line() { return Mesh::world({{"x", process().count}}); }

/// The same new path on every process, removed at the end.
class SharedDir {
 public:
  SharedDir() {
    static std::uint64_t count = 0;
    std::uint64_t id = from_process_0(
        static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
    path_ = std::filesystem::temp_directory_path() / str("tessera-test-", id, "-", ++count);
    std::filesystem::create_directories(path_);
  }
  ~SharedDir() {
    any_process(false);  // nobody reads any more
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  std::filesystem::path path_;
};

struct Net : nn::Module {
  nn::Linear a;
  nn::Dropout drop{0.3};
  nn::Linear b;
  Tensor buffer;
  explicit Net(const Mesh& mesh, std::uint64_t seed = 1, std::int64_t hidden = 6)
      : a({.in = 4, .out = hidden}, mesh),
        b({.in = hidden, .out = 2}, mesh),
        buffer(Tensor::full(Layout::replicated(mesh, {3}), static_cast<double>(seed))) {
    nn::initialize(*this, seed);
    if (mesh.has_axis("x")) {
      nn::place(*this, {{"b.weight", {.rest = Placement(mesh).shard(1, {"x"})}}});
    }
  }
  void fields(nn::Fields& f) override {
    f("a", a);
    f("drop", drop);
    f("b", b);
    f("buffer", buffer);
  }
  Tensor operator()(const Tensor& x) const { return b(drop(silu(a(x)))); }
};

struct Training {
  Net net;
  optim::AdamW adam;
  optim::Ema ema;
  nn::TrainingState state;
  bool set_step;
  explicit Training(const Mesh& mesh, std::uint64_t seed = 1, bool sets_step = true)
      : net(mesh, seed),
        adam(net.parameters(), {.lr = 0.05}),
        ema(net.parameters()),
        set_step(sets_step) {
    state = {.model = &net, .optimizer = &adam, .ema = &ema};
  }
  double step() {
    const auto s = static_cast<std::uint64_t>(state.step);
    if (set_step) net.random().step = s;
    const Mesh mesh = net.a.weight.mesh();
    const Layout layout = Layout::replicated(mesh, {8, 4});
    const Tensor x = random_normal(layout, {s, 77});
    const Tensor loss = mse_loss(net(x), random_normal(Layout::replicated(mesh, {8, 2}), {s, 78}));
    backward(loss);
    adam.set_lr(0.01 + 0.01 * static_cast<double>(s % 3));
    adam.step();
    ema.update();
    ++state.step;
    return loss.item();
  }
};

std::vector<std::pair<std::string, Tensor>> everything(Training& t) {
  auto all = nn::state_dict(t.net);
  for (const auto& part : {t.adam.state(), t.ema.state()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void check_equal(Training& a, Training& b) {
  const auto va = everything(a);
  const auto vb = everything(b);
  REQUIRE(va.size() == vb.size());
  for (std::size_t i = 0; i < va.size(); ++i) {
    CHECK(va[i].first == vb[i].first);
    CHECK(compare(va[i].first, va[i].second, to_dense(vb[i].second), 0.0) == "");
  }
}

}  // namespace

TEST_CASE("a resumed training gives the bits of an uninterrupted one") {
  const bool set_step = GENERATE(true, false);  // without it the count of draws goes on
  const SharedDir dir;
  const Mesh mesh = line();
  Training whole(mesh, 1, set_step);
  for (int s = 0; s < 3; ++s) whole.step();
  whole.state.extra = {{"config", "a = 1\n"}};
  nn::save_checkpoint(dir / "c.safetensors", whole.state);
  std::vector<double> losses;
  for (int s = 0; s < 3; ++s) losses.push_back(whole.step());

  Training again(mesh, 2, set_step);  // other weights, other seed
  again.step();
  nn::load_checkpoint(dir / "c.safetensors", again.state);
  CHECK(again.state.step == 3);
  CHECK(again.state.extra == io::Metadata{{"config", "a = 1\n"}});
  CHECK(again.net.random().seed == 1);
  for (int s = 0; s < 3; ++s) CHECK(again.step() == losses[static_cast<std::size_t>(s)]);
  check_equal(again, whole);
  CHECK(dir.files() == 1);
}

TEST_CASE("a checkpoint loads on another mesh") {
  const SharedDir dir;
  Training many(line());
  for (int s = 0; s < 2; ++s) many.step();
  nn::save_checkpoint(dir / "c.safetensors", many.state);
  Training one(Mesh::self(), 5);
  nn::load_checkpoint(dir / "c.safetensors", one.state);
  check_equal(one, many);
}

namespace {

/// A disk that takes nothing until it is let go, or fails.
struct SlowDisk : io::SystemCalls {
  std::atomic<bool> slow{true};
  std::atomic<int> error{0};
  ssize_t write(int fd, const void* data, std::size_t bytes, off_t offset) override {
    while (slow) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (error != 0) {
      errno = error;
      return -1;
    }
    return SystemCalls::write(fd, data, bytes, offset);
  }
};

}  // namespace

TEST_CASE("checkpoints behind a training resume it to the bit") {
  const SharedDir dir;
  const Mesh mesh = line();
  const io::SnapshotOptions options = {.directory = dir / "c/d", .keep = 2};
  Training whole(mesh);
  std::vector<double> losses;
  {
    nn::Checkpoints checkpoints(mesh, options);
    CHECK(!checkpoints.load(whole.state));
    for (int s = 0; s < 7; ++s) {
      losses.push_back(whole.step());
      checkpoints.poll();
      whole.state.extra = {{"loss", str(losses.back())}};
      if (s % 2 == 0) checkpoints.save(whole.state);
    }
    checkpoints.finish();
    CHECK(checkpoints.list() ==
          std::vector<std::string>{dir / "c/d/step-000000005", dir / "c/d/step-000000007"});
  }
  for (const std::int64_t step : {5, 7}) {
    Training again(mesh, 2);
    again.step();
    nn::load_checkpoint(dir / str("c/d/step-00000000", step), again.state);
    CHECK(again.state.step == step);
    CHECK(again.state.extra.at("loss") == str(losses[static_cast<std::size_t>(step) - 1]));
    while (again.state.step < 7) {
      const auto s = static_cast<std::size_t>(again.state.step);
      CHECK(again.step() == losses[s]);
    }
    check_equal(again, whole);
  }
  Training other(mesh, 3);
  nn::Checkpoints checkpoints(mesh, options);
  REQUIRE(checkpoints.load(other.state));
  check_equal(other, whole);

  // The model of another size: no damage, so no older one is taken.
  Net wide(mesh, 1, 9);
  nn::TrainingState state = {.model = &wide};
  CHECK_THROWS_AS(checkpoints.load(state), DataError);
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "c/d/step-000000007", state), DataError);
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "c/d", state), IoError);
}

TEST_CASE("a save returns before the disk has taken it and holds the state of its moment") {
  const SharedDir dir;
  const Mesh mesh = line();
  const bool room = GENERATE(true, false);  // without, ranks write before they go on
  Training t(mesh);
  Training then(mesh);
  t.step();
  then.step();
  SlowDisk disk;
  disk.slow = room;
  const io::SystemCallsScope scope(disk);
  MemoryPool& pool = MemoryPool::of({});
  nn::Checkpoints checkpoints(mesh, {.directory = dir / "c"});
  const std::int64_t before = pool.stats().live_bytes;
  if (!room) pool.set_limit(before + 64);
  checkpoints.save(t.state);
  pool.set_limit(0);
  if (room) {
    if (mesh.rank() == 0) CHECK(pool.stats().live_bytes > before);
    CHECK(!checkpoints.poll());
    t.step();
    CHECK(!checkpoints.poll());
    CHECK(checkpoints.list().empty());
    any_process(false);
    disk.slow = false;
    while (!checkpoints.poll()) {
    }
    CHECK(!checkpoints.poll());
  } else {
    CHECK(checkpoints.poll());
    t.step();
  }
  CHECK(checkpoints.list().size() == 1);
  Training loaded(mesh, 4);
  REQUIRE(checkpoints.load(loaded.state));
  check_equal(loaded, then);
}

TEST_CASE("a disk that fails on one rank is an error on all, and the training goes on") {
  const SharedDir dir;
  const Mesh mesh = line();
  Training t(mesh);
  SlowDisk disk;
  disk.slow = false;
  const io::SystemCallsScope scope(disk);
  nn::Checkpoints checkpoints(mesh, {.directory = dir / "c"});
  t.step();
  checkpoints.save(t.state);
  checkpoints.finish();
  const auto failing = [&](const std::function<void()>& commit) {
    t.step();
    disk.error = mesh.rank() == mesh.size() - 1 ? ENOSPC : 0;
    checkpoints.save(t.state);
    try {
      commit();
      FAIL("no error");
    } catch (const IoError& e) {
      CHECK(std::string(e.what()).find("No space left on device") != std::string::npos);
    }
    disk.error = 0;
    CHECK(checkpoints.list() == std::vector<std::string>{dir / "c/step-000000001"});
  };
  failing([&] { checkpoints.finish(); });
  failing([&] {
    while (!checkpoints.poll()) {
    }
  });
  failing([&] { checkpoints.save(t.state); });
  t.step();
  checkpoints.save(t.state);
  checkpoints.finish();
  CHECK(checkpoints.list() ==
        std::vector<std::string>{dir / "c/step-000000001", dir / "c/step-000000005"});
  { nn::Checkpoints dropped(mesh, {.directory = dir / "c"}); }
  {
    nn::Checkpoints dropped(mesh, {.directory = dir / "c"});
    t.step();
    dropped.save(t.state);
  }
  any_process(false);
  Training loaded(mesh, 4);
  REQUIRE(checkpoints.load(loaded.state));
  CHECK(loaded.state.step == 5);
}

TEST_CASE("weights alone") {
  const SharedDir dir;
  Net a(line(), 1);
  Net b(line(), 2);
  nn::save_weights(dir / "w.safetensors", a, {{"note", "x"}});
  nn::load_weights(dir / "w.safetensors", b);
  const auto sa = nn::state_dict(a);
  const auto sb = nn::state_dict(b);
  for (std::size_t i = 0; i < sa.size(); ++i) {
    CHECK(compare(sa[i].first, sb[i].second, to_dense(sa[i].second), 0.0) == "");
  }
  const io::SafetensorsReader reader(dir / "w.safetensors");
  CHECK(reader.contains("a.weight"));
  CHECK(reader.contains("buffer"));
}

TEST_CASE("a file that does not fit leaves the model as it was") {
  const SharedDir dir;
  Net wide(line(), 1, 9);
  nn::save_weights(dir / "w.safetensors", wide);
  Training t(line(), 3);
  Training same(line(), 3);
  CHECK_THROWS_AS(nn::load_weights(dir / "w.safetensors", t.net), IoError);
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "w.safetensors", t.state), IoError);
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "absent.safetensors", t.state), IoError);

  nn::save_checkpoint(dir / "c.safetensors", t.state);
  nn::TrainingState less = {.model = &t.net};
  CHECK_THROWS_AS(nn::load_checkpoint(dir / "c.safetensors", less), IoError);
  check_equal(t, same);
}

}  // namespace tessera::test
