#include <algorithm>
#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/muon.hpp>

#include "dense.hpp"
#include "optim_support.hpp"

namespace tessera::optim {
namespace {

/// `x` with dimension `dim` alone split, by all axes that split any.
Tensor split_along(const Tensor& x, int dim) {
  const Layout& layout = x.layout();
  const AxisMask axes = layout.split_axes();
  if (layout.axes_of(dim) == axes) return x;
  const Mesh& mesh = layout.mesh();
  std::vector<DimSplit> splits(static_cast<std::size_t>(layout.dims()));
  DimSplit& split = splits[static_cast<std::size_t>(dim)];
  for (int axis = 0; axis < mesh.axis_count(); ++axis)
    if (axes >> axis & 1u) split.axes.push_back(axis);
  split.bounds = balanced_bounds(x.size(dim), mesh.parts(axes));
  return redistribute(x, Layout::make(mesh, x.shape(), std::move(splits)));
}

bool by_adamw(const MuonOptions& options, const nn::Parameter& p) {
  return p.shape().size() < 2 ||
         std::any_of(options.adamw.begin(), options.adamw.end(),
                     [&](const std::string& pattern) { return nn::glob_match(pattern, p.path()); });
}

Tensor orthogonal(const Tensor& x, int iterations) {
  if (x.dims() == 2) return newton_schulz(x, iterations);
  // Dimensions may be joined where dimension 0 alone is split.
  const Tensor rows = reshape(split_along(x, 0), {x.size(0), x.numel() / x.size(0)});
  return redistribute(reshape(newton_schulz(rows, iterations), x.shape()), x.layout());
}

}  // namespace

Tensor newton_schulz(const Tensor& x, int iterations) {
  if (x.dims() != 2)
    throw ShapeError(str("newton_schulz: ", x.shape(), " is not a matrix. Reshape it."));
  constexpr double a = 3.4445, b = -4.775, c = 2.0315;
  const bool tall = x.size(0) > x.size(1);
  Tensor y = x.dtype() == DType::kFloat64 ? x : cast(x, DType::kFloat32);
  y = split_along(reduced(y), tall ? 0 : 1);
  y = y / clamp(sqrt(reduced(sum(square(y)))), 1e-7, std::numeric_limits<double>::infinity());
  for (int i = 0; i < iterations; ++i) {
    const Tensor gram = reduced(matmul(y, y, tall, !tall));
    const Tensor polynomial = gram * b + matmul(gram, gram) * c;
    y = y * a + (tall ? matmul(y, polynomial) : matmul(polynomial, y));
  }
  return redistribute(cast(y, x.dtype()), x.layout());
}

Muon::Muon(const std::vector<nn::Parameter>& parameters, const MuonOptions& options)
    : Optimizer(
          parameters,
          [&](const nn::Parameter& p) {
            return by_adamw(options, p) ? Names{"exp_avg", "exp_avg_sq"} : Names{"momentum_buffer"};
          },
          options.lr,
          options.weight_decay,
          options.decay_vectors,
          options.groups),
      options_(options) {
  for (const std::string& pattern : options.adamw) {
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&](const nn::Parameter& p) { return nn::glob_match(pattern, p.path()); }))
      throw UsageError(str("Muon: \"", pattern,
                           "\" in .adamw matches no parameter. Print model.summary() for their "
                           "names."));
  }
}

void Muon::update(const std::vector<Change>& changes) {
  std::vector<kernels::OptimSegment> others;
  std::vector<kernels::OptimSegment> matrices;
  std::vector<Tensor> directions;
  for (const Change& change : changes) {
    kernels::OptimSegment segment = segment_of(change);
    if (by_adamw(options_, *change.parameter)) {
      others.push_back(segment);
      continue;
    }
    if (change.value.numel() == 0) continue;
    const kernels::OptimSegment mean = {
        .parameter = segment.first, .gradient = segment.gradient, .first = {}, .second = {}};
    kernels::ema_step({&mean, 1}, options_.momentum);
    const Tensor& m = change.slots[0];
    const Tensor d =
        options_.nesterov ? change.gradient * (1.0 - options_.momentum) + m * options_.momentum : m;
    const auto rows = static_cast<double>(d.size(0));
    const double columns = static_cast<double>(d.numel()) / rows;
    const double scale = options_.scale == MuonScale::kAdamW
                             ? 0.2 * std::sqrt(std::max(rows, columns))
                             : std::sqrt(std::max(1.0, rows / columns));
    directions.push_back(dense(orthogonal(d, options_.iterations) * scale));
    segment.gradient = directions.back().local();
    segment.first = {};
    matrices.push_back(segment);
  }
  kernels::adamw_step(
      others,
      {.beta1 = options_.beta1, .beta2 = options_.beta2, .eps = options_.eps, .step = steps()});
  kernels::sgd_step(matrices, 0.0, false);
}

}  // namespace tessera::optim
