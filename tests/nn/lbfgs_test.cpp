// ranks: 1 2 3 4
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/lbfgs.hpp>
#include <tessera/nn/shard.hpp>

#include "nn/optim_support.hpp"
#include "nn/shared_dir.hpp"

namespace tessera::test {
namespace {

/// Rosenbrock's function along a chain of five numbers, split over the ranks at rest:
/// sum 100 (x[i+1] - x[i]^2)^2 + (1 - x[i])^2. The second parameter has no gradient.
struct Chain : nn::Module {
  nn::Parameter x, unused;
  explicit Chain(const Mesh& mesh)
      : x({5}, nn::init::zeros(), mesh, DType::kFloat64),
        unused({2}, nn::init::ones(), mesh, DType::kFloat64) {
    nn::initialize(*this, 1);
    nn::place(*this, {{"x", {.rest = Placement(mesh).shard(0, {"x"})}}});
    const double start[] = {-1.2, 1.0, -0.5, 0.8, 0.3};
    const View local = x.value().mutable_local();
    for (std::int64_t i = 0; i < local.size(); ++i)
      local.as<double>()[i] = start[x.value().local_box().lo[0] + i];
  }
  void fields(nn::Fields& f) override {
    f("x", x);
    f("unused", unused);
  }
  Tensor loss() {
    const Tensor low = slice(x(), 0, 0, 4);
    const Tensor high = slice(x(), 0, 1, 5);
    return sum(square(high - square(low)) * 100.0 + square(1.0 * low - 1.0));
  }
};

/// A step that counts evaluations.
double step(Chain& chain, optim::Lbfgs& lbfgs, int& evaluations) {
  return lbfgs.step([&] {
    ++evaluations;
    const Tensor loss = chain.loss();
    backward(loss);
    return reduced(loss).item();
  });
}

/// Steps with these losses; the evaluations that they take.
int check_losses(Chain& chain, optim::Lbfgs& lbfgs, std::span<const double> losses) {
  int evaluations = 0;
  for (const double expected : losses)
    CHECK(step(chain, lbfgs, evaluations) == Approx(expected).epsilon(1e-6));
  return evaluations;
}

DenseArray five(const std::vector<double>& values) {
  DenseArray a({5});
  a.values = values;
  return a;
}

}  // namespace

// Numbers of torch 2.15 in double: torch.optim.LBFGS([x], lr=1, max_iter=4, max_eval=12,
// history_size=3, line_search_fn="strong_wolfe"), ten steps.
TEST_CASE("l-bfgs with strong Wolfe search takes the steps of torch") {
  Chain chain(line());
  optim::Lbfgs lbfgs(chain.parameters(), {.iterations = 4, .evaluations = 12, .history = 3});
  const double losses[] = {293.3,          5.62394123333, 4.61415540294, 4.53331541565,
                           3.98713064733,  2.96316327098, 1.85272400281, 0.826544921856,
                           0.408673127822, 0.127280571615};
  CHECK(check_losses(chain, lbfgs, losses) == 56);
  CHECK(
      compare("x", chain.x.value(),
              five({0.989571789651, 0.98169186838, 0.963453902035, 0.927368479094, 0.852077783147}),
              1e-6) == "");
  CHECK(lbfgs.steps() == 10);
  CHECK(chain.unused.value().at({0}) == 1.0);
}

// The same without a search, lr=1e-3.
TEST_CASE("l-bfgs of fixed length takes the steps of torch") {
  Chain chain(line());
  optim::Lbfgs lbfgs(
      chain.parameters(),
      {.lr = 1e-3, .iterations = 4, .evaluations = 5, .history = 3, .line_search = false});
  const double losses[] = {293.3,         291.87533735,  290.283094065, 288.426365997,
                           285.801483929, 268.390971288, 216.735142517, 157.811667864,
                           145.090516942, 135.170046316};
  CHECK(check_losses(chain, lbfgs, losses) == 40);
  CHECK(compare(
            "x", chain.x.value(),
            five({-1.17030160056, 1.09028571396, 0.227890384195, 0.453929043787, -0.0371148434551}),
            1e-6) == "");
}

TEST_CASE("l-bfgs goes to the minimum and stays there") {
  Chain chain(line());
  nn::shard(chain, {.stage = 1, .min_elements = 1});
  optim::Lbfgs lbfgs(chain.parameters(), {.gradient_tolerance = 1e-9, .change_tolerance = 1e-14});
  int evaluations = 0;
  double last = 0;
  for (int s = 0; s < 10; ++s) last = step(chain, lbfgs, evaluations);
  CHECK(last < 1e-11);
  CHECK(compare("x", chain.x.value(), five({1, 1, 1, 1, 1}), 1e-5) == "");
  CHECK(evaluations < 120);
}

TEST_CASE("l-bfgs counts what lies on several ranks once, beside what is split") {
  const auto train_steps = [](Toy& toy) {
    optim::Lbfgs lbfgs(toy.parameters(), {.iterations = 3});
    for (int s = 0; s < 3; ++s) {
      lbfgs.step([&] {
        const Tensor loss = toy.loss();
        backward(loss);
        return reduced(loss).item();
      });
    }
  };
  Toy toy(line());
  Toy alone(Mesh::of({process().rank}, {{"x", 1}}));
  const Reference start(alone);
  train_steps(toy);
  train_steps(alone);
  Reference(alone).check(toy, 1e-9);
  CHECK(compare("a", alone.a.value(), start.p[0], 0.1) != "");
}

TEST_CASE("a loss that is no number beyond an edge does not stop the search") {
  Toy toy(line());
  optim::Lbfgs lbfgs(toy.parameters(), {.lr = 1e3});
  const auto closure = [&] {
    const Tensor loss = sum(toy.b() - log(toy.b() - -3.0));  // least at -2
    backward(loss);
    return reduced(loss).item();
  };
  for (int s = 0; s < 5; ++s) lbfgs.step(closure);
  CHECK(compare("b", toy.b.value(), DenseArray({7}, -2.0), 1e-5) == "");
}

TEST_CASE("l-bfgs goes on from a checkpoint as if it had not stopped") {
  const SharedDir dir(nn::collective(line()));
  const std::string path = dir / "checkpoint";
  const optim::LbfgsOptions options = {.iterations = 3, .history = 2};
  Chain through(line());
  optim::Lbfgs whole(through.parameters(), options);
  int evaluations = 0;
  for (int s = 0; s < 3; ++s) step(through, whole, evaluations);
  nn::TrainingState saved = {.model = &through, .optimizer = &whole};
  nn::save_checkpoint(path, saved);
  for (int s = 0; s < 3; ++s) step(through, whole, evaluations);

  Chain again(line());
  optim::Lbfgs rest(again.parameters(), options);
  nn::TrainingState loaded = {.model = &again, .optimizer = &rest};
  nn::load_checkpoint(path, loaded);
  CHECK(rest.steps() == 3);
  for (int s = 0; s < 3; ++s) step(again, rest, evaluations);
  CHECK(compare("x", again.x.value(), to_dense(through.x.value()), 0.0) == "");
}

TEST_CASE("l-bfgs says what it needs") {
  Toy toy(line());
  CHECK_THROWS_AS(optim::Lbfgs(toy.parameters(), {.history = 0}), UsageError);
  optim::Lbfgs lbfgs(toy.parameters());
  optim::Optimizer& any = lbfgs;
  CHECK_THROWS_AS(any.step(), UsageError);
}

}  // namespace tessera::test
