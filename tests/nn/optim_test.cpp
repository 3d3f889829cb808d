// ranks: 1 2 3 4
#include <tessera/nn/averages.hpp>

#include "nn/optim_support.hpp"

namespace tessera::test {

TEST_CASE("sgd follows its formula") {
  const double momentum = GENERATE(0.0, 0.9);
  const bool nesterov = GENERATE(false, true);
  if (nesterov && momentum == 0.0) return;
  Toy toy(line());
  Reference r(toy);
  optim::Sgd sgd(toy.parameters(), {.lr = 0.01,
                                    .momentum = momentum,
                                    .nesterov = nesterov,
                                    .weight_decay = 0.1,
                                    .groups = {{.pattern = "c", .lr_scale = 0.5}}});
  std::vector<DenseArray> v(3);
  for (int step = 0; step < 4; ++step) {
    train(toy, sgd);
    for (std::size_t i = 0; i < 3; ++i) {
      if (step == 0) v[i] = DenseArray(r.p[i].shape);
      for (std::size_t e = 0; e < r.p[i].values.size(); ++e) {
        double& p = r.p[i].values[e];
        const double g = Reference::gradient(i, p) + (i == 1 ? 0.0 : 0.1 * p);
        v[i].values[e] = momentum * v[i].values[e] + g;
        p -= 0.01 * (i == 2 ? 0.5 : 1.0) *
             (nesterov ? g + momentum * v[i].values[e] : v[i].values[e]);
      }
    }
    r.check(toy);
  }
  CHECK(sgd.steps() == 4);
}

TEST_CASE("adamw follows its formula") {
  Toy toy(line());
  Reference r(toy);
  optim::AdamW adam(toy.parameters(), {.lr = 0.02,
                                       .beta1 = 0.8,
                                       .beta2 = 0.95,
                                       .eps = 1e-6,
                                       .weight_decay = 0.2,
                                       .decay_vectors = true,
                                       .groups = {{.pattern = "b", .weight_decay = 0.05}}});
  std::vector<DenseArray> m(3);
  std::vector<DenseArray> v(3);
  for (int step = 1; step <= 5; ++step) {
    train(toy, adam);
    for (std::size_t i = 0; i < 3; ++i) {
      if (step == 1) m[i] = v[i] = DenseArray(r.p[i].shape);
      for (std::size_t e = 0; e < r.p[i].values.size(); ++e) {
        double& p = r.p[i].values[e];
        const double g = Reference::gradient(i, p);
        p *= 1 - 0.02 * (i == 1 ? 0.05 : 0.2);
        double& me = m[i].values[e];
        double& ve = v[i].values[e];
        me = 0.8 * me + 0.2 * g;
        ve = 0.95 * ve + 0.05 * g * g;
        p -= 0.02 * (me / (1 - std::pow(0.8, step))) /
             (std::sqrt(ve / (1 - std::pow(0.95, step))) + 1e-6);
      }
    }
    r.check(toy);
  }
  // The state lies where the parameters lie.
  for (const auto& [name, t] : adam.state()) {
    if (name.starts_with("a/")) CHECK(t.layout() == toy.a.rest());
  }
}

TEST_CASE("adam with amsgrad follows its formula") {
  Toy toy(line());
  Reference r(toy);
  optim::AdamW adam(toy.parameters(), {.lr = 0.5,
                                       .beta1 = 0.8,
                                       .beta2 = 0.5,
                                       .eps = 1e-6,
                                       .weight_decay = 0.2,
                                       .groups = {{.pattern = "a", .weight_decay = 0.05}},
                                       .amsgrad = true,
                                       .coupled = true});
  std::vector<DenseArray> m(3);
  std::vector<DenseArray> v(3);
  std::vector<DenseArray> largest(3);
  bool fell = false;
  for (int step = 1; step <= 6; ++step) {
    train(toy, adam);
    for (std::size_t i = 0; i < 3; ++i) {
      if (step == 1) m[i] = v[i] = largest[i] = DenseArray(r.p[i].shape);
      for (std::size_t e = 0; e < r.p[i].values.size(); ++e) {
        double& p = r.p[i].values[e];
        const double decay[] = {0.05, 0.0, 0.2};
        const double g = Reference::gradient(i, p) + decay[i] * p;
        double& me = m[i].values[e];
        double& ve = v[i].values[e];
        double& le = largest[i].values[e];
        me = 0.8 * me + 0.2 * g;
        ve = 0.5 * ve + 0.5 * g * g;
        fell = fell || ve < le;
        le = std::max(le, ve);
        p -= 0.5 * (me / (1 - std::pow(0.8, step))) /
             (std::sqrt(le / (1 - std::pow(0.5, step))) + 1e-6);
      }
    }
    r.check(toy);
  }
  CHECK(fell);
  CHECK(adam.state().size() == 9);
}

TEST_CASE("fp32 and bf16 parameters move") {
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  Toy toy(line(), dtype);
  Reference r(toy);
  optim::AdamW adam(toy.parameters(), {.lr = 0.1, .weight_decay = 0.0});
  train(toy, adam);
  for (std::size_t i = 0; i < 3; ++i) {
    for (double& p : r.p[i].values) p -= Reference::gradient(i, p) > 0 ? 0.1 : -0.1;
  }
  r.check(toy, dtype == DType::kFloat32 ? 1e-4 : 2e-2);
}

TEST_CASE("a parameter without a gradient stays") {
  Toy toy(line());
  Reference r(toy);
  optim::AdamW adam(toy.parameters());
  backward(sum(square(toy.b())));
  adam.step();
  CHECK(compare("a", toy.a.value(), r.p[0], 0.0) == "");
  CHECK(compare("b", toy.b.value(), r.p[1], 1e-6) != "");
  CHECK(compare("c", toy.c.value(), r.p[2], 0.0) == "");
}

TEST_CASE("micro-batches add up") {
  Toy toy(line());
  Toy same(line());
  optim::Sgd a(toy.parameters(), {.lr = 0.01});
  optim::Sgd b(same.parameters(), {.lr = 0.01});
  backward(toy.loss() * 0.25, {.reduce = false});
  backward(toy.loss() * 0.75, {.reduce = false});
  a.step();
  backward(same.loss());
  b.step();
  Reference(same).check(toy);
}

TEST_CASE("the norm counts each element once") {
  Toy toy(line());
  const Reference r(toy);
  double squares = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    for (const double p : r.p[i].values) squares += std::pow(Reference::gradient(i, p), 2);
  }
  const double norm = std::sqrt(squares);
  backward(toy.loss());
  CHECK(optim::grad_norm(toy.parameters()) == Approx(norm).epsilon(1e-12));
  CHECK(optim::clip_grad_norm(toy.parameters(), 10 * norm) == Approx(norm).epsilon(1e-12));
  CHECK(optim::clip_grad_norm(toy.parameters(), 0.5 * norm) == Approx(norm).epsilon(1e-12));
  CHECK(optim::grad_norm(toy.parameters()) == Approx(0.5 * norm).epsilon(1e-12));
  DenseArray expected = r.p[0];
  for (double& v : expected.values) v = 0.5 * Reference::gradient(0, v);
  CHECK(compare("gradient", gradient(toy.a.value()), expected, 1e-12) == "");
  optim::Sgd(toy.parameters()).zero_grad();
  CHECK(optim::grad_norm(toy.parameters()) == 0.0);
}

TEST_CASE("averages follow the parameters") {
  const bool warm_up = GENERATE(false, true);
  Toy toy(line());
  Reference r(toy);
  optim::Sgd sgd(toy.parameters(), {.lr = 0.01});
  optim::Ema ema(toy.parameters(), {.decay = 0.6, .warm_up = warm_up});
  for (int t = 1; t <= 12; ++t) {
    train(toy, sgd);
    ema.update();
    const double decay = warm_up ? std::min(0.6, (1.0 + t) / (10.0 + t)) : 0.6;
    const Reference now(toy);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t e = 0; e < r.p[i].values.size(); ++e) {
        r.p[i].values[e] = decay * r.p[i].values[e] + (1 - decay) * now.p[i].values[e];
      }
    }
  }
  const Reference trained(toy);
  {
    const optim::EmaScope scope(ema);
    r.check(toy);
  }
  trained.check(toy, 0.0);
}

TEST_CASE("equal averages are means") {
  Toy toy(line());
  Reference mean(toy);
  optim::Sgd sgd(toy.parameters(), {.lr = 0.01});
  optim::Ema average(toy.parameters(), {.equal = true});
  for (DenseArray& p : mean.p) std::fill(p.values.begin(), p.values.end(), 0.0);
  for (int t = 1; t <= 6; ++t) {
    train(toy, sgd);
    average.update();
    const Reference now(toy);
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t e = 0; e < now.p[i].values.size(); ++e)
        mean.p[i].values[e] += now.p[i].values[e] / 6;
  }
  CHECK(average.updates() == 6);
  const optim::EmaScope scope(average);
  mean.check(toy);
}

TEST_CASE("optimisers refuse what cannot be meant") {
  Toy toy(line());
  CHECK_THROWS_AS(optim::Sgd({}), UsageError);
  CHECK_THROWS_AS(optim::Sgd({toy.a, toy.a}), UsageError);
  CHECK_THROWS_AS(optim::AdamW(toy.parameters(), {.groups = {{.pattern = "z*"}}}), UsageError);
  toy.b.set_requires_grad(false);
  CHECK(optim::Sgd(toy.parameters()).parameters().size() == 2);
}

}  // namespace tessera::test
