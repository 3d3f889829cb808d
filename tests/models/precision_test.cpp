// ranks: 1 2 3 4
// bf16 activations with fp32 parameters: the error against fp64, on ranks beside one, and what is
// kept.
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/nn/optim.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

struct UNetCase {
  using Model = models::UNet;
  static models::UNetOptions options() {
    return {.in_channels = 2,
            .base = 8,
            .multipliers = {1, 2},
            .norm_groups = 4,
            .dropout = 0.1,
            .down = models::UNetOptions::Down::kMaxPool,
            .up = models::UNetOptions::Up::kLinear,
            .upscale = 2,
            .input_skip = models::InputSkip::kCubic,
            .detail_scale = 0.5};
  }
};
struct ConvUNetCase {
  using Model = models::UNet;
  static models::UNetOptions options() {
    return {.in_channels = 2,
            .base = 8,
            .multipliers = {1, 2, 2},
            .norm_groups = 4,
            .activation = Activation::kGelu};
  }
};
struct ViTCase {
  using Model = models::ViT;
  static models::ViTOptions options() {
    return {.in_channels = 2,
            .patch = {2},
            .channels = 32,
            .depth = 3,
            .heads = 4,
            .key_heads = 2,
            .qk_norm = true,
            .upscale = 2,
            .input_skip = models::InputSkip::kCubic};
  }
};
struct LearnedViTCase {
  using Model = models::ViT;
  static models::ViTOptions options() {
    return {.in_channels = 2,
            .patch = {2},
            .channels = 32,
            .depth = 2,
            .heads = 4,
            .gated_mlp = true,
            .positions = models::ViTOptions::Positions::kLearned,
            .grid = {4, 6},
            .dropout = 0.1,
            .upscale = 2};
  }
};

/// Wide enough that the log-sum-exps of attention, in fp32, are few.
struct WideViTCase {
  using Model = models::ViT;
  static models::ViTOptions options() {
    return {.in_channels = 2, .patch = {2}, .channels = 64, .depth = 4, .heads = 2};
  }
};

/// Output and gradients as one list of doubles, on every rank.
using Values = std::vector<double>;

void append(Values& values, const Tensor& t) {
  const DenseArray all = to_dense(t);
  values.insert(values.end(), all.values.begin(), all.values.end());
}

template <class Case>
struct Run {
  std::unique_ptr<typename Case::Model> model;
  Layout in, out;

  Run(const Mesh& mesh, DType dtype) {
    model = std::make_unique<typename Case::Model>(Case::options(), mesh, dtype);
    const Placement rows = mesh.size() > 1 ? Placement(mesh).domain(0, "h") : Placement(mesh);
    in = rows.resolve({2, 16, 12, 2});
    const std::int64_t finer = Case::options().upscale;
    out = rows.resolve({2, 16 * finer, 12 * finer, 1});
  }
  Tensor loss() const {
    const Tensor x = to_tensor(random_array(in.shape(), 1), in, model->parameters()[0].dtype());
    const Tensor t = to_tensor(random_array(out.shape(), 2), out, x.dtype());
    const Tensor y = (*model)(x);
    CHECK(y.dtype() == x.dtype());
    return mse_loss(y, t);
  }
  Values values() const {
    for (const nn::Parameter& p : model->parameters()) clear_gradient(p.value());
    const Tensor l = loss();
    CHECK(l.dtype() == model->parameters()[0].dtype());
    backward(l);
    Values all;
    append(all, l);
    for (const nn::Parameter& p : model->parameters()) {
      REQUIRE(gradient(p.value()).defined());
      CHECK(gradient(p.value()).dtype() == p.dtype());
      append(all, gradient(p.value()));
    }
    return all;
  }
};

double distance(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

Mesh world() { return Mesh::world({{"h", process().count}}); }

}  // namespace

TEMPLATE_TEST_CASE("bf16 on ranks is as close to fp64 as on one",
                   "",
                   UNetCase,
                   ConvUNetCase,
                   ViTCase,
                   LearnedViTCase) {
  // fp64 with the parameters of the fp32 model: draws are the same, values differ by their
  // rounding.
  const Values exact = Run<TestType>(Mesh::self(), DType::kFloat64).values();
  const auto error = [&](const Mesh& mesh, DType compute) {
    const Run<TestType> run(mesh, DType::kFloat32);
    nn::compute_in(*run.model, compute);
    return distance(run.values(), exact);
  };
  const double one = error(Mesh::self(), DType::kBFloat16);
  const double many = error(world(), DType::kBFloat16);
  const double single = error(world(), DType::kFloat32);
  INFO("fp32 " << single << ", bf16 on one rank " << one << ", on " << process().count << ": "
               << many);
  CHECK(single < 1e-5);
  CHECK(one > 1e-4);
  CHECK(one < 3e-2);
  CHECK(many <= 1.5 * one);
}

TEST_CASE("the ring adds nothing to the error of bf16 attention") {
  const Shape shape{1, 64, 4, 16};
  const auto values = [&](const Mesh& mesh, DType dtype) {
    const Layout layout = mesh.size() > 1 ? Placement(mesh).shard(1, {"h"}).resolve(shape)
                                          : Placement(mesh).resolve(shape);
    std::vector<Tensor> in;
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      // The inputs are what bf16 can hold.
      const Tensor rounded = to_tensor(random_array(shape, seed), layout, DType::kBFloat16);
      in.push_back(require_grad(cast(rounded, dtype)));
    }
    const Tensor weight = to_tensor(random_array(shape, 4), layout, DType::kFloat64);
    const Tensor y = scaled_dot_product_attention(in[0], in[1], in[2]);
    backward(reduced(sum(cast(y, DType::kFloat64) * weight)));
    Values all;
    append(all, y);
    for (const Tensor& t : in) append(all, gradient(t));
    return all;
  };
  const Values exact = values(Mesh::self(), DType::kFloat64);
  const double one = distance(values(Mesh::self(), DType::kBFloat16), exact);
  const double many = distance(values(world(), DType::kBFloat16), exact);
  INFO(one << " " << many);
  CHECK(one > 1e-4);
  CHECK(one < 1e-2);
  CHECK(many <= 1.5 * one);
}

TEST_CASE("activations take half, and training works as in fp32") {
  const auto kept = [](DType compute) {
    Run<WideViTCase> run(world(), DType::kFloat32);
    nn::compute_in(*run.model, compute);
    (void)run.loss();
    const std::int64_t before = MemoryPool::of(Device{}).stats().live_bytes;
    const Tensor loss = run.loss();
    return static_cast<double>(MemoryPool::of(Device{}).stats().live_bytes - before);
  };
  const double ratio = kept(DType::kBFloat16) / kept(DType::kFloat32);
  INFO(ratio);
  CHECK(ratio < 0.65);  // log-sum-exps and small blocks stay
  CHECK(ratio > 0.4);

  const auto train = [](DType compute) {
    Run<ViTCase> run(world(), DType::kFloat32);
    nn::compute_in(*run.model, compute);
    optim::AdamW adam(run.model->parameters(), {.lr = 3e-3});
    double last = 0;
    for (int step = 0; step < 30; ++step) {
      const Tensor loss = run.loss();
      last = loss.item();
      backward(loss);
      adam.step();
    }
    for (const auto& [name, state] : adam.state()) CHECK(state.dtype() == DType::kFloat32);
    return last;
  };
  const double narrow = train(DType::kBFloat16), wide = train(DType::kFloat32);
  INFO(narrow << " " << wide);
  CHECK(std::abs(narrow - wide) < 0.02 * wide);
}

TEST_CASE("modules apart stay in fp32") {
  Run<ViTCase> run(world(), DType::kFloat32);
  nn::compute_in(*run.model, DType::kBFloat16, {"blocks.1", "*.mlp"});
  for (const auto& [name, p] : run.model->named_parameters()) {
    const bool apart = name.starts_with("blocks.1.") || name.find(".mlp.") != std::string::npos ||
                       name.find("norm") != std::string::npos;
    INFO(name);
    CHECK(p().dtype() == (apart ? DType::kFloat32 : DType::kBFloat16));
  }
  CHECK(run.values().size() > 1000);
  CHECK_THROWS_AS(nn::compute_in(*run.model, DType::kBFloat16, {"stem"}), UsageError);
  CHECK_THROWS_AS(nn::compute_in(*run.model, DType::kInt32), DTypeError);
  nn::compute_in(*run.model, DType::kFloat32);
  const Values plain = Run<ViTCase>(world(), DType::kFloat32).values();
  const bool same = run.values() == plain;
  CHECK(same);
}

TEST_CASE("with recomputation, to the bit") {
  const auto values = [](bool again) {
    Run<LearnedViTCase> run(world(), DType::kFloat32);
    nn::compute_in(*run.model, DType::kBFloat16);
    if (again) nn::recompute(*run.model, "blocks.*", {.keep = {"attention"}});
    return run.values();
  };
  const bool same = values(false) == values(true);
  CHECK(same);
}

}  // namespace tessera::test
