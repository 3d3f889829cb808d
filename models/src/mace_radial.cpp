#include "mace_radial.hpp"

#include <cmath>
#include <numbers>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/threads.hpp>

namespace tessera::models {
namespace {

/// Static arguments: which derivative, and the number of functions or the power.
struct RadialArgs {
  std::int64_t order;
  std::int64_t number;
};
struct Cutoff {
  double r_max;
};

void list_infer(const Problem& problem, std::vector<OutputMeta>& out) {
  if (problem.shape(0).size() != 1 || !is_floating(problem.dtypes[0])) {
    throw ShapeError(str("radial function: input ", problem.shape(0),
                         " is not a floating list [E]. Give one distance per edge."));
  }
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

void table_infer(const Problem& problem, std::vector<OutputMeta>& out) {
  list_infer(problem, out);
  out[0].shape.push_back(problem.as<RadialArgs>().number);
}

void edges_signatures(const Problem&, const AxisGroup&, std::vector<Signature>& legal) {
  legal.push_back({.in = {shard_role(0)}, .out = {shard_role(0)}});
}

/// f(x, y, stride between values of y) for each edge, in double.
template <class F>
void each_edge(const LocalCall& call, const F& f) {
  const View& in = call.in[0].view;
  const View& out = call.out[0].view;
  const std::int64_t edges = out.shape[0];
  const std::int64_t step = in.strides[0];
  const auto run = [&]<class T>(const T* x, T* y) {
    const int threads = edges > 4096 ? thread_count() : 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (std::int64_t e = 0; e < edges; ++e)
      f(static_cast<double>(x[e * step]), y + e * out.strides[0]);
  };
  if (in.dtype == DType::kFloat64) {
    run(in.as<const double>(), out.as<double>());
  } else if (in.dtype == DType::kFloat32) {
    run(in.as<const float>(), out.as<float>());
  } else {
    throw DTypeError(str("radial function: ", name(in.dtype), " (fp64 and fp32). Cast it."));
  }
}

constexpr int kMostDerivatives = 5;

/// The k-th derivative s_k of sin(a x) / x by x s_k = a^k sin(a x + k pi / 2) - k s_(k - 1).
void bessel_local(const LocalCall& call) {
  const auto& args = call.as<RadialArgs>();
  const double r_max = call.dynamic_as<Cutoff>().r_max;
  const double scale = std::sqrt(2.0 / r_max);
  const std::int64_t stride = call.out[0].view.strides[1];
  const std::int64_t count = args.number;
  const int order = static_cast<int>(args.order);
  each_edge(call, [&]<class T>(double x, T* y) {
    const double a1 = std::numbers::pi / r_max;
    const double s1 = std::sin(a1 * x);
    const double c1 = std::cos(a1 * x);
    const double inverse = 1.0 / x;
    double s = s1;
    double c = c1;
    for (std::int64_t n = 0; n < count; ++n) {
      const double a = a1 * static_cast<double>(n + 1);
      const double turns[4] = {s, c, -s, -c};
      double value = s * inverse;
      double power = 1.0;
      for (int k = 1; k <= order; ++k) {
        power *= a;
        value = (power * turns[k % 4] - k * value) * inverse;
      }
      y[n * stride] = static_cast<T>(scale * value);
      const double next = s * c1 + c * s1;
      c = c * c1 - s * s1;
      s = next;
    }
  });
}

Tensor bessel_derivative(const Tensor& x, RadialArgs args, const Cutoff& cutoff);

void bessel_vjp(VjpContext& context) {
  RadialArgs args = context.as<RadialArgs>();
  ++args.order;
  const Tensor slope = bessel_derivative(context.input(0), args, context.dynamic_as<Cutoff>());
  context.set(0, sum(context.grad() * slope, {1}));
}

const OpDef bessel_op = {.name = "bessel",
                         .infer = table_infer,
                         .signatures = edges_signatures,
                         .local = bessel_local,
                         .vjp = bessel_vjp,
                         .saved_inputs = 1};

Tensor bessel_derivative(const Tensor& x, RadialArgs args, const Cutoff& cutoff) {
  if (args.order > kMostDerivatives)
    throw NotSupported(str("bessel: derivative ", args.order, " (at most ", kMostDerivatives,
                           "). Differentiate less often."));
  return call(bessel_op, {x}, args, cutoff);
}

void envelope_local(const LocalCall& call) {
  const auto& args = call.as<RadialArgs>();
  const auto p = static_cast<double>(args.number);
  const double c[3] = {-0.5 * (p + 1) * (p + 2), p * (p + 2), -0.5 * p * (p + 1)};
  // Term j: c_j x^(p + j), derived `order` times.
  double factors[3];
  for (int j = 0; j < 3; ++j) {
    factors[j] = c[j];
    for (int k = 0; k < static_cast<int>(args.order); ++k) factors[j] *= p + j - k;
  }
  const int power = static_cast<int>(args.number - args.order);
  const double constant = args.order == 0 ? 1.0 : 0.0;
  each_edge(call, [&]<class T>(double x, T* y) {
    double value = 0.0;
    if (x < 1.0) {
      // Powers below 0 have the factor 0.
      for (int j = 0; j < 3; ++j)
        if (factors[j] != 0.0) value += factors[j] * std::pow(x, power + j);
      value += constant;
    }
    *y = static_cast<T>(value);
  });
}

Tensor envelope_derivative(const Tensor& x, RadialArgs args);

void envelope_vjp(VjpContext& context) {
  RadialArgs args = context.as<RadialArgs>();
  ++args.order;
  context.set(0, context.grad() * envelope_derivative(context.input(0), args));
}

const OpDef envelope_op = {.name = "polynomial_envelope",
                           .infer = list_infer,
                           .signatures = edges_signatures,
                           .local = envelope_local,
                           .vjp = envelope_vjp,
                           .saved_inputs = 1};

Tensor envelope_derivative(const Tensor& x, RadialArgs args) {
  return call(envelope_op, {x}, args);
}

}  // namespace

Tensor bessel(const Tensor& x, std::int64_t count, double r_max) {
  return bessel_derivative(x, {.order = 0, .number = count}, {r_max});
}

Tensor polynomial_envelope(const Tensor& x, int p) {
  return envelope_derivative(x, {.order = 0, .number = p});
}

Tensor agnesi_transform(const Tensor& r, const Tensor& r0) {
  constexpr double kA = 1.0805;
  constexpr double kP = 4.5791;
  constexpr double kQ = 0.9183;
  const Tensor x = r / r0;
  return reciprocal(kA * pow(x, kQ) / (pow(x, kQ - kP) + 1.0) + 1.0);
}

Tensor pair_repulsion(const Tensor& r, const PairOfAtoms& pair, int p) {
  constexpr double kCoulomb = 14.3996;  // e^2 / (4 pi epsilon_0), eV A
  constexpr double kScreening = 0.4543 * 0.529;
  constexpr double kExponent = 0.300;
  constexpr double kTerms[4][2] = {
      {0.1818, 3.2}, {0.5099, 0.9423}, {0.2802, 0.4028}, {0.02817, 0.2016}};
  const Tensor x = r * (pow(pair.z1, kExponent) + pow(pair.z2, kExponent)) / kScreening;
  Tensor screen;
  for (const auto& [c, d] : kTerms) {
    const Tensor term = c * exp(-d * x);
    screen = screen.defined() ? screen + term : term;
  }
  const Tensor reach = pair.radius1 + pair.radius2;
  return kCoulomb * (pair.z1 * pair.z2) * screen / r * polynomial_envelope(r / reach, p);
}

double covalent_radius(std::int64_t z) {
  static constexpr double kRadii[] = {
      0.31, 0.28, 1.28, 0.96, 0.84, 0.76, 0.71, 0.66, 0.57, 0.58, 1.66, 1.41, 1.21, 1.11,
      1.07, 1.05, 1.02, 1.06, 2.03, 1.76, 1.70, 1.60, 1.53, 1.39, 1.39, 1.32, 1.26, 1.24,
      1.32, 1.22, 1.22, 1.20, 1.19, 1.20, 1.20, 1.16, 2.20, 1.95, 1.90, 1.75, 1.64, 1.54,
      1.47, 1.46, 1.42, 1.39, 1.45, 1.44, 1.42, 1.39, 1.39, 1.38, 1.39, 1.40, 2.44, 2.15,
      2.07, 2.04, 2.03, 2.01, 1.99, 1.98, 1.98, 1.96, 1.94, 1.92, 1.92, 1.89, 1.90, 1.87,
      1.87, 1.75, 1.70, 1.62, 1.51, 1.44, 1.41, 1.36, 1.36, 1.32, 1.45, 1.46, 1.48, 1.40,
      1.50, 1.50, 2.60, 2.21, 2.15, 2.06, 2.00, 1.96, 1.90, 1.87, 1.80, 1.69};
  constexpr std::int64_t kKnown = sizeof kRadii / sizeof *kRadii;
  static_assert(kKnown == 96);
  constexpr double kUnknown = 0.2;
  if (z < 1 || z > 118)
    throw UsageError(str("covalent_radius: there is no element ", z, ". Use 1 to 118."));
  return z <= kKnown ? kRadii[z - 1] : kUnknown;
}

}  // namespace tessera::models
