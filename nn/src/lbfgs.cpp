#include <algorithm>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/scope.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/lbfgs.hpp>

#include "line_search.hpp"
#include "optim_support.hpp"

namespace tessera::optim {
namespace {

/// One tensor per parameter that lies here, in the layouts of the optimiser.
using Vectors = std::vector<Tensor>;

/// Sums and maxima over all elements of all parameters, wherever they lie.
class Products {
 public:
  explicit Products(const std::vector<nn::Parameter>& parameters) : parameters_(parameters) {}

  double dot(const Vectors& a, const Vectors& b) const {
    double total = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i)
      if (io::is_first_replica(a[i].layout())) total += part(sum(exact(a[i]) * exact(b[i])));
    return together(total, ReduceOp::kSum);
  }
  double sum_abs(const Vectors& a) const {
    double total = 0.0;
    for (const Tensor& t : a)
      if (io::is_first_replica(t.layout())) total += part(sum(abs(exact(t))));
    return together(total, ReduceOp::kSum);
  }
  double max_abs(const Vectors& a) const {
    double largest = 0.0;
    for (const Tensor& t : a)
      if (t.numel() > 0) largest = std::max(largest, part(amax(abs(exact(t)))));
    return together(largest, ReduceOp::kMax);
  }

 private:
  static Tensor exact(const Tensor& t) { return cast(t, DType::kFloat64); }
  /// This rank's share of a pending sum or maximum.
  static double part(const Tensor& scalar) { return scalar.at({}); }
  double together(double value, ReduceOp op) const {
    reduce_numbers({&value, 1}, parameters_, op);
    return value;
  }
  const std::vector<nn::Parameter>& parameters_;
};

/// x + alpha y
Vectors sum_of(const Vectors& x, double alpha, const Vectors& y) {
  Vectors result;
  for (std::size_t i = 0; i < x.size(); ++i) result.push_back(x[i] + y[i] * alpha);
  return result;
}

Vectors scaled(const Vectors& x, double alpha) {
  Vectors result;
  for (const Tensor& t : x) result.push_back(t * alpha);
  return result;
}

void store(const Vectors& from, const Vectors& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    kernels::copy(from[i].local(), to[i].mutable_local());
}

Names slot_names(const LbfgsOptions& options) {
  Names names = {"direction", "gradient"};
  for (std::int64_t k = 0; k < options.history; ++k) {
    names.push_back(str("step.", k));
    names.push_back(str("change.", k));
  }
  return names;
}

/// What is kept beside tensors, in one tensor, so that a checkpoint holds it.
struct Numbers {
  double* at;
  double& iterations() const { return at[0]; }
  double& entries() const { return at[1]; }
  double& oldest() const { return at[2]; }
  double& length() const { return at[3]; }
  double& scale() const { return at[4]; }
  double& curvature(std::int64_t slot) const { return at[5 + slot]; }
};

/// Steps s and changes y of the gradient of the last iterations, which stand for the inverse H of
/// the second derivatives (Nocedal & Wright, algorithm 7.4).
class History {
 public:
  /// `slot(k)`: tensors of the state; pairs begin at 2.
  History(const Numbers& numbers,
          std::int64_t size,
          const Products& products,
          std::function<Vectors(std::size_t)> slot)
      : numbers_(numbers), size_(size), products_(products), slot_(std::move(slot)) {}

  void clear() {
    numbers_.entries() = numbers_.oldest() = 0.0;
    numbers_.scale() = 1.0;
  }
  /// In place of the oldest pair when it is full; not where the curvature is lost in rounding.
  void add(const Vectors& s, const Vectors& y) {
    const double ys = products_.dot(y, s);
    if (!(ys > 1e-10)) return;
    if (entries() == size_) {
      numbers_.oldest() = static_cast<double>(place(1));
    } else {
      numbers_.entries() += 1.0;
    }
    const std::int64_t newest = entries() - 1;
    store(s, steps(newest));
    store(y, turns(newest));
    numbers_.curvature(place(newest)) = 1.0 / ys;
    numbers_.scale() = ys / products_.dot(y, y);
  }
  /// -H g, in two loops.
  Vectors direction(const Vectors& g) const {
    std::vector<double> alpha(static_cast<std::size_t>(entries()));
    Vectors d = scaled(g, -1.0);
    for (std::int64_t k = entries() - 1; k >= 0; --k) {
      double& a = alpha[static_cast<std::size_t>(k)];
      a = products_.dot(steps(k), d) * numbers_.curvature(place(k));
      d = sum_of(d, -a, turns(k));
    }
    d = scaled(d, numbers_.scale());
    for (std::int64_t k = 0; k < entries(); ++k) {
      const double b = products_.dot(turns(k), d) * numbers_.curvature(place(k));
      d = sum_of(d, alpha[static_cast<std::size_t>(k)] - b, steps(k));
    }
    return d;
  }

 private:
  std::int64_t entries() const { return static_cast<std::int64_t>(numbers_.entries()); }
  /// Where the k-th pair lies, counted from the oldest.
  std::int64_t place(std::int64_t k) const {
    return (static_cast<std::int64_t>(numbers_.oldest()) + k) % size_;
  }
  Vectors steps(std::int64_t k) const { return slot_(2 + 2 * static_cast<std::size_t>(place(k))); }
  Vectors turns(std::int64_t k) const { return slot_(3 + 2 * static_cast<std::size_t>(place(k))); }

  const Numbers& numbers_;
  std::int64_t size_;
  const Products& products_;
  std::function<Vectors(std::size_t)> slot_;
};

}  // namespace

Lbfgs::Lbfgs(const std::vector<nn::Parameter>& parameters, const LbfgsOptions& options)
    : Optimizer(parameters, always(slot_names(options)), options.lr, 0.0, false, {}),
      options_(options) {
  if (options.iterations <= 0 || options.evaluations <= 0 || options.history <= 0) {
    throw UsageError(str("Lbfgs: ", options.iterations, " iterations, ", options.evaluations,
                         " evaluations and a history of ", options.history,
                         " must all be positive."));
  }
  numbers_ =
      Tensor::zeros(Layout::replicated(this->parameters()[0].whole_mesh(), {5 + options.history}),
                    DType::kFloat64);
}

void Lbfgs::step() {
  throw UsageError(
      "Lbfgs: step() cannot evaluate the loss again, which a step does several times. Call "
      "step(closure).");
}

std::vector<std::pair<std::string, Tensor>> Lbfgs::state() {
  auto tensors = Optimizer::state();
  tensors.emplace_back("lbfgs/numbers", numbers_);
  return tensors;
}

double Lbfgs::step(const Closure& closure) {
  if (dry_run())
    throw NotSupported("Lbfgs: how often a step evaluates the loss depends on data. Plan AdamW.");
  const NoGrad no_grad;
  zero_grad();
  count_step();
  std::vector<Change> changes;
  const auto evaluate = [&](Vectors& gradient) {
    double loss = 0.0;
    {
      const EnableGrad recorded;
      loss = closure();
    }
    const PhaseScope phase(Phase::kUpdate);
    changes = take_changes(true);
    gradient.clear();
    for (const Change& change : changes) gradient.push_back(change.gradient);
    return loss;
  };
  const auto slot = [&](std::size_t s) {
    Vectors tensors;
    for (const Change& change : changes) tensors.push_back(change.slots[s]);
    return tensors;
  };
  const auto move_to = [&](const Vectors& values) {
    const PhaseScope phase(Phase::kUpdate);
    for (std::size_t i = 0; i < values.size(); ++i)
      kernels::copy(values[i].local(), changes[i].value.mutable_local());
    give_back(changes);
  };
  const Products products(parameters());
  const Numbers numbers{numbers_.mutable_local().as<double>()};
  History history(numbers, options_.history, products, slot);

  Vectors g;
  const double first_loss = evaluate(g);
  double loss = first_loss;
  std::int64_t evaluations = 1;
  if (products.max_abs(g) <= options_.gradient_tolerance) return first_loss;

  const Vectors direction = slot(0);
  const Vectors previous = slot(1);
  for (std::int64_t iteration = 1;; ++iteration) {
    const bool very_first = numbers.iterations() == 0.0;
    numbers.iterations() += 1.0;
    if (very_first) {
      history.clear();
    } else {
      history.add(scaled(direction, numbers.length()), sum_of(g, -1.0, previous));
    }
    const Vectors d = history.direction(g);
    store(d, direction);
    store(g, previous);
    const double previous_loss = loss;

    double length = lr();
    if (very_first) length *= std::min(1.0, 1.0 / products.sum_abs(g));
    numbers.length() = length;
    const double slope = products.dot(g, d);
    if (slope > -options_.change_tolerance) break;

    Vectors start;
    for (const Change& change : changes) start.push_back(change.value * 1.0);
    const double size = products.max_abs(d);
    bool at_optimum = false;
    if (options_.line_search) {
      double at = 0.0;
      const auto try_length = [&](double t) {
        move_to(sum_of(start, t, d));
        at = t;
        LinePoint point{.length = t};
        Vectors gradient;
        point.loss = evaluate(gradient);
        point.slope = products.dot(gradient, d);
        point.gradient = std::move(gradient);
        ++evaluations;
        return point;
      };
      LinePoint best =
          strong_wolfe(try_length, {.length = 0.0, .loss = loss, .slope = slope, .gradient = g},
                       length, size, options_.change_tolerance, options_.evaluations - evaluations);
      length = best.length;
      loss = best.loss;
      g = std::move(best.gradient);
      if (at != length) move_to(sum_of(start, length, d));
      at_optimum = products.max_abs(g) <= options_.gradient_tolerance;
    } else {
      move_to(sum_of(start, length, d));
      if (iteration != options_.iterations) {
        loss = evaluate(g);
        ++evaluations;
        at_optimum = products.max_abs(g) <= options_.gradient_tolerance;
      }
    }
    numbers.length() = length;
    if (iteration == options_.iterations || evaluations >= options_.evaluations || at_optimum ||
        size * std::abs(length) <= options_.change_tolerance ||
        std::abs(loss - previous_loss) < options_.change_tolerance)
      break;
  }
  return first_loss;
}

}  // namespace tessera::optim
