// ranks: 1 2 4 8
// Models in stages: the training of one rank that works through the same micro-batches.
#include <map>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/tensor_parallel.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/models/unetr.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/nn/shard.hpp>
#include <tessera/parallel/stats.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::UNet;
using models::UNetOptions;
using models::Unetr;
using models::UnetrOptions;
using models::ViT;
using models::ViTOptions;
using parallel::PipelineSchedule;

constexpr int kSteps = 20;
constexpr int kMicroBatches = 4;
constexpr double kMaxNorm = 0.2;  // below most norms of these trainings

Tensor mse(const Tensor& y, const Tensor& t) { return mse_loss(y, t); }

struct Case {
  Shape input;
  Shape target;
  DenseArray x(int step) const { return random_array(input, 100 + static_cast<unsigned>(step)); }
  DenseArray t(int step) const { return random_array(target, 900 + static_cast<unsigned>(step)); }
};

struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, DenseArray> weights;
  double evaluated = 0.0;
};

template <class Model, class Options>
Curve on_one_rank(const Options& options, const Case& c, int steps = kSteps) {
  const Mesh mesh = Mesh::self();
  Model model(options, mesh, DType::kFloat64);
  optim::AdamW adam(model.parameters(), {.lr = 3e-3});
  Curve result;
  const auto loss_of = [&](int step, int m) {
    const std::int64_t n = c.input[0] / kMicroBatches;
    model.random().micro_batch = static_cast<std::uint64_t>(m);
    const Tensor x = slice(to_self(c.x(step)), 0, m * n, (m + 1) * n);
    const Tensor t = slice(to_self(c.t(step)), 0, m * n, (m + 1) * n);
    return mse_loss(model(x), t) * (1.0 / kMicroBatches);
  };
  for (int step = 0; step < steps; ++step) {
    model.random().step = static_cast<std::uint64_t>(step);
    double mean = 0.0;
    for (int m = 0; m < kMicroBatches; ++m) {
      const Tensor loss = loss_of(step, m);
      backward(loss, {.reduce = m + 1 == kMicroBatches});
      mean += loss.item();
    }
    result.losses.push_back(mean);
    result.norms.push_back(optim::clip_grad_norm(model.parameters(), kMaxNorm));
    adam.step();
  }
  for (const nn::Parameter& p : model.parameters()) result.weights[p.path()] = to_dense(p.value());
  model.eval();
  const NoGrad guard;
  for (int m = 0; m < kMicroBatches; ++m) result.evaluated += loss_of(steps, m).item();
  return result;
}

/// What is done to a model before it is cut: the model, the mesh of the stage.
using Prepare = std::function<void(nn::Module&, const Mesh&)>;

/// The same in a pipeline.
template <class Model, class Options>
void check_pipeline(const Options& options,
                    const Case& c,
                    const Curve& one,
                    const Mesh& mesh,
                    const nn::PipelineOptions& how,
                    const Prepare& prepare = {}) {
  INFO("mesh " << mesh.str() << ", " << parallel::name(how.schedule) << ", " << how.chunks
               << " chunks, recompute " << how.recompute << ", prepared " << (prepare != nullptr));
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  Placement fields(stage);
  if (stage.has_axis("data")) fields = fields.batch("data");
  if (stage.has_axis("h")) fields = fields.domain(0, "h");
  Model model(options, stage, DType::kFloat64);
  if (prepare) prepare(model, stage);
  nn::Pipeline pipeline(model, model.pipeline_blocks(), mesh, how);
  optim::AdamW adam(model.parameters(), {.lr = 3e-3});
  const auto placed = [&](const DenseArray& a, std::int64_t multiple) {
    return to_tensor(a, fields.resolve(a.shape, {.multiple = multiple}), DType::kFloat64);
  };
  const std::int64_t stride = model.total_stride();
  for (int step = 0; step < static_cast<int>(one.losses.size()); ++step) {
    model.random().step = static_cast<std::uint64_t>(step);
    const auto at = static_cast<std::size_t>(step);
    const double loss = pipeline.step(placed(c.x(step), stride), placed(c.t(step), stride), mse);
    CHECK(std::abs(loss - one.losses[at]) <= 1e-10 * one.losses[at]);
    const double norm = optim::clip_grad_norm(model.parameters(), kMaxNorm);
    CHECK(std::abs(norm - one.norms[at]) <= 1e-10 * one.norms[at]);
    adam.step();
  }
  int here = 0;
  for (const auto& [path, p] : model.named_parameters()) {
    if (!p.here()) continue;
    ++here;
    CHECK(compare(path, p.value(), one.weights.at(path), 1e-10, 1e-3) == "");
  }
  CHECK(here > 0);
  CHECK((mesh.axis_size(mesh.axis("pipe")) == 1) == (here == static_cast<int>(one.weights.size())));
  model.eval();
  const int last = static_cast<int>(one.losses.size());
  const double evaluated =
      pipeline.evaluate(placed(c.x(last), stride), placed(c.t(last), stride), mse);
  CHECK(std::abs(evaluated - one.evaluated) <= 1e-10 * one.evaluated);
}

std::vector<Mesh> pipeline_meshes() {
  const int n = process().count;
  std::vector<Mesh> meshes{Mesh::world({{"pipe", n}})};
  if (n == 4) {
    meshes.push_back(Mesh::world({{"data", 2}, {"pipe", 2}}));
    meshes.push_back(Mesh::world({{"pipe", 2}, {"h", 2}}));
  }
  if (n == 8) {
    meshes = {Mesh::world({{"pipe", 2}, {"data", 2}, {"h", 2}}),
              Mesh::world({{"h", 2}, {"pipe", 4}})};
  }
  return meshes;
}

template <class Model, class Options>
void check_all(const Options& options, const Case& c) {
  const Curve one = on_one_rank<Model>(options, c);
  CHECK(one.losses.back() != one.losses.front());
  for (const Mesh& mesh : pipeline_meshes()) {
    const int stages = mesh.axis_size(mesh.axis("pipe"));
    check_pipeline<Model>(options, c, one, mesh, {.micro_batches = kMicroBatches});
    check_pipeline<Model>(
        options, c, one, mesh,
        {.micro_batches = kMicroBatches, .schedule = PipelineSchedule::kInterleaved, .chunks = 2},
        [](nn::Module& model, const Mesh&) { nn::recompute(model, "blocks.*"); });
    if (stages > 2) continue;
    check_pipeline<Model>(options, c, one, mesh,
                          {.micro_batches = kMicroBatches,
                           .schedule = PipelineSchedule::kInterleaved,
                           .chunks = 3,
                           .recompute = true});
  }
}

ViTOptions vit_options() {
  return {.dims = 2,
          .in_channels = 2,
          .patch = {3},
          .channels = 8,
          .depth = 6,
          .heads = 2,
          .mlp_ratio = 2,
          .dropout = 0.2,
          .attention_dropout = 0.1,
          .seed = 3};
}

UNetOptions unet_options() {
  return {.dims = 2,
          .in_channels = 1,
          .base = 4,
          .multipliers = {1, 2, 3},
          .blocks = 2,
          .norm_groups = 2,
          .dropout = 0.1,
          .input_skip = models::InputSkip::kLinear,
          .zero_head = true};
}

}  // namespace

TEST_CASE("pipeline: a ViT trains as on one rank") {
  check_all<ViT>(vit_options(), {.input = {8, 12, 9, 2}, .target = {8, 12, 9, 1}});
}

TEST_CASE("pipeline: a ViT that classifies, with learned positions, trains as on one rank") {
  ViTOptions o = vit_options();
  o.classes = 3;
  o.positions = ViTOptions::Positions::kLearned;
  o.grid = {4, 3};
  const Case c{.input = {8, 12, 9, 2}, .target = {8, 3}};
  const Curve one = on_one_rank<ViT>(o, c, 3);
  const Mesh mesh = Mesh::world({{"pipe", process().count}});
  check_pipeline<ViT>(o, c, one, mesh, {.micro_batches = kMicroBatches});
}

TEST_CASE("pipeline: one mesh, every parallelism") {
  // Stages, samples, and the domain and the weights in use over the same axis; what a weight rests
  // in, its gradient and the optimiser's state split over the samples' axis.
  if (process().count != 8) return;
  const Case c{.input = {8, 12, 9, 2}, .target = {8, 12, 9, 1}};
  const Curve one = on_one_rank<ViT>(vit_options(), c, 4);
  const Mesh mesh = Mesh::world({{"pipe", 2}, {"data", 2}, {"h", 2}});
  for (const int zero : {1, 3}) {
    check_pipeline<ViT>(
        vit_options(), c, one, mesh,
        {.micro_batches = kMicroBatches, .schedule = PipelineSchedule::kInterleaved, .chunks = 2},
        [zero](nn::Module& model, const Mesh&) {
          nn::place(model, models::tensor_parallel(model, "h"));
          nn::shard(model, {.axes = {"data"}, .stage = zero});
        });
  }
}

TEST_CASE("pipeline: weights may be split within a stage") {
  if (process().count != 4) return;
  const Case c{.input = {8, 12, 9, 2}, .target = {8, 12, 9, 1}};
  const Curve one = on_one_rank<ViT>(vit_options(), c, 4);
  const Mesh mesh = Mesh::world({{"pipe", 2}, {"data", 2}});
  const nn::PipelineOptions how{
      .micro_batches = kMicroBatches, .schedule = PipelineSchedule::kInterleaved, .chunks = 2};
  const auto fully_sharded = [](nn::Module& model, const Mesh& stage) {
    nn::place(model, {{"*weight", {.rest = Placement(stage).shard(0, {"data"})}}});
  };
  check_pipeline<ViT>(vit_options(), c, one, mesh, how, fully_sharded);
}

TEST_CASE("pipeline: a UNet, whose skips travel from stage to stage, trains as on one rank") {
  if (process().count < 8)
    check_all<UNet>(unet_options(), {.input = {8, 12, 9, 1}, .target = {8, 12, 9, 1}});
}

TEST_CASE("pipeline: a Unetr, whose tokens wait for their level, trains as on one rank") {
  const UnetrOptions o{.dims = 2,
                       .levels = 3,
                       .channels = 8,
                       .depth = 4,
                       .heads = 2,
                       .mlp_ratio = 2,
                       .base = 2,
                       .norm_groups = 2,
                       .dropout = 0.1,
                       .input_skip = models::InputSkip::kLinear};
  const Case c{.input = {8, 12, 9, 1}, .target = {8, 12, 9, 1}};
  const Curve one = on_one_rank<Unetr>(o, c, 4);
  for (const Mesh& mesh : pipeline_meshes()) {
    check_pipeline<Unetr>(o, c, one, mesh, {.micro_batches = kMicroBatches});
    check_pipeline<Unetr>(
        o, c, one, mesh,
        {.micro_batches = kMicroBatches, .schedule = PipelineSchedule::kInterleaved, .chunks = 2});
  }
}

}  // namespace tessera::test
