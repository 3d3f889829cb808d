// ranks: 4 8
// One mesh, every parallelism: 20 steps of AdamW with clipping and dropout in fp64, on meshes that
// combine samples, domain, fully sharded and tensor parallel parameters, beside one rank.
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/models/tensor_parallel.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/nn/shard.hpp>

#include "mace_support.hpp"

namespace tessera::test {
namespace {

struct Result {
  std::vector<double> losses;
  std::vector<DenseArray> weights;
};

/// Measured on 4 ranks, of the largest weight of each parameter: unet 6e-15, both vits 2e-15, mace
/// 2e-14. What is left is rounding that AdamW's division by sqrt(v) makes larger: mace's worst
/// weight has a sqrt(v) of 4e-7, a fiftieth of their median.
void check(const Result& actual, const Result& expected) {
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    CHECK(actual.losses[i] == Approx(expected.losses[i]).epsilon(1e-10));
  for (std::size_t i = 0; i < expected.weights.size(); ++i)
    CHECK(agreed(compare(str("weights ", i), actual.weights[i], expected.weights[i], 1e-10)) == "");
}

/// How a training is spread: the mesh, the fields on it, the axis of tensor parallelism ("": none),
/// the stage of sharding and its axes.
struct Spread {
  std::vector<MeshAxis> axes;
  std::string batch;
  std::vector<std::string> domain;
  std::string tensor;
  int stage = 0;
  std::vector<std::string> shard_axes = {};
};

std::string text(const Spread& s) {
  std::string all;
  for (const MeshAxis& a : s.axes) all += str(a.name, "=", a.size, " ");
  return str(all, "tensor '", s.tensor, "', stage ", s.stage);
}

/// Tensor and sequence: the domain and the weights are split over one axis.
std::vector<Spread> spreads() {
  if (process().count == 4) {
    return {{{{"data", 2}, {"h", 2}}, "data", {"h"}, "", 0},
            {{{"data", 2}, {"h", 2}}, "data", {"h"}, "", 1},
            {{{"data", 2}, {"h", 2}}, "data", {"h"}, "", 2, {"data"}},
            {{{"h", 2}, {"w", 2}}, "", {"h", "w"}, "", 3},
            {{{"data", 2}, {"h", 2}}, "data", {"h"}, "", 3, {"data"}},
            {{{"data", 2}, {"t", 2}}, "data", {}, "t", 0},
            {{{"data", 2}, {"t", 2}}, "data", {"t"}, "t", 3},
            {{{"h", 2}, {"t", 2}}, "", {"h"}, "t", 0}};
  }
  return {{{{"data", 2}, {"h", 2}, {"w", 2}}, "data", {"h", "w"}, "", 0},
          {{{"data", 2}, {"h", 2}, {"w", 2}}, "data", {"h", "w"}, "", 3},
          {{{"data", 2}, {"h", 2}, {"t", 2}}, "data", {"h"}, "t", 3},
          {{{"data", 2}, {"t", 4}}, "data", {"t"}, "t", 2}};
}

Placement placement_of(const Spread& s, const Mesh& mesh) {
  Placement p(mesh);
  if (!s.batch.empty()) p = p.batch(s.batch);
  for (std::size_t d = 0; d < s.domain.size(); ++d) p = p.domain(static_cast<int>(d), s.domain[d]);
  return p;
}

template <class Model>
void spread_parameters(Model& model, const Spread& s) {
  if (!s.tensor.empty()) nn::place(model, models::tensor_parallel(model, s.tensor));
  if (s.stage > 0) nn::shard(model, {.axes = s.shard_axes, .stage = s.stage});
}

template <class Model>
Result train(Model& model, const Placement& placement, const Shape& shape) {
  optim::AdamW adam(model.parameters(), {.lr = 3e-3});
  const Layout layout = placement.resolve(shape, {.multiple = model.total_stride()});
  Result result;
  for (std::uint64_t step = 0; step < 20; ++step) {
    model.random().step = step;
    const Tensor x = to_tensor(random_array(shape, 100 + step), layout);
    const Tensor t = to_tensor(random_array(shape, 200 + step), layout);
    const Tensor loss = mse_loss(model(x), t);
    backward(loss);
    optim::clip_grad_norm(model.parameters(), 0.5);
    adam.step();
    result.losses.push_back(loss.item());
  }
  for (const nn::Parameter& p : model.parameters()) result.weights.push_back(to_dense(p.value()));
  return result;
}

template <class Model, class Options>
void check_spreads(const Options& options, const Shape& shape) {
  Model one(options, Mesh::self(), DType::kFloat64);
  const Result expected = train(one, Placement(Mesh::self()), shape);
  CHECK(expected.losses.back() != expected.losses.front());
  for (const Spread& s : spreads()) {
    INFO(text(s));
    const Mesh mesh = Mesh::world(s.axes);
    Model many(options, mesh, DType::kFloat64);
    spread_parameters(many, s);
    check(train(many, placement_of(s, mesh), shape), expected);
  }
}

}  // namespace

TEST_CASE("unet") {
  const models::UNetOptions o{
      .dims = 2, .base = 4, .multipliers = {1, 2}, .norm_groups = 2, .dropout = 0.2};
  check_spreads<models::UNet>(o, {2, 13, 10, 1});
}

TEST_CASE("vit") {
  const models::ViTOptions o{.patch = {2},
                             .channels = 12,
                             .depth = 2,
                             .heads = 3,
                             .mlp_ratio = 2,
                             .qk_norm = true,
                             .dropout = 0.2,
                             .attention_dropout = 0.1};
  check_spreads<models::ViT>(o, {2, 14, 10, 1});
}

TEST_CASE("vit, gated, classes of keys shared by heads") {
  const models::ViTOptions o{.patch = {2},
                             .channels = 16,
                             .depth = 1,
                             .heads = 4,
                             .key_heads = 2,
                             .mlp_ratio = 1,
                             .gated_mlp = true};
  check_spreads<models::ViT>(o, {2, 12, 8, 1});
}

TEST_CASE("mace") {
  const auto run = [](const Mesh& mesh, const nn::BatchOptions& options, int stage) {
    std::vector<nn::Structure> s = {rod(2), quartz()};
    std::uint64_t seed = 5;
    for (nn::Structure& one : s) {
      one.energy = -20.0 - static_cast<double>(seed);
      one.forces = random_array({static_cast<std::int64_t>(one.positions.size())}, ++seed).values;
    }
    MaceOptions o = golden_options();
    o.r_max = 3.2;
    o.radial_mlp = {8};
    Mace model(o, mesh, DType::kFloat64);
    if (stage > 0) nn::shard(model, {.stage = stage});
    optim::AdamW adam(model.parameters(), {.lr = 1e-2});
    nn::BatchOptions cut = options;
    cut.cutoff = o.r_max;
    const nn::Graph graph = nn::batch_graph(s, mesh, cut);
    const nn::AtomLabels labels = nn::batch_labels(s, graph);
    Result result;
    for (int step = 0; step < 20; ++step) {
      const MaceResult r = model.compute(graph, {.create_graph = true});
      const Tensor loss = mean(square((r.energy - labels.energy) / labels.atoms)) +
                          10.0 * mean(square(r.forces - labels.forces));
      backward(loss);
      optim::clip_grad_norm(model.parameters(), 10.0);
      adam.step();
      result.losses.push_back(reduced(loss).item());
    }
    for (const nn::Parameter& p : model.parameters()) result.weights.push_back(to_dense(p.value()));
    return result;
  };
  const Result expected = run(Mesh::self(), {}, 0);
  for (const Spread& s : spreads()) {
    if (!s.tensor.empty() || !s.shard_axes.empty()) continue;
    INFO(text(s));
    nn::BatchOptions options;
    if (!s.batch.empty()) options.data_axis = s.batch;
    options.domain_axes = s.domain;
    check(run(Mesh::world(s.axes), options, s.stage), expected);
  }
}

}  // namespace tessera::test
