// ranks: 1 2 3 4 6 8
#include <catch2/catch.hpp>
#include <functional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/models/forecaster.hpp>
#include <tessera/models/swin.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/models/unetr.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/parallel/runtime.hpp>

namespace tessera::test {
namespace {

/// A network on fields, with how its parts should be cut.
struct Network {
  std::unique_ptr<nn::Layer> layer;
  std::int64_t stride = 1;
};

struct Case {
  std::string name;
  std::function<Network(const Mesh&)> make;
  Shape domain;
};

/// A training of a network on made-up data: forward, backward, clipping, AdamW and an average.
class CaseWorkload : public nn::Workload {
 public:
  CaseWorkload(const Case& c, const Mesh& mesh)
      : network_(c.make(mesh)),
        optimizer_(network_.layer->parameters(), {.lr = 1e-3}),
        average_(network_.layer->parameters()) {
    Placement placement(mesh);
    int next = 0;
    for (int a = 0; a < mesh.axis_count(); ++a) {
      placement = mesh.axis_name(a) == "data" ? placement.batch("data")
                                              : placement.domain(next++, mesh.axis_name(a));
    }
    Shape shape{2};
    for (const std::int64_t n : c.domain) shape.push_back(n);
    shape.push_back(1);
    layout_ = placement.resolve(shape, {.multiple = network_.stride});
  }
  nn::Module& model() override { return *network_.layer; }
  Tensor loss(std::int64_t step) override {
    network_.layer->random().step = static_cast<std::uint64_t>(step);
    const auto value = [&](const Index& i) {
      std::int64_t n = step;
      for (int d = 0; d < i.size(); ++d) n = n * 31 + i[d];
      return static_cast<double>(n % 17) / 17.0;
    };
    const Tensor y = (*network_.layer)(Tensor::from_function(layout_, value));
    return mse_loss(y, Tensor::from_function(y.layout(), value));
  }
  void update() override {
    optim::clip_grad_norm(network_.layer->parameters(), 1e-6);  // always clips, as a plan assumes
    optimizer_.step();
    average_.update();
  }

 private:
  Network network_;
  optim::AdamW optimizer_;
  optim::Ema average_;
  Layout layout_;
};

/// Makes a model of these options.
template <class Model, class Options>
std::function<Network(const Mesh&)> of(const Options& options) {
  return [options](const Mesh& mesh) {
    auto model = std::make_unique<Model>(options, mesh);
    const std::int64_t stride = model->total_stride();
    return Network{std::move(model), stride};
  };
}

std::vector<Case> cases() {
  using models::UNet;
  using models::ViT;
  using U = models::UNetOptions;
  using V = models::ViTOptions;
  return {
      {"U-Net 2-D",
       of<UNet>(U{.dims = 2, .base = 8, .multipliers = {1, 2, 4}, .norm_groups = 4}),
       {70, 61}},
      {"U-Net 2-D, circular, pooling, interpolation",
       of<UNet>(U{.dims = 2,
                  .base = 8,
                  .multipliers = {1, 2},
                  .norm_groups = 0,
                  .dropout = 0.1,
                  .down = U::Down::kMaxPool,
                  .up = U::Up::kLinear,
                  .kernel = 5,
                  .edges = {EdgeRule::kCircular},
                  .input_skip = U::InputSkip::kCubic,
                  .detail_scale = 0.1}),
       {48, 52}},
      {"U-Net 3-D",
       of<UNet>(U{.dims = 3, .base = 8, .multipliers = {1, 2, 2}, .norm_groups = 2}),
       {24, 21, 26}},
      {"U-Net 3-D, reflecting",
       of<UNet>(U{.dims = 3,
                  .base = 4,
                  .multipliers = {1, 3},
                  .blocks = 2,
                  .norm_groups = 0,
                  .down = U::Down::kAvgPool,
                  .up = U::Up::kNearest,
                  .edges = {EdgeRule::kReflect, EdgeRule::kReplicate, EdgeRule::kZero}}),
       {20, 18, 16}},
      {"ViT 2-D, patches that straddle boundaries",
       of<ViT>(V{.dims = 2, .patch = {4}, .channels = 24, .depth = 2, .heads = 3}),
       {42, 39}},
      {"ViT 2-D, refining",
       of<ViT>(V{.dims = 2,
                 .patch = {4, 2},
                 .channels = 16,
                 .depth = 1,
                 .heads = 4,
                 .key_heads = 2,
                 .qk_norm = true,
                 .gated_mlp = true,
                 .positions = V::Positions::kSinusoidal,
                 .dropout = 0.1,
                 .edges = {EdgeRule::kReplicate, EdgeRule::kCircular},
                 .upscale = 2,
                 .input_skip = models::InputSkip::kCubic,
                 .conserve_means = true,
                 .detail_scale = 0.1}),
       {32, 24}},
      {"ViT 3-D",
       of<ViT>(V{.dims = 3, .patch = {4}, .channels = 12, .depth = 1, .heads = 2}),
       {16, 12, 16}},
      {"Swin 2-D",
       of<models::Swin>(
           models::SwinOptions{.channels = 8, .depths = {2, 2}, .heads = {1, 2}, .window = {4}}),
       {70, 61}},
      {"Unetr 2-D",
       of<models::Unetr>(models::UnetrOptions{.levels = 2,
                                              .channels = 8,
                                              .depth = 2,
                                              .heads = 2,
                                              .base = 4,
                                              .norm_groups = 2,
                                              .dropout = 0.1,
                                              .input_skip = models::InputSkip::kLinear}),
       {45, 38}},
      {"Forecaster 2-D, circular",
       of<models::Forecaster>(
           models::ForecasterOptions{.channels = 16,
                                     .depth = 2,
                                     .heads = 2,
                                     .window = {5},
                                     .condition_features = 2,
                                     .edges = {EdgeRule::kReplicate, EdgeRule::kCircular}}),
       {33, 48}},
  };
}

/// Every mesh of this many ranks that the test looks at.
std::vector<std::vector<MeshAxis>> meshes(int ranks, int dims) {
  std::vector<std::vector<MeshAxis>> all;
  switch (ranks) {
    case 1:
      all = {{{"h", 1}}};
      break;
    case 2:
      all = {{{"h", 2}}, {{"data", 2}}};
      break;
    case 3:
      all = {{{"h", 1}, {"w", 3}}};
      break;
    case 4:
      all = {{{"h", 2}, {"w", 2}}, {{"data", 2}, {"h", 2}}};
      break;
    case 6:
      all = {{{"h", 3}, {"w", 2}}};
      break;
    case 8:
      all = {{{"data", 2}, {"h", 2}, {"w", 2}}};
      if (dims == 3) all.push_back({{"h", 2}, {"w", 2}, {"d", 2}});
      break;
    default:
      break;
  }
  return all;
}

}  // namespace

TEST_CASE("a plan is what a real step counts: messages and bytes exactly, memory to 5 %") {
  for (const Case& c : cases()) {
    for (const std::vector<MeshAxis>& axes : meshes(process().count, c.domain.size())) {
      const nn::MakeWorkload make = [&](const Mesh& mesh) {
        return std::make_unique<CaseWorkload>(c, mesh);
      };
      const Mesh mesh = Mesh::world(axes);
      INFO(c.name << " on " << mesh.str() << ", rank " << mesh.rank());
      const std::int64_t live_before = MemoryPool::of({}).stats().live_bytes;
      const nn::RankPlan plan = nn::plan_rank(axes, mesh.rank(), make);
      CHECK(MemoryPool::of({}).stats().live_bytes == live_before);

      CaseWorkload real(c, mesh);
      const nn::RankPlan measured = nn::measure_rank(mesh, real);
      for (int k = 0; k < parallel::kCallKinds; ++k) {
        const auto kind = static_cast<parallel::CallKind>(k);
        INFO(parallel::name(kind));
        CHECK(plan.sent[kind].calls == measured.sent[kind].calls);
        CHECK(plan.sent[kind].messages == measured.sent[kind].messages);
        CHECK(plan.sent[kind].bytes == measured.sent[kind].bytes);
      }
      CHECK(plan.rest_bytes == measured.rest_bytes - live_before);
      const auto peak = static_cast<double>(measured.peak_bytes - live_before);
      CHECK(static_cast<double>(plan.peak_bytes) == Approx(peak).epsilon(0.05));

      nn::Traffic rows;
      for (const nn::LayerPlan& layer : plan.layers) {
        rows += layer.forward;
        rows += layer.backward;
        rows += layer.update;
        CHECK(layer.peak_bytes <= plan.peak_bytes);
      }
      CHECK(rows.messages == plan.sent.total().messages);
      CHECK(rows.bytes == plan.sent.total().bytes);
      if (process().count > 1) CHECK(rows.bytes > 0);
    }
  }
}

}  // namespace tessera::test
