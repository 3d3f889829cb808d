// ranks: 1 2 4
// Optimisers on models in pipeline stages and from checkpoints: as one process does it.
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/lbfgs.hpp>
#include <tessera/nn/muon.hpp>
#include <tessera/nn/optimizers.hpp>
#include <tessera/nn/pipeline.hpp>

#include "nn/shared_dir.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t kChannels = 5;
const Shape kShape = {4, 3, kChannels};

/// Four layers in a row.
struct Chain : nn::Module {
  nn::Sequential layers;
  explicit Chain(const Mesh& mesh) {
    for (int i = 0; i < 4; ++i)
      layers.add(nn::Linear({.in = kChannels, .out = kChannels}, mesh, DType::kFloat64));
    nn::initialize(*this, 3);
  }
  void fields(nn::Fields& f) override { f("layers", layers); }
};

using Made = std::unique_ptr<optim::Optimizer>;
struct Method {
  const char* name;
  std::function<Made(const std::vector<nn::Parameter>&)> make;
};

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"rmsprop",
       [](const auto& p) -> Made {
         return std::make_unique<optim::Rmsprop>(
             p, optim::RmspropOptions{.momentum = 0.5, .centered = true});
       }},
      {"adagrad", [](const auto& p) -> Made { return std::make_unique<optim::Adagrad>(p); }},
      {"lion",
       [](const auto& p) -> Made {
         return std::make_unique<optim::Lion>(p, optim::LionOptions{.lr = 1e-2});
       }},
      {"lamb",
       [](const auto& p) -> Made {
         return std::make_unique<optim::Lamb>(p, optim::LambOptions{.lr = 1e-2});
       }},
      {"muon",
       [](const auto& p) -> Made {
         return std::make_unique<optim::Muon>(
             p, optim::MuonOptions{.lr = 1e-2, .adamw = {"layers.3.*"}});
       }},
      {"l-bfgs", [](const auto& p) -> Made {
         return std::make_unique<optim::Lbfgs>(p,
                                               optim::LbfgsOptions{.iterations = 2, .history = 2});
       }}};
  return all;
}

/// One step; `evaluate` leaves gradients and returns the loss.
double take_step(optim::Optimizer& optimizer, const std::function<double()>& evaluate) {
  if (auto* const lbfgs = dynamic_cast<optim::Lbfgs*>(&optimizer)) return lbfgs->step(evaluate);
  const double loss = evaluate();
  optimizer.step();
  return loss;
}

}  // namespace

TEST_CASE("optimisers in stages do what one process does, also from a checkpoint") {
  const Mesh mesh = Mesh::world({{"pipe", process().count}});
  const Mesh stage = nn::Pipeline::stage_mesh(mesh);
  const SharedDir dir(nn::collective(mesh));
  for (const Method& method : methods()) {
    INFO(method.name);
    const std::string file = dir / method.name;
    const auto input = [&](int step) {
      return random_array(kShape, static_cast<std::uint64_t>(step % 2));
    };
    const DenseArray target = random_array(kShape, 50);

    // Each process by itself, without stages.
    Chain one(Mesh::self());
    const Made alone = method.make(one.parameters());
    std::vector<double> losses;
    for (int step = 0; step < 6; ++step) {
      losses.push_back(take_step(*alone, [&] {
        const Tensor loss = mse_loss(one.layers(to_self(input(step))), to_self(target));
        backward(loss);
        return loss.item();
      }));
    }
    CHECK(losses.back() < losses.front());

    Chain chain(stage);
    nn::Pipeline pipeline(chain, nn::pipeline_blocks(chain.layers), mesh, {.micro_batches = 2});
    const Made made = method.make(chain.parameters());
    const auto in_stages = [&](nn::Pipeline& pipe, optim::Optimizer& optimizer, int step) {
      const Layout layout = Layout::replicated(stage, kShape);
      return take_step(optimizer, [&] {
        return pipe.step(to_tensor(input(step), layout), to_tensor(target, layout),
                         [](const Tensor& y, const Tensor& t) { return mse_loss(y, t); });
      });
    };
    for (int step = 0; step < 3; ++step)
      CHECK(in_stages(pipeline, *made, step) ==
            Approx(losses[static_cast<std::size_t>(step)]).epsilon(1e-9));
    nn::TrainingState saved{.model = &chain, .optimizer = made.get(), .step = 3};
    nn::save_checkpoint(file, saved);

    Chain again(Mesh::self());
    const Made rest = method.make(again.parameters());
    nn::TrainingState loaded{.model = &again, .optimizer = rest.get()};
    nn::load_checkpoint(file, loaded);
    for (int step = 3; step < 6; ++step) {
      const double expected = losses[static_cast<std::size_t>(step)];
      CHECK(in_stages(pipeline, *made, step) == Approx(expected).epsilon(1e-9));
      CHECK(take_step(*rest, [&] {
              const Tensor loss = mse_loss(again.layers(to_self(input(step))), to_self(target));
              backward(loss);
              return loss.item();
            }) == Approx(expected).epsilon(1e-9));
    }
  }
}

}  // namespace tessera::test
