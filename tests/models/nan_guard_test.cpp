// ranks: 1 2 3
#include <catch2/catch.hpp>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/nn/averages.hpp>
#include <tessera/nn/nan_guard.hpp>
#include <tessera/nn/optim.hpp>

#include "support/error_text.hpp"
#include "support/faulty_transport.hpp"
#include "support/op_test.hpp"

// A NaN that one rank alone meets, in every place where one can arise: all ranks decide alike in
// that step, nothing that is kept has changed, and the report names op and layer.
namespace tessera::test {
namespace {

using models::UNet;
using parallel::Call;
using parallel::CallKind;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The rank that meets it: the last.
bool struck() { return process().rank == process().count - 1; }

enum class Plant { kNothing, kInput, kForward, kGradient, kHalo, kLossSum, kGradientSum };

class Training {
 public:
  explicit Training(const nn::NanGuardOptions& options)
      : mesh_(Mesh::world({{"h", process().count}})),
        model_({.dims = 2, .base = 4, .multipliers = {1, 2}, .norm_groups = 2, .dropout = 0.2},
               mesh_),
        adam_(model_.parameters(), {.lr = 1e-2}),
        ema_(model_.parameters()),
        guard_(mesh_, model_, adam_, options) {}

  /// Whether the step was taken.
  bool step(Plant plant) {
    const Shape shape{2, 14, 10, 1};
    const Layout layout =
        Placement(mesh_).domain(0, "h").resolve(shape, {.multiple = model_.total_stride()});
    model_.random().step = static_cast<std::uint64_t>(step_);
    const auto seed = static_cast<std::uint64_t>(100 + 2 * step_);
    const Tensor x = to_tensor(random_array(shape, seed), layout, DType::kFloat32);
    const Tensor target = to_tensor(random_array(shape, seed + 1), layout, DType::kFloat32);
    // 1 everywhere, 0 at one point of the rank that is struck.
    DenseArray dense_gate(shape, 1.0);
    dense_gate(1, 13, 4, 0) = 0.0;
    const Tensor gate = to_tensor(dense_gate, layout, DType::kFloat32);
    if (plant == Plant::kInput && struck()) x.mutable_local().as<float>()[3] = kNaN;

    const FaultyTransport transport(
        [plant](const Call& call, const std::byte*) { spoil(plant, call); });
    const auto forward = [&] {
      const Tensor y = model_(x);
      const LayerScope scope("head.extra");
      Tensor loss = mse_loss(y, target);
      if (plant == Plant::kForward) loss = loss + sum(square(y) / gate) * 1e-6;
      // Finite, with a gradient that is not.
      if (plant == Plant::kGradient) loss = loss + sum(sqrt(square(y) * gate)) * 1e-6;
      return loss;
    };
    const Tensor loss = reduced(forward());
    backward(loss);
    const std::int64_t at = step_++;
    if (!guard_.passes(at, loss.item(), forward)) return false;
    adam_.step();
    ema_.update();
    return true;
  }

  /// Everything that a training keeps.
  std::vector<DenseArray> kept() {
    std::vector<DenseArray> all;
    for (const nn::Parameter& p : model_.parameters()) all.push_back(to_dense(p.value()));
    for (const auto& [name, tensor] : adam_.state()) all.push_back(to_dense(tensor));
    for (const auto& [name, tensor] : ema_.state()) all.push_back(to_dense(tensor));
    all.emplace_back(Shape{2});
    all.back()(0) = static_cast<double>(adam_.steps());
    all.back()(1) = static_cast<double>(ema_.updates());
    return all;
  }
  std::int64_t skipped() const { return guard_.skipped(); }

 private:
  static void spoil(Plant plant, const Call& call) {
    if (!struck()) return;
    const std::string_view op = call.info.op;
    if (plant == Plant::kHalo && call.kind == CallKind::kExchange && op == "conv") {
      for (const parallel::Recv& recv : call.recvs)
        if (recv.bytes >= 4) static_cast<float*>(recv.data)[0] = kNaN;
    }
    if (call.kind != CallKind::kAllReduce || call.dtype != DType::kFloat32) return;
    const bool single = call.in_counts[0] == 1;
    if ((plant == Plant::kLossSum && single) ||
        (plant == Plant::kGradientSum && call.in_counts[0] > 50)) {
      static_cast<float*>(call.out)[0] = kNaN;
    }
  }

  Mesh mesh_;
  UNet model_;
  optim::AdamW adam_;
  optim::Ema ema_;
  nn::NanGuard guard_;
  std::int64_t step_ = 0;
};

bool same(const std::vector<DenseArray>& a, const std::vector<DenseArray>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i) equal = a[i].values == b[i].values;
  return equal;
}

std::vector<Plant> plants() {
  std::vector<Plant> all = {Plant::kInput, Plant::kForward, Plant::kGradient};
  if (process().count > 1) {
    for (const Plant p : {Plant::kHalo, Plant::kLossSum, Plant::kGradientSum}) all.push_back(p);
  }
  return all;
}

}  // namespace

TEST_CASE("steps with a NaN on one rank are left out on all, and nothing that is kept changes") {
  Training undisturbed({});
  Training training({.on_nan = nn::OnNan::kSkip});
  CHECK(undisturbed.step(Plant::kNothing));
  CHECK(training.step(Plant::kNothing));
  const std::vector<DenseArray> before = training.kept();
  CHECK(same(before, undisturbed.kept()));
  std::int64_t count = 0;
  for (const Plant plant : plants()) {
    INFO("plant " << static_cast<int>(plant));
    CHECK_FALSE(training.step(plant));
    CHECK(training.skipped() == ++count);
    CHECK(same(training.kept(), before));
  }
  // It goes on as if the steps had not been.
  CHECK(training.step(Plant::kNothing));
  CHECK_FALSE(same(training.kept(), before));
  for (const DenseArray& a : training.kept())
    for (const double v : a.values) REQUIRE(std::isfinite(v));
}

TEST_CASE("the step that ends a training is named with op and layer, alike on all ranks") {
  const auto words = [](Plant plant) -> std::vector<std::string> {
    switch (plant) {
      case Plant::kNothing:
        break;
      case Plant::kInput:
        return {"the loss is NaN in step 2", "the batch holds it",
                "the first op to read it is conv in stem, forward"};
      case Plant::kForward:
        return {"the loss is infinite in step 2", "made a NaN or infinity from finite inputs",
                "in head.extra, forward"};
      case Plant::kGradient:
        return {"the gradient of ", "made a NaN or infinity from finite inputs",
                "in head.extra, backward"};
      case Plant::kHalo:
        return {"the loss is NaN in step 2", "conv: made a NaN or infinity from finite inputs in ",
                ", forward"};
      case Plant::kLossSum:
        return {"the loss is NaN in step 2"};
      case Plant::kGradientSum:
        return {"the gradient of ", " is NaN or infinite in step 2"};
    }
    return {};
  };
  for (const Plant plant : plants()) {
    Training training({});
    CHECK(training.step(Plant::kNothing));
    const std::vector<DenseArray> before = training.kept();
    const std::string text = error_text([&] { training.step(plant); });
    INFO("plant " << static_cast<int>(plant) << ": " << text);
    for (const std::string& word : words(plant)) CHECK(text.find(word) != std::string::npos);
    CHECK(text.find("processes differ") == std::string::npos);
    CHECK(same(training.kept(), before));
    CHECK(training.step(Plant::kNothing));
  }
}

TEST_CASE("a fault that does not come again is told as one") {
  if (process().count == 1) return;
  const Mesh mesh = Mesh::world({{"h", process().count}});
  UNet model({.dims = 2, .base = 4, .multipliers = {1, 2}, .norm_groups = 2, .dropout = 0.2}, mesh);
  optim::AdamW adam(model.parameters());
  nn::NanGuard guard(mesh, model, adam);
  const Layout layout =
      Placement(mesh).domain(0, "h").resolve({1, 12, 8, 1}, {.multiple = model.total_stride()});
  const Tensor x = to_tensor(random_array({1, 12, 8, 1}, 1), layout, DType::kFloat32);
  const auto forward = [&] { return mse_loss(model(x), x); };
  const Tensor loss = reduced(forward());
  backward(loss);
  const double value = struck() ? kNaN : loss.item();
  CHECK_THROWS_WITH(guard.passes(0, value, forward), Catch::Contains("the loss is NaN in step 1") &&
                                                         Catch::Contains("once more, is finite"));
}

TEST_CASE("only so many steps in a row are left out") {
  Training training({.on_nan = nn::OnNan::kSkip, .most_skips = 2});
  CHECK_FALSE(training.step(Plant::kForward));
  CHECK_FALSE(training.step(Plant::kForward));
  CHECK(training.step(Plant::kNothing));
  CHECK_FALSE(training.step(Plant::kForward));
  CHECK_FALSE(training.step(Plant::kGradient));
  CHECK(training.skipped() == 4);
  CHECK_THROWS_WITH(training.step(Plant::kForward),
                    Catch::Contains("2 steps before it were left out"));
}

}  // namespace tessera::test
