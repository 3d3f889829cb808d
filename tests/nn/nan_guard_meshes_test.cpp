// ranks: 2 4
// NaN where parameters are shared, split in use or lie in stages: all ranks decide alike, nothing
// that is kept has changed, and the report names op and layer, also those of another stage.
#include <catch2/catch.hpp>
#include <limits>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/nan_guard.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/nn/shard.hpp>
#include <tessera/nn/tensor_parallel.hpp>
#include <tessera/nn/transformer.hpp>

#include "support/error_text.hpp"
#include "support/faulty_transport.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using parallel::Call;
using parallel::CallKind;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
const Shape kInputShape{4, 6, 3};
constexpr std::int64_t kChannels = 8;

enum class Plant { kNothing, kInput, kForward, kGradient, kGradientSum };

struct Way {
  const char* name;
  std::vector<MeshAxis> axes;
  int stage = 0;        // of shard()
  bool tensor = false;  // split over the axis "t"
};

std::vector<Way> ways() {
  if (process().count == 2) {
    return {{"stage 1", {{"h", 2}}, 1},
            {"stage 2", {{"h", 2}}, 2},
            {"stage 3", {{"data", 2}}, 3},
            {"tensor", {{"t", 2}}, 0, true},
            {"pipe", {{"pipe", 2}}}};
  }
  return {{"stage 1", {{"data", 2}, {"h", 2}}, 1},
          {"stage 2", {{"data", 2}, {"h", 2}}, 2},
          {"stage 3", {{"data", 2}, {"h", 2}}, 3},
          {"tensor and stage 3", {{"data", 2}, {"t", 2}}, 3, true},
          {"pipe", {{"pipe", 4}}},
          {"pipe and stage 3", {{"pipe", 2}, {"data", 2}}, 3}};
}

/// Blocks as a pipeline takes them; what is planted lies between the first two.
struct Net : nn::Module {
  nn::Linear in;
  nn::TransformerBlock a;
  nn::TransformerBlock b;
  nn::Linear out;

  explicit Net(const Mesh& mesh)
      : in({.in = kInputShape[2], .out = kChannels}, mesh),
        a(block(), mesh),
        b(block(), mesh),
        out({.in = kChannels, .out = 1}, mesh) {
    nn::initialize(*this, 5);
  }
  static nn::TransformerBlockOptions block() {
    return {
        .attention = {.channels = kChannels, .heads = 2}, .mlp = {.hidden = 16}, .dropout = 0.1};
  }
  void fields(nn::Fields& f) override {
    f("in", in);
    f("a", a);
    f("b", b);
    f("out", out);
  }
};

class Training {
 public:
  Training(const Way& way, const nn::NanGuardOptions& options)
      : whole_(Mesh::world(way.axes)),
        mesh_(whole_.has_axis("pipe") ? nn::Pipeline::stage_mesh(whole_) : whole_),
        net_(mesh_) {
    if (way.tensor) nn::place(net_, nn::tensor_parallel(net_, "t"));
    if (way.stage > 0) nn::shard(net_, {.stage = way.stage});
    std::vector<nn::PipelineBlock> blocks = {nn::pipeline_block(net_.in),
                                             nn::pipeline_block(net_.a), nn::pipeline_block(net_.b),
                                             nn::pipeline_block(net_.out)};
    blocks[1].run = [this](std::span<const Tensor> x) {
      return std::vector<Tensor>{spoilt(net_.a(x[0]))};
    };
    if (whole_.has_axis("pipe")) {
      pipeline_.emplace(net_, blocks, whole_, nn::PipelineOptions{.micro_batches = 2});
    }
    optimizer_.emplace(net_.parameters(), optim::AdamWOptions{.lr = 1e-2});
    ema_.emplace(net_.parameters());
    guard_.emplace(whole_, net_, *optimizer_, options);
  }

  /// Whether the step was taken.
  bool step(Plant plant) {
    plant_ = plant;
    net_.random().step = static_cast<std::uint64_t>(step_);
    Placement placement(mesh_);
    if (mesh_.has_axis("data")) placement = placement.batch("data");
    if (mesh_.has_axis("h")) placement = placement.domain(0, "h");
    const auto seed = static_cast<std::uint64_t>(100 + 2 * step_);
    const Tensor x =
        to_tensor(random_array(kInputShape, seed), placement.resolve(kInputShape), DType::kFloat32);
    const Shape target_shape{kInputShape[0], kInputShape[1], 1};
    const Tensor t = to_tensor(random_array(target_shape, seed + 1),
                               placement.resolve(target_shape), DType::kFloat32);
    if (plant == Plant::kInput && mesh_.rank() == mesh_.size() - 1)
      x.mutable_local().as<float>()[3] = kNaN;
    const FaultyTransport transport([this](const Call& call, const std::byte*) { spoil(call); });
    const std::int64_t at = step_++;
    bool passes = false;
    if (pipeline_) {
      const auto once = [&] {
        return pipeline_->step(x, t,
                               [](const Tensor& y, const Tensor& z) { return mse_loss(y, z); });
      };
      passes = guard_->passes(at, once(), once);
    } else {
      const auto forward = [&] {
        return mse_loss(net_.out(net_.b(spoilt(net_.a(net_.in(x))))), t);
      };
      const Tensor loss = reduced(forward());
      backward(loss);
      passes = guard_->passes(at, loss.item(), forward);
    }
    if (!passes) return false;
    optimizer_->step();
    ema_->update();
    return true;
  }

  /// Everything that a training keeps on this rank.
  std::vector<double> kept() {
    std::vector<double> all = {static_cast<double>(optimizer_->steps()),
                               static_cast<double>(ema_->updates())};
    const auto take = [&](const Tensor& t) {
      if (t.mesh().rank() < 0) return;
      const View view = t.local();
      for_each_index(Box::whole(view.shape), [&](const Index& index) {
        std::int64_t offset = 0;
        for (int d = 0; d < index.size(); ++d) offset += index[d] * view.strides[d];
        all.push_back(load_as_double(view.data, view.dtype, offset));
      });
    };
    for (const nn::Parameter& p : net_.parameters())
      if (p.here()) take(p.value());
    for (const auto& [name, tensor] : optimizer_->state()) take(tensor);
    for (const auto& [name, tensor] : ema_->state()) take(tensor);
    return all;
  }
  std::int64_t skipped() const { return guard_->skipped(); }

 private:
  Tensor spoilt(const Tensor& y) const {
    const LayerScope scope("a.extra");
    DenseArray dense(y.shape(), 1.0);  // 0 at one point
    dense(dense.shape[0] - 1, kInputShape[1] - 1, 2) = 0.0;
    const Tensor gate = to_tensor(dense, y.layout().dual(), DType::kFloat32);
    if (plant_ == Plant::kForward) return y + square(y) / gate * 1e-6;
    // Finite, with a gradient that is not.
    if (plant_ == Plant::kGradient) return y + sqrt(square(y) * gate) * 1e-6;
    return y;
  }
  /// What rank 0 gets of a sum of gradients.
  void spoil(const Call& call) const {
    if (plant_ != Plant::kGradientSum || process().rank != 0 || call.dtype != DType::kFloat32)
      return;
    if (call.kind == CallKind::kAllReduce ? call.in_counts[0] > 50
                                          : call.kind == CallKind::kReduceScatter)
      static_cast<float*>(call.out)[0] = kNaN;
  }

  Mesh whole_;
  Mesh mesh_;  // of the stage
  Net net_;
  Plant plant_ = Plant::kNothing;
  std::optional<nn::Pipeline> pipeline_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<optim::Ema> ema_;
  std::optional<nn::NanGuard> guard_;
  std::int64_t step_ = 0;
};

std::vector<Plant> plants(const Way& way) {
  std::vector<Plant> all = {Plant::kInput, Plant::kForward, Plant::kGradient};
  if (way.stage > 0 && !way.tensor) all.push_back(Plant::kGradientSum);  // no other sums of floats
  return all;
}

}  // namespace

TEST_CASE("steps with a NaN are left out on all ranks, and nothing that is kept changes") {
  for (const Way& way : ways()) {
    Training training(way, {.on_nan = nn::OnNan::kSkip});
    CHECK(training.step(Plant::kNothing));
    const std::vector<double> before = training.kept();
    std::int64_t count = 0;
    for (const Plant plant : plants(way)) {
      INFO(way.name << ", plant " << static_cast<int>(plant));
      CHECK_FALSE(training.step(plant));
      CHECK(training.skipped() == ++count);
      CHECK(training.kept() == before);
    }
    CHECK(training.step(Plant::kNothing));
    const std::vector<double> after = training.kept();
    CHECK_FALSE(after == before);
    CHECK(std::all_of(after.begin(), after.end(), [](double v) { return std::isfinite(v); }));
  }
}

TEST_CASE("the step that ends a training is named with op and layer, alike on all ranks") {
  const auto words = [](Plant plant) -> std::vector<std::string> {
    switch (plant) {
      case Plant::kNothing:
        break;
      case Plant::kInput:
        return {"the loss is NaN in step 2", "the batch holds it", "the first op to read it is ",
                ", forward)"};
      case Plant::kForward:
        return {"in step 2", "div: made a NaN or infinity from finite inputs in a.extra, forward"};
      case Plant::kGradient:
        return {"the gradient of ",
                "made a NaN or infinity from finite inputs in a.extra, "
                "backward"};
      case Plant::kGradientSum:
        return {"the gradient of ", " is NaN or infinite in step 2",
                "when the gradients of the ranks are added"};
    }
    return {};
  };
  for (const Way& way : ways()) {
    for (const Plant plant : plants(way)) {
      Training training(way, {});
      CHECK(training.step(Plant::kNothing));
      const std::vector<double> before = training.kept();
      const std::string text = error_text([&] { training.step(plant); });
      INFO(way.name << ", plant " << static_cast<int>(plant) << ": " << text);
      for (const std::string& word : words(plant)) CHECK(text.find(word) != std::string::npos);
      CHECK(text.find("processes differ") == std::string::npos);
      CHECK(training.kept() == before);
      CHECK(training.step(Plant::kNothing));
    }
  }
}

}  // namespace tessera::test
