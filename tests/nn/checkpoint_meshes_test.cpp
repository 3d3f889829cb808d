// ranks: 8
// A checkpoint written on any mesh of 1 to 8 ranks loads on any other, to the bit.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/checkpoints.hpp>
#include <tessera/nn/layers.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

/// Splits what it can over all axes: rows of one weight, columns of another, an uneven third.
struct Net : nn::Module {
  nn::Linear a;
  nn::Conv b;
  nn::Linear c;
  Tensor buffer;
  Net(const Mesh& mesh, std::uint64_t seed)
      : a({.in = 4, .out = 7}, mesh),
        b({.dims = 2, .in = 2, .out = 5, .kernel = {3}}, mesh),
        c({.in = 9, .out = 3}, mesh, DType::kFloat64),
        buffer(Tensor::full(Layout::replicated(mesh, {3}), static_cast<double>(seed))) {
    nn::initialize(*this, seed);
    std::vector<std::string_view> axes;
    for (int i = 0; i < mesh.axis_count(); ++i) axes.push_back(mesh.axis_name(i));
    const Placement split(mesh);
    nn::place(*this, {{"a.weight", {.rest = split.shard(0, axes)}},
                      {"b.weight", {.rest = split.shard(3, {axes.front()})}},
                      {"c.weight", {.rest = split.shard(1, {axes.back()})}}});
    if (axes.size() > 1)
      nn::place(*this, {{"b.weight", {.rest = split.shard(0, {axes[0]}).shard(2, {axes[1]})}}});
  }
  void fields(nn::Fields& f) override {
    f("a", a);
    f("b", b);
    f("c", c);
    f("buffer", buffer);
  }
};

struct Training {
  Net net;
  optim::AdamW adam;
  optim::Ema ema;
  nn::TrainingState state;
  Training(const Mesh& mesh, std::uint64_t seed)
      : net(mesh, seed), adam(net.parameters()), ema(net.parameters()) {
    state = {.model = &net, .optimizer = &adam, .ema = &ema};
    std::uint64_t key = 100 * seed;
    for (const auto& [name, tensor] : everything()) fill(tensor, ++key);
    state.step = static_cast<std::int64_t>(seed);
    adam.set_steps(static_cast<std::int64_t>(seed) + 3);
    adam.set_lr(0.1 / static_cast<double>(seed));
    ema.set_updates(static_cast<std::int64_t>(seed) + 5);
    net.random().step = seed + 7;
  }
  std::vector<std::pair<std::string, Tensor>> everything() {
    auto all = nn::state_dict(net);
    for (const auto& part : {adam.state(), ema.state()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  /// Elements that are not those of `seed`.
  std::int64_t wrong(std::uint64_t seed) {
    std::int64_t count = 0;
    std::uint64_t key = 100 * seed;
    for (const auto& [name, tensor] : everything()) {
      ++key;
      const View view = tensor.local();
      visit(tensor, [&](std::int64_t at, std::int64_t global) {
        std::byte cell[8];
        store_double(cell, view.dtype, 0, uniform_at(key, global));
        count += load_as_double(view.data, view.dtype, at) != load_as_double(cell, view.dtype, 0);
      });
    }
    return count;
  }

 private:
  template <class F>
  static void visit(const Tensor& tensor, F&& f) {
    const View view = tensor.local();
    const Box box = tensor.local_box();
    for_each_index(box, [&](const Index& i) {
      std::int64_t at = 0;
      std::int64_t global = 0;
      for (int d = 0; d < view.dims(); ++d) {
        at += (i[d] - box.lo[d]) * view.strides[d];
        global = global * tensor.shape()[d] + i[d];
      }
      f(at, global);
    });
  }
  static void fill(const Tensor& tensor, std::uint64_t key) {
    const View view = tensor.mutable_local();
    visit(tensor, [&](std::int64_t at, std::int64_t global) {
      store_double(view.data, view.dtype, at, uniform_at(key, global));
    });
  }
};

std::vector<Mesh> meshes() {
  std::vector<Mesh> all;
  for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
           {1}, {2}, {3}, {4}, {2, 2}, {6}, {2, 3}, {3, 2}, {8}, {4, 2}, {2, 2, 2}}) {
    std::vector<MeshAxis> axes;
    int count = 1;
    for (const int size : sizes) {
      axes.push_back({std::string(1, static_cast<char>('x' + axes.size())), size});
      count *= size;
    }
    // Not the same processes each time.
    std::vector<int> processes;
    for (int i = 0; i < count; ++i)
      processes.push_back((i + static_cast<int>(all.size())) % process().count);
    all.push_back(Mesh::of(processes, axes));
  }
  return all;
}

}  // namespace

TEST_CASE("every mesh loads what every mesh wrote") {
  const std::uint64_t id = from_process_0(
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  const std::string dir =
      (std::filesystem::temp_directory_path() / str("tessera-meshes-", id)).string();
  const std::vector<Mesh> all = meshes();
  std::size_t directories = 0;
  for (std::size_t from = 0; from < all.size(); ++from) {
    const std::string at = dir + "/" + std::to_string(from);
    const auto seed = static_cast<std::uint64_t>(from) + 2;
    if (all[from].rank() >= 0) {
      Training training(all[from], seed);
      nn::Checkpoints checkpoints(all[from], {.directory = at});
      checkpoints.save(training.state);
      checkpoints.finish();
    }
    any_process(false);  // it is there for all
    for (const Mesh& to : all) {
      if (to.rank() < 0) continue;
      INFO("from " << all[from].str() << " to " << to.str());
      Training training(to, 1);
      nn::Checkpoints checkpoints(to, {.directory = at});
      REQUIRE(checkpoints.load(training.state));
      CHECK(training.wrong(seed) == 0);
      CHECK(training.state.step == static_cast<std::int64_t>(seed));
      CHECK(training.adam.steps() == static_cast<std::int64_t>(seed) + 3);
      CHECK(training.adam.lr() == 0.1 / static_cast<double>(seed));
      CHECK(training.ema.updates() == static_cast<std::int64_t>(seed) + 5);
      CHECK(training.net.random().step == seed + 7);
      CHECK(training.net.random().seed == seed);
    }
    if (process().rank == 0) {
      // Each rank of the writing mesh wrote a share, also of what all of them hold.
      const auto files = std::distance(
          std::filesystem::directory_iterator(str(at, "/step-0000000", seed < 10 ? "0" : "", seed)),
          {});
      CHECK(files == all[from].size() + 1);
      ++directories;
    }
  }
  if (process().rank == 0) CHECK(directories == all.size());
  any_process(false);
  if (process().rank == 0) std::filesystem::remove_all(dir);
}

}  // namespace tessera::test
