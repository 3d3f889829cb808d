// ranks: 1 2 3 4
#include <tessera/nn/muon.hpp>
#include <tessera/nn/optimizers.hpp>
#include <tessera/nn/shard.hpp>

#include "nn/optim_support.hpp"

namespace tessera::test {
namespace {

using States = std::array<DenseArray, 3>;
/// One step (from 1) of parameter `which` in plain loops.
using Rule = std::function<void(
    int step, std::size_t which, DenseArray& p, const DenseArray& g, States& states)>;

/// Ten steps of an optimiser and of its rule, with one parameter split, with state shared out, and
/// with everything shared out.
template <class Make>
void check_steps(const Make& make, const Rule& rule, double tolerance = 1e-11) {
  for (const int stage : {0, 1, 3}) {
    INFO("stage " << stage);
    Toy toy(line());
    if (stage > 0) nn::shard(toy, {.stage = stage, .min_elements = 1});
    Reference r(toy);
    auto optimizer = make(toy.parameters());
    std::array<States, 3> states;
    for (std::size_t i = 0; i < 3; ++i)
      for (DenseArray& s : states[i]) s = DenseArray(r.p[i].shape);
    for (int step = 1; step <= 10; ++step) {
      train(toy, optimizer);
      for (std::size_t i = 0; i < 3; ++i) {
        DenseArray g = r.p[i];
        for (double& v : g.values) v = Reference::gradient(i, v);
        rule(step, i, r.p[i], g, states[i]);
      }
      r.check(toy, tolerance);
    }
    for (const auto& [name, t] : optimizer.state()) {
      const std::size_t which = name[0] == 'a' ? 0 : name[0] == 'b' ? 1 : 2;
      CHECK(t.layout() == toy.parameters()[which].optimizer_layout());
    }
  }
}

/// The same for rules of one element.
Rule each(
    const std::function<void(
        int step, std::size_t which, double& p, double g, double& s, double& t, double& u)>& f) {
  return [f](int step, std::size_t which, DenseArray& p, const DenseArray& g, States& s) {
    for (std::size_t e = 0; e < p.values.size(); ++e)
      f(step, which, p.values[e], g.values[e], s[0].values[e], s[1].values[e], s[2].values[e]);
  };
}

/// b halves the rate, c has a decay of its own, a that of the optimiser.
std::vector<optim::Group> groups() {
  return {{.pattern = "b", .lr_scale = 0.5}, {.pattern = "c", .weight_decay = 0.02}};
}
double decay_of(std::size_t which) { return which == 0 ? 0.1 : which == 1 ? 0.0 : 0.02; }
double scale_of(std::size_t which) { return which == 1 ? 0.5 : 1.0; }

double norm(const DenseArray& x) { return std::sqrt(dot(x, x)); }

}  // namespace

TEST_CASE("rmsprop follows its formula") {
  const double momentum = GENERATE(0.0, 0.9);
  const bool centered = GENERATE(false, true);
  check_steps(
      [&](const auto& parameters) {
        return optim::Rmsprop(parameters, {.lr = 0.02,
                                           .alpha = 0.9,
                                           .eps = 1e-4,
                                           .momentum = momentum,
                                           .centered = centered,
                                           .weight_decay = 0.1,
                                           .groups = groups()});
      },
      each([&](int, std::size_t which, double& p, double g, double& s, double& v, double& a) {
        g += decay_of(which) * p;
        s = 0.9 * s + 0.1 * g * g;
        a = 0.9 * a + 0.1 * g;
        const double u = g / (std::sqrt(centered ? s - a * a : s) + 1e-4);
        v = momentum * v + u;
        p -= 0.02 * scale_of(which) * v;
      }));
}

TEST_CASE("adagrad follows its formula") {
  check_steps(
      [&](const auto& parameters) {
        return optim::Adagrad(parameters, {.lr = 0.1,
                                           .lr_decay = 0.05,
                                           .initial = 0.2,
                                           .eps = 1e-6,
                                           .weight_decay = 0.1,
                                           .groups = groups()});
      },
      each([&](int step, std::size_t which, double& p, double g, double& s, double&, double&) {
        g += decay_of(which) * p;
        s += g * g;
        p -= 0.1 * scale_of(which) / (1 + (step - 1) * 0.05) * g / (std::sqrt(0.2 + s) + 1e-6);
      }));
}

TEST_CASE("lion follows its formula") {
  check_steps(
      [&](const auto& parameters) {
        return optim::Lion(
            parameters,
            {.lr = 0.01, .beta1 = 0.6, .beta2 = 0.8, .weight_decay = 0.1, .groups = groups()});
      },
      each([&](int, std::size_t which, double& p, double g, double& m, double&, double&) {
        const double rate = 0.01 * scale_of(which);
        p *= 1 - rate * decay_of(which);
        p -= rate * (0.6 * m + 0.4 * g > 0 ? 1 : -1);
        m = 0.8 * m + 0.2 * g;
      }));
}

TEST_CASE("lamb follows its formula, with norms of whole parameters") {
  const double largest = GENERATE(0.0, 0.3);
  check_steps(
      [&](const auto& parameters) {
        return optim::Lamb(parameters, {.lr = 0.05,
                                        .beta1 = 0.8,
                                        .beta2 = 0.95,
                                        .weight_decay = 0.1,
                                        .largest_trust = largest,
                                        .groups = groups()});
      },
      [&](int step, std::size_t which, DenseArray& p, const DenseArray& g, States& s) {
        DenseArray u = p;
        for (std::size_t e = 0; e < p.values.size(); ++e) {
          double& m = s[0].values[e];
          double& v = s[1].values[e];
          m = 0.8 * m + 0.2 * g.values[e];
          v = 0.95 * v + 0.05 * g.values[e] * g.values[e];
          u.values[e] =
              m / (1 - std::pow(0.8, step)) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-6) +
              decay_of(which) * p.values[e];
        }
        double trust = norm(p) / norm(u);
        if (largest > 0) trust = std::min(trust, largest);
        for (std::size_t e = 0; e < p.values.size(); ++e)
          p.values[e] -= 0.05 * scale_of(which) * trust * u.values[e];
      });
}

namespace {

/// Newton-Schulz in plain loops: X = a X + (b A + c A A) X, A = X X^T, on the matrix whose rows are
/// dimension 0, transposed where it has more rows than columns.
DenseArray orthogonal(const DenseArray& x) {
  std::size_t n = static_cast<std::size_t>(x.shape[0]);
  std::size_t m = x.values.size() / n;
  const bool tall = n > m;
  const double size = norm(x);
  std::vector<double> y(x.values.size());
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j)
      y[tall ? j * n + i : i * m + j] = x.values[i * m + j] / size;
  if (tall) std::swap(n, m);
  const auto product = [](const std::vector<double>& a, const std::vector<double>& b,
                          std::size_t rows, std::size_t inner, std::size_t columns) {
    std::vector<double> c(rows * columns, 0.0);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t k = 0; k < inner; ++k)
        for (std::size_t j = 0; j < columns; ++j)
          c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
    return c;
  };
  for (int iteration = 0; iteration < 5; ++iteration) {
    std::vector<double> transposed(y.size());
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < m; ++j) transposed[j * n + i] = y[i * m + j];
    const std::vector<double> gram = product(y, transposed, n, m, n);
    std::vector<double> polynomial = product(gram, gram, n, n, n);
    for (std::size_t i = 0; i < polynomial.size(); ++i)
      polynomial[i] = -4.775 * gram[i] + 2.0315 * polynomial[i];
    const std::vector<double> step = product(polynomial, y, n, n, m);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = 3.4445 * y[i] + step[i];
  }
  DenseArray result(x.shape);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j) result.values[tall ? j * n + i : i * m + j] = y[i * m + j];
  return result;
}

}  // namespace

TEST_CASE("muon follows its formula, with products of whole matrices") {
  const bool nesterov = GENERATE(false, true);
  const auto scale = GENERATE(optim::MuonScale::kAdamW, optim::MuonScale::kAspect);
  check_steps(
      [&](const auto& parameters) {
        return optim::Muon(parameters, {.lr = 0.02,
                                        .momentum = 0.9,
                                        .nesterov = nesterov,
                                        .weight_decay = 0.1,
                                        .scale = scale,
                                        .groups = groups()});
      },
      [&](int step, std::size_t which, DenseArray& p, const DenseArray& g, States& s) {
        const double rate = 0.02 * scale_of(which);
        DenseArray d = g;
        for (std::size_t e = 0; e < p.values.size(); ++e) {
          double& m = s[0].values[e];
          m = 0.9 * m + 0.1 * g.values[e];
          d.values[e] = nesterov ? 0.1 * g.values[e] + 0.9 * m : m;
          if (which != 1) continue;
          double& v = s[1].values[e];  // the vector follows AdamW
          v = 0.999 * v + 0.001 * g.values[e] * g.values[e];
          p.values[e] -= rate * m / (1 - std::pow(0.9, step)) /
                         (std::sqrt(v / (1 - std::pow(0.999, step))) + 1e-8);
        }
        if (which == 1) return;
        d = orthogonal(d);
        const double rows = static_cast<double>(p.shape[0]);
        const double columns = static_cast<double>(p.size()) / rows;
        const double factor = scale == optim::MuonScale::kAdamW
                                  ? 0.2 * std::sqrt(std::max(rows, columns))
                                  : std::sqrt(std::max(1.0, rows / columns));
        for (std::size_t e = 0; e < p.values.size(); ++e)
          p.values[e] = p.values[e] * (1 - rate * decay_of(which)) - rate * factor * d.values[e];
      },
      1e-8);
}

TEST_CASE("muon leaves matrices that it is told to AdamW") {
  Toy toy(line());
  Toy same(line());
  optim::Muon muon(toy.parameters(), {.lr = 0.01, .adamw = {"a", "c"}});
  optim::AdamW adam(same.parameters(), {.lr = 0.01, .weight_decay = 0.1});
  for (int step = 0; step < 3; ++step) {
    train(toy, muon);
    train(same, adam);
  }
  Reference(same).check(toy);
  CHECK(muon.state().size() == 6);
  CHECK_THROWS_AS(optim::Muon(toy.parameters(), {.adamw = {"z"}}), UsageError);
}

TEST_CASE("newton-schulz brings singular values near 1, in any layout") {
  for (const Mesh& mesh : test_meshes()) {
    for (const Shape& shape : {Shape{9, 4}, Shape{3, 11}}) {
      const DenseArray x = random_array(shape, 5);
      const DenseArray expected = orthogonal(x);
      Rng rng(from_process_0(run_seed()));
      for (int variant = 0; variant < 4; ++variant) {
        const Layout layout = draw_layout(mesh, shape, rng);
        INFO(layout.str());
        const Tensor y = optim::newton_schulz(to_tensor(x, layout));
        CHECK(y.layout() == layout);
        CHECK(compare("orthogonal", y, expected, 1e-9) == "");
      }
      // The trace of Y Y^T is the sum of the squares of the singular values.
      const auto values = static_cast<double>(std::min(shape[0], shape[1]));
      CHECK(dot(expected, expected) / values == Approx(1.0).margin(0.5));
    }
  }
}

}  // namespace tessera::test
