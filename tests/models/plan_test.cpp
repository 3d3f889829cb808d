// ranks: 1 2 3 4 6 8
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/parallel/runtime.hpp>

namespace tessera::test {
namespace {

using models::UNet;
using models::UNetOptions;

/// A training of a U-Net on made-up data: forward, backward, clipping, AdamW and an average.
class UNetWorkload : public nn::Workload {
 public:
  UNetWorkload(const UNetOptions& options,
               const Shape& domain,
               std::int64_t batch,
               const Mesh& mesh)
      : model_(options, mesh),
        optimizer_(model_.parameters(), {.lr = 1e-3}),
        average_(model_.parameters()) {
    Placement placement(mesh);
    int next = 0;
    for (int a = 0; a < mesh.axis_count(); ++a) {
      placement = mesh.axis_name(a) == "data" ? placement.batch("data")
                                              : placement.domain(next++, mesh.axis_name(a));
    }
    Shape shape{batch};
    for (const std::int64_t n : domain) shape.push_back(n);
    shape.push_back(1);
    layout_ = placement.resolve(shape, {.multiple = model_.total_stride()});
  }
  nn::Module& model() override { return model_; }
  Tensor loss(std::int64_t step) override {
    model_.random().step = static_cast<std::uint64_t>(step);
    const auto value = [&](const Index& i) {
      std::int64_t n = step;
      for (int d = 0; d < i.size(); ++d) n = n * 31 + i[d];
      return static_cast<double>(n % 17) / 17.0;
    };
    return mse_loss(model_(Tensor::from_function(layout_, value)),
                    Tensor::from_function(layout_, value));
  }
  void update() override {
    optim::clip_grad_norm(model_.parameters(), 1e-6);  // always clips, as a plan assumes
    optimizer_.step();
    average_.update();
  }

 private:
  UNet model_;
  optim::AdamW optimizer_;
  optim::Ema average_;
  Layout layout_;
};

struct Case {
  const char* name;
  UNetOptions options;
  Shape domain;
  std::int64_t batch;
};

std::vector<Case> cases() {
  using O = UNetOptions;
  return {
      {"2-D", {.dims = 2, .base = 8, .multipliers = {1, 2, 4}, .norm_groups = 4}, {70, 61}, 2},
      {"2-D, circular, pooling, interpolation",
       {.dims = 2,
        .base = 8,
        .multipliers = {1, 2},
        .norm_groups = 0,
        .dropout = 0.1,
        .down = O::Down::kMaxPool,
        .up = O::Up::kLinear,
        .kernel = 5,
        .edges = {EdgeRule::kCircular},
        .input_skip = O::InputSkip::kCubic,
        .detail_scale = 0.1},
       {48, 52},
       2},
      {"3-D", {.dims = 3, .base = 8, .multipliers = {1, 2, 2}, .norm_groups = 2}, {24, 21, 26}, 2},
      {"3-D, reflecting",
       {.dims = 3,
        .base = 4,
        .multipliers = {1, 3},
        .blocks = 2,
        .norm_groups = 0,
        .down = O::Down::kAvgPool,
        .up = O::Up::kNearest,
        .edges = {EdgeRule::kReflect, EdgeRule::kReplicate, EdgeRule::kZero}},
       {20, 18, 16},
       2},
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
    for (const std::vector<MeshAxis>& axes : meshes(process().count, c.options.dims)) {
      const nn::MakeWorkload make = [&](const Mesh& mesh) {
        return std::make_unique<UNetWorkload>(c.options, c.domain, c.batch, mesh);
      };
      const Mesh mesh = Mesh::world(axes);
      INFO(c.name << " on " << mesh.str() << ", rank " << mesh.rank());
      const std::int64_t live_before = MemoryPool::of({}).stats().live_bytes;
      const nn::RankPlan plan = nn::plan_rank(axes, mesh.rank(), make);
      CHECK(MemoryPool::of({}).stats().live_bytes == live_before);

      UNetWorkload real(c.options, c.domain, c.batch, mesh);
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
