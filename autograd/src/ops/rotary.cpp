// Rotary encoding: each rank turns the channels of its tokens by angles of their global positions.

#include <cmath>
#include <numbers>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/rotary.hpp>
#include <tessera/kernels/rotary.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

struct RotaryArgs {
  std::int64_t inverse;
  std::int64_t circular;  // bit d: domain dimension d
};
struct RotaryScalars {
  double base;
  double scale;
};

std::int64_t circular_bits(const char* op, const RotaryOptions& options, int dims) {
  const std::size_t given = options.circular.size();
  if (given > 1 && given != static_cast<std::size_t>(dims)) {
    throw UsageError(str(op, ": ", given, " flags `circular` for ", dims,
                         " domain dimensions. Give one per dimension, or one for all."));
  }
  std::int64_t bits = 0;
  for (int d = 0; d < dims && given > 0; ++d)
    if (options.circular[given == 1 ? 0 : static_cast<std::size_t>(d)]) bits |= 1 << d;
  return bits;
}

std::vector<PositionWave> waves_of(const Dims& domain,
                                   std::int64_t count,
                                   const RotaryScalars& scalars,
                                   std::int64_t circular) {
  std::vector<PositionWave> waves;
  const int dims = domain.size();
  for (int d = 0; d < dims; ++d) {
    const std::int64_t share = count / dims + (d < count % dims ? 1 : 0);
    const double turn = 2.0 * std::numbers::pi / static_cast<double>(domain[d]);
    for (std::int64_t j = 0; j < share; ++j) {
      const double exponent = -static_cast<double>(j) / static_cast<double>(share);
      double step = scalars.scale * std::pow(scalars.base, exponent);
      if ((circular >> d & 1) != 0 && domain[d] > 0)
        step = turn * std::max(1.0, std::round(step / turn));
      waves.push_back({d, step});
    }
  }
  return waves;
}

/// Linear in x; with the other direction it is its own gradient.
const OpDef rotary_op = {
    .name = "rotary",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          const Shape& x = problem.shape(0);
          if (x.size() < 4 || x.back() % 2 != 0) {
            throw ShapeError(str("rotary: input ", x,
                                 " is not [N, domain..., H, D] with an even number of channels D "
                                 "(they turn in pairs). Reshape it."));
          }
          if (!is_floating(problem.dtypes[0])) {
            throw DTypeError(str("rotary: element type ", name(problem.dtypes[0]),
                                 " is not floating. Cast it first."));
          }
          out.push_back({x, problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          for (int d = 0; d + 1 < problem.shape(0).size(); ++d)
            legal.push_back({.in = {shard_role(d)}, .out = {shard_role(d)}, .bounds = {}});
        },
    .local =
        [](const LocalCall& call) {
          const Shape& x = call.out[0].global;
          const auto& args = call.as<RotaryArgs>();
          Dims domain;
          for (int d = 1; d < x.size() - 2; ++d) domain.push_back(x[d]);
          std::vector<kernels::RotaryPair> pairs;
          for (const PositionWave& wave :
               waves_of(domain, x.back() / 2, call.dynamic_as<RotaryScalars>(), args.circular))
            pairs.push_back({wave.dim, wave.step});
          kernels::rotary(pairs, args.inverse != 0, call.in[0].view, call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          RotaryArgs args = context.as<RotaryArgs>();
          args.inverse = 1 - args.inverse;
          context.set(0,
                      call(rotary_op, {context.grad()}, args, context.dynamic_as<RotaryScalars>()));
        },
    .cost =
        [](const LocalCall& call) { return 3.0 * static_cast<double>(call.out[0].view.size()); }};

RotaryScalars scalars_of(const char* op, const RotaryOptions& options) {
  if (!(options.base > 0.0) || !std::isfinite(options.base) || !std::isfinite(options.scale)) {
    throw UsageError(str(op, ": base ", options.base, " and scale ", options.scale,
                         " make no waves. Choose a positive base and a finite scale."));
  }
  return {options.base, options.scale};
}

}  // namespace

std::vector<PositionWave> position_waves(const Dims& domain,
                                         std::int64_t count,
                                         const RotaryOptions& options) {
  return waves_of(domain, count, scalars_of("position_waves", options),
                  circular_bits("position_waves", options, domain.size()));
}

Tensor rotary(const Tensor& x, const RotaryOptions& options) {
  return call(rotary_op, {x}, RotaryArgs{0, circular_bits("rotary", options, x.dims() - 3)},
              scalars_of("rotary", options));
}

}  // namespace tessera
