// ranks: 1 2 4
// Pipelines of small blocks: what moves, what is refused, what a stage holds.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/backward_through.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/checkpoints.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/mlp.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/nn/schedules.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using parallel::CallKind;
using parallel::PipelineSchedule;

constexpr std::int64_t kChannels = 6;

Tensor mse(const Tensor& y, const Tensor& t) { return mse_loss(y, t); }

/// Eight linear layers.
struct Chain : nn::Module {
  nn::Sequential layers;
  explicit Chain(const Mesh& mesh, int count = 8) {
    for (int i = 0; i < count; ++i)
      layers.add(nn::Linear({.in = kChannels, .out = kChannels}, mesh, DType::kFloat64));
    nn::initialize(*this, 3);
  }
  void fields(nn::Fields& f) override { f("layers", layers); }
};

Mesh pipe_mesh() { return Mesh::world({{"pipe", process().count}}); }

Tensor field(const Mesh& mesh, const Shape& shape, std::uint64_t seed) {
  Placement placement(mesh);
  if (mesh.has_axis("h")) placement = placement.domain(0, "h");
  if (mesh.has_axis("data")) placement = placement.batch("data");
  return to_tensor(random_array(shape, seed), placement.resolve(shape), DType::kFloat64);
}

std::int64_t sent_by_all(CallKind kind, const std::function<void()>& f) {
  const std::int64_t before = parallel::comm_stats()[kind].bytes;
  f();
  std::int64_t bytes = parallel::comm_stats()[kind].bytes - before;
  parallel::all_reduce(parallel::Group::world(), &bytes, 1, DType::kInt64).wait();
  return bytes;
}

/// The text of the error, which all processes must see alike.
std::string error_of(const std::function<void()>& f) {
  std::string text;
  try {
    f();
  } catch (const Error& e) {
    text = e.what();
  }
  std::vector<std::int64_t> sizes =
      parallel::all_gather_counts(parallel::Group::world(), static_cast<std::int64_t>(text.size()));
  for (const std::int64_t size : sizes) CHECK((size > 0) == !text.empty());
  return text;
}

}  // namespace

TEST_CASE("pipeline: between stages go the parts of activations and their gradients, no more") {
  const int n = process().count;
  std::vector<Mesh> meshes{pipe_mesh()};
  if (n == 4) {
    meshes.push_back(Mesh::world({{"pipe", 2}, {"h", 2}}));
    meshes.push_back(Mesh::world({{"data", 2}, {"pipe", 2}}));
  }
  for (const Mesh& mesh : meshes) {
    for (const int chunks : {1, 2}) {
      INFO(mesh.str() << ", chunks " << chunks);
      const Mesh stage = nn::Pipeline::stage_mesh(mesh);
      const int stages = mesh.axis_size(mesh.axis("pipe"));
      Chain chain(stage);
      nn::Pipeline pipeline(
          chain, nn::pipeline_blocks(chain.layers), mesh,
          {.micro_batches = 4, .schedule = PipelineSchedule::kInterleaved, .chunks = chunks});
      const Tensor x = field(stage, {8, 5, kChannels}, 1);
      const Tensor t = field(stage, {8, 5, kChannels}, 2);
      const auto step = [&] { pipeline.step(x, t, mse); };
      step();
      const std::int64_t one_way = stages == 1 ? 0 : (stages * chunks - 1) * 8 * 5 * kChannels * 8;
      CHECK(sent_by_all(CallKind::kSend, step) == 2 * one_way);
      CHECK(sent_by_all(CallKind::kBroadcast, step) == 8 * (n - n / stages));
      CHECK(sent_by_all(CallKind::kSend, [&] { pipeline.evaluate(x, t, mse); }) >= one_way);
      CHECK(sent_by_all(CallKind::kSend, [&] { pipeline.evaluate(x, t, mse); }) == one_way);
    }
  }
}

TEST_CASE("pipeline: a stage holds its own parameters") {
  const Mesh mesh = pipe_mesh();
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  Chain chain(stage);
  const Chain whole(Mesh::self());
  nn::Pipeline pipeline(chain, nn::pipeline_blocks(chain.layers), mesh);
  const int each = 8 / process().count;
  std::int64_t bytes = 0;
  int i = 0;
  for (const auto& [path, p] : chain.named_parameters()) {
    const int block = i++ / 2;
    CHECK(p.here() == (block / each == pipeline.stage()));
    bytes += p.local_bytes();
    if (p.here()) continue;
    try {
      p.value();
      FAIL("no error");
    } catch (const UsageError& e) {
      CHECK_THAT(e.what(), Catch::Contains(path + " lies in stage"));
    }
  }
  CHECK(bytes == each * (kChannels + 1) * kChannels * 8);
}

TEST_CASE("pipeline: batches of changing sizes, single micro-batches, and gradients that add up") {
  const Mesh mesh = pipe_mesh();
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  Chain chain(stage);
  nn::Pipeline pipeline(chain, nn::pipeline_blocks(chain.layers), mesh, {.micro_batches = 2});
  Chain one(Mesh::self());
  const auto model = [&](const Tensor& x) { return one.layers(x); };
  for (const std::int64_t rows : {3, 4, 3, 1, 4}) {
    std::vector<Tensor> inputs, targets, whole_inputs, whole_targets;
    for (const std::int64_t extra : {0, 2}) {
      const Shape shape = {rows + extra, 2, kChannels};
      const auto seed = static_cast<std::uint64_t>(10 * rows + extra);
      inputs.push_back(field(stage, shape, seed));
      targets.push_back(field(stage, shape, seed + 1));
      whole_inputs.push_back(to_self(random_array(shape, seed)));
      whole_targets.push_back(to_self(random_array(shape, seed + 1)));
    }
    const double loss = pipeline.step(inputs, targets, mse);
    double expected = 0.0;
    for (std::size_t m = 0; m < 2; ++m) {
      const Tensor value = mse(model(whole_inputs[m]), whole_targets[m]) * 0.5;
      backward(value);
      expected += value.item();
    }
    CHECK(loss == Approx(expected).epsilon(1e-12));
  }
  const double norm = optim::grad_norm(one.parameters());
  CHECK(optim::grad_norm(chain.parameters()) == Approx(norm).epsilon(1e-12));
  for (std::size_t i = 0; i < one.parameters().size(); ++i) {
    const nn::Parameter p = chain.parameters()[i];
    if (!p.here()) continue;
    const DenseArray whole = to_dense(gradient(one.parameters()[i].value()));
    CHECK(compare(p.path(), gradient(p.value()), whole, 1e-12, 1e-3) == "");
  }
}

TEST_CASE("pipeline: a stage that computes again keeps what it gets of micro-batches in flight") {
  const Mesh mesh = pipe_mesh();
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  const auto peak_of = [&](bool recompute) {
    nn::Sequential layers;
    for (int i = 0; i < 8; ++i) layers.add(nn::Mlp({.channels = 8, .hidden = 64}, stage));
    nn::initialize(layers, 0);
    nn::Pipeline pipeline(layers, nn::pipeline_blocks(layers), mesh,
                          {.micro_batches = 8, .recompute = recompute});
    const Tensor x = Tensor::zeros(Layout::replicated(stage, {8, 1000, 8}));
    pipeline.step(x, x, mse);
    MemoryPool& pool = MemoryPool::of({});
    const std::int64_t before = pool.stats().live_bytes;
    pool.reset_peak();
    pipeline.step(x, x, mse);
    return pool.stats().peak_bytes - before;
  };
  const std::int64_t plain = peak_of(false);
  const std::int64_t again = peak_of(true);
  // The first of S stages holds S micro-batches, computed again one at a time.
  INFO(plain << " and " << again << " bytes");
  if (process().count > 1 && process().rank == 0) CHECK(again < plain * 3 / 4);
  if (process().count > 2 && process().rank == 0) CHECK(again < plain / 2);
}

TEST_CASE("pipeline: checkpoints hold the whole model, whatever the stages") {
  const Mesh mesh = pipe_mesh();
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  const std::string file =
      std::filesystem::temp_directory_path() /
      str("tessera-pipeline-", from_process_0(static_cast<std::uint64_t>(getpid())));
  const Shape shape = {4, 2, kChannels};
  const DenseArray target = random_array(shape, 50);
  enum class From { kStart, kFile, kDirectory };
  // The last loss of five steps, the first three saved or loaded.
  const auto train = [&](const nn::PipelineOptions& options, From from) {
    Chain chain(stage);
    nn::Pipeline pipeline(chain, nn::pipeline_blocks(chain.layers), mesh, options);
    optim::AdamW adam(chain.parameters());
    optim::Ema ema(chain.parameters());
    nn::TrainingState state{.model = &chain, .optimizer = &adam, .ema = &ema};
    const auto step = [&](std::uint64_t seed) {
      const double loss = pipeline.step(field(stage, shape, seed), field(stage, shape, 50), mse);
      adam.step();
      ema.update();
      return loss;
    };
    if (from == From::kStart) {
      for (const std::uint64_t seed : {1, 2, 3}) step(seed);
      state.step = 3;
      nn::save_checkpoint(file, state);
      nn::Checkpoints checkpoints(mesh, {.directory = file + ".steps"});
      checkpoints.save(state);
      checkpoints.finish();
    } else if (from == From::kDirectory) {
      CHECK(nn::Checkpoints(mesh, {.directory = file + ".steps"}).load(state));
      CHECK(state.step == 3);
    } else {
      nn::load_checkpoint(file, state);
      CHECK(state.step == 3);
    }
    step(4);
    ema.swap();
    return step(5);
  };
  const double expected = train({.micro_batches = 4}, From::kStart);
  CHECK(train({.micro_batches = 4}, From::kFile) == expected);
  CHECK(train({.micro_batches = 4, .recompute = true}, From::kDirectory) == expected);
  CHECK(train({.micro_batches = 4, .schedule = PipelineSchedule::kInterleaved, .chunks = 2},
              From::kFile) == Approx(expected).epsilon(1e-13));
  CHECK(train({.micro_batches = 1, .costs = {9, 1, 1, 1, 1, 1, 1, 1}}, From::kFile) ==
        Approx(expected).epsilon(1e-13));

  // Each process by itself, without a pipeline.
  Chain one(Mesh::self());
  optim::AdamW adam(one.parameters());
  optim::Ema ema(one.parameters());
  nn::TrainingState state{.model = &one, .optimizer = &adam, .ema = &ema};
  nn::load_checkpoint(file, state);
  const auto step = [&](std::uint64_t seed) {
    const Tensor loss = mse(one.layers(to_self(random_array(shape, seed))), to_self(target));
    backward(loss);
    adam.step();
    ema.update();
    return loss.item();
  };
  step(4);
  ema.swap();
  CHECK(step(5) == Approx(expected).epsilon(1e-13));
  any_process(false);  // nobody reads any more
  if (process().rank == 0) {
    std::filesystem::remove(file);
    std::filesystem::remove_all(file + ".steps");
  }
}

TEST_CASE("pipeline: chunks of a stage may share parameters") {
  // Each layer twice; the second use lies in the next chunk of the same stage.
  const int n = process().count;
  std::vector<Mesh> meshes{pipe_mesh()};
  if (n > 1) meshes.push_back(Mesh::world({{"pipe", n / 2}, {"data", 2}}));
  for (const Mesh& mesh : meshes) {
    INFO(mesh.str());
    const Mesh stage = nn::Pipeline::stage_mesh(mesh);
    Chain chain(stage, 4);
    std::vector<nn::PipelineBlock> blocks = nn::pipeline_blocks(chain.layers);
    for (std::size_t i = 0; i < 4; ++i) blocks.push_back(blocks[i]);
    nn::Pipeline pipeline(
        chain, blocks, mesh,
        {.micro_batches = 4, .schedule = PipelineSchedule::kInterleaved, .chunks = 2});
    const Shape shape = {8, 3, kChannels};
    pipeline.step(field(stage, shape, 1), field(stage, shape, 2), mse);

    Chain one(Mesh::self(), 4);
    const Tensor y = one.layers(one.layers(to_self(random_array(shape, 1))));
    backward(mse(y, to_self(random_array(shape, 2))));
    for (std::size_t i = 0; i < 8; ++i) {
      const nn::Parameter p = chain.parameters()[i];
      if (!p.here()) continue;
      CHECK(compare(p.path(), gradient(p.value()), to_dense(gradient(one.parameters()[i].value())),
                    1e-12, 1e-3) == "");
    }
  }
}

TEST_CASE("pipeline: constants travel without gradients, unused values give zeros") {
  // Frozen first layer: nothing flows back into it. The second tensor is dropped in the end.
  const Mesh mesh = pipe_mesh();
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  Chain chain(stage, 4);
  chain.named_parameters()[0].second.set_requires_grad(false);
  chain.named_parameters()[1].second.set_requires_grad(false);
  std::vector<nn::PipelineBlock> blocks = nn::pipeline_blocks(chain.layers);
  blocks[1].run = [&](std::span<const Tensor> in) {
    const Tensor y = chain.layers[1](in[0]);
    return std::vector<Tensor>{y, y * 2.0, in[0]};
  };
  blocks[3].run = [&](std::span<const Tensor> in) {
    return std::vector<Tensor>{chain.layers[3](in[0]) + in[2]};
  };
  nn::Pipeline pipeline(chain, blocks, mesh, {.micro_batches = 2});
  const Shape shape = {4, 3, kChannels};
  pipeline.step(field(stage, shape, 1), field(stage, shape, 2), mse);

  Chain one(Mesh::self(), 4);
  for (int m = 0; m < 2; ++m) {
    const Tensor x = one.layers[0](slice(to_self(random_array(shape, 1)), 0, 2 * m, 2 * m + 2));
    const Tensor t = slice(to_self(random_array(shape, 2)), 0, 2 * m, 2 * m + 2);
    const Tensor y = one.layers[3](one.layers[2](one.layers[1](x))) + x;
    backward(mse(y, t) * 0.5);
  }
  for (std::size_t i = 2; i < 8; ++i) {
    const nn::Parameter p = chain.parameters()[i];
    if (!p.here()) continue;
    CHECK(compare(p.path(), gradient(p.value()), to_dense(gradient(one.parameters()[i].value())),
                  1e-12, 1e-3) == "");
  }
}

TEST_CASE("pipeline: what cannot work is refused on all processes alike") {
  const Mesh mesh = pipe_mesh();
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  Chain chain(stage);
  const auto blocks = nn::pipeline_blocks(chain.layers);
  const auto made = [&](std::vector<nn::PipelineBlock> list, const nn::PipelineOptions& options) {
    return error_of([&] { nn::Pipeline(chain, std::move(list), mesh, options); });
  };
  CHECK_THAT(
      made(blocks, {.micro_batches = 8, .schedule = PipelineSchedule::kInterleaved, .chunks = 9}),
      Catch::Contains("cut the model into more blocks"));
  CHECK_THAT(made({blocks.begin(), blocks.end() - 1}, {}),
             Catch::Contains("layers.7.weight is in no block"));
  CHECK_THAT(made(blocks, {.chunks = 2}), Catch::Contains("kInterleaved"));
  CHECK_THAT(made(blocks, {.costs = {1.0}}), Catch::Contains("1 costs for 8 blocks"));
  CHECK_THAT(made(blocks, {.axis = "stages"}), Catch::Contains("stages"));
  if (process().count > 1) {
    CHECK_THAT(made(blocks, {.micro_batches = 2 * process().count + 1,
                             .schedule = PipelineSchedule::kInterleaved,
                             .chunks = 2}),
               Catch::Contains("multiple of"));
    auto tied = blocks;
    tied[7].modules.push_back(&chain.layers[0]);
    CHECK_THAT(made(tied, {}), Catch::Contains("layers.0.weight is read in stages 0 and"));
    Chain elsewhere(Mesh::world({{"pipe", process().count}}));
    CHECK_THAT(
        error_of([&] { nn::Pipeline(elsewhere, nn::pipeline_blocks(elsewhere.layers), mesh, {}); }),
        Catch::Contains("stage_mesh"));
  }
  // Nothing has changed so far.
  for (const nn::Parameter& p : chain.parameters()) CHECK(p.here());
  nn::Pipeline pipeline(chain, blocks, mesh, {.micro_batches = 3});
  const Tensor x = field(stage, {8, 2, kChannels}, 1);
  CHECK_THAT(error_of([&] { pipeline.step(x, x, mse); }), Catch::Contains("micro-batches"));
  const std::vector<Tensor> two{x, x};
  CHECK_THAT(error_of([&] { pipeline.step(two, two, mse); }), Catch::Contains("3 micro-batches"));
}

TEST_CASE("pipeline: costs of blocks follow their work, and cut the list") {
  const auto make = [](const Mesh& mesh) {
    auto layers = std::make_unique<nn::Sequential>();
    for (const std::int64_t width : {64, 64, 512, 64, 64})
      layers->add(nn::Mlp({.channels = 64, .hidden = width}, mesh));
    nn::initialize(*layers, 0);
    nn::PlannedModel planned;
    planned.blocks = nn::pipeline_blocks(*layers);
    planned.model = std::move(layers);
    planned.inputs = {Tensor::zeros(Layout::replicated(mesh, {4, 256, 64}))};
    return planned;
  };
  const std::vector<double> costs = nn::planned_costs(make);
  REQUIRE(costs.size() == 5);
  CHECK(costs[0] > 0.0);
  CHECK(costs[1] == costs[0]);
  CHECK(costs[2] > 4.0 * costs[0]);
  CHECK(parallel::balanced_runs(costs, 3) == std::vector<int>{0, 2, 3, 5});
  const std::vector<double> measured = nn::measured_costs(make);
  REQUIRE(measured.size() == 5);
  for (const double seconds : measured) {
    CHECK(seconds > 0.0);
    double first = seconds;
    parallel::broadcast(parallel::Group::world(), &first, sizeof first, 0).wait();
    CHECK(first == seconds);
  }
}

TEST_CASE("backward_through: stretches chained by hand are one backward") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  const Layout layout = Placement(mesh).shard(1, {"h"}).resolve({2, 7, 3});
  const DenseArray values = random_array({2, 7, 3}, 5);
  const auto first = [](const Tensor& x, const Tensor& w) { return x * w; };
  const auto second = [](const Tensor& y, const Tensor& w) { return sum(y * y * w); };
  const auto leaf = [&](const DenseArray& a, const Layout& l) {
    return require_grad(to_tensor(a, l, DType::kFloat64));
  };
  const DenseArray weights = random_array({3}, 6);
  const Layout flat = Layout::replicated(mesh, {3});
  const Tensor x = leaf(values, layout), w = leaf(weights, flat);
  backward(second(first(x, w), w));

  const Tensor a = leaf(values, layout), v = leaf(weights, flat);
  const Tensor y = first(a, v);
  const Tensor z = require_grad(y.detach());
  const Tensor loss = second(z, v);
  const std::vector<Tensor> down = backward_through(
      {loss}, {Tensor::full(loss.layout().dual(), 1.0, DType::kFloat64)}, {z}, false);
  // `a` goes through as it is: an output that is an input.
  const std::vector<Tensor> through = backward_through({y, a}, {down[0], a.detach()}, {a}, true);
  CHECK(compare("w", gradient(v), to_dense(gradient(w)), 1e-12) == "");
  const DenseArray plain = to_dense(gradient(x));
  DenseArray expected = plain;
  for (std::size_t i = 0; i < expected.values.size(); ++i) expected.values[i] += values.values[i];
  CHECK(compare("a", through[0], expected, 1e-12) == "");
  CHECK_FALSE(gradient(a).defined());
  CHECK_THROWS_AS(backward_through({y}, {}, {a}, true), UsageError);
  const Tensor again = first(a, v);
  CHECK_THROWS_AS(backward_through({again}, {v.detach()}, {a}, true), ShapeError);
}

}  // namespace tessera::test
