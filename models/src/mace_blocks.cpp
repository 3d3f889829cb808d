#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/mace_blocks.hpp>

#include "mace_radial.hpp"

namespace tessera::models {
namespace {

/// sqrt(1 / E[silu(z)^2]), z ~ N(0, 1), as estimated in the published code (e3nn, a million draws
/// of seed 0): trained weights rely on these digits.
constexpr double kSiluScale = 1.6791767923989418;

Tensor scaled_silu(const Tensor& x) { return kSiluScale * silu(x); }

double root(std::int64_t n) { return std::sqrt(static_cast<double>(n)); }

std::int64_t elements_of(const MaceOptions& o) {
  return static_cast<std::int64_t>(o.elements.size());
}
int last_l(const MaceOptions& o, int layer) { return layer == o.layers - 1 ? 0 : o.max_L; }
int first_l(const MaceOptions& o, int layer) { return layer == 0 ? 0 : o.max_L; }

nn::Parameter normal(const Shape& shape, const Mesh& mesh, DType dtype, double deviation = 1.0) {
  return {shape, nn::init::normal(0.0, deviation), mesh, dtype};
}

// The constant of each silu goes into the next weights: values of edges are kept for backward.
Tensor radial_layers(const std::vector<nn::Parameter>& weights, Tensor y, bool fp64) {
  double scale = 1.0;
  for (const nn::Parameter& w : weights) {
    const Tensor read = fp64 ? cast(w(), DType::kFloat64) : w();
    y = silu(tessera::linear(y, read * (scale / root(w.shape()[1]))));
    scale = kSiluScale;
  }
  return y;
}

}  // namespace

MaceEmbedding::MaceEmbedding(const MaceOptions& o, const Mesh& mesh, DType dtype)
    : weight(normal({elements_of(o), o.channels}, mesh, dtype)) {}

Tensor MaceEmbedding::table() const {
  const std::int64_t elements = weight.shape()[0];
  return reshape(weight() / root(elements), {elements, 1, weight.shape()[1]});
}

std::string MaceEmbedding::describe() const {
  return fmt::format("{} elements -> {}", weight.shape()[0], weight.shape()[1]);
}

MaceRadial::MaceRadial(const MaceOptions& o, const Mesh& mesh, DType dtype) {
  std::int64_t in = o.radial_basis;
  for (const std::int64_t out : o.radial_mlp) {
    weights.push_back(normal({out, in}, mesh, dtype));
    in = out;
  }
}

Tensor MaceRadial::forward(const Tensor& x) const { return radial_layers(weights, x, false); }

Tensor MaceRadial::forward_fp64(const Tensor& x) const { return radial_layers(weights, x, true); }

double MaceRadial::scale() const { return weights.empty() ? 1.0 : kSiluScale; }

std::string MaceRadial::describe() const {
  std::string sizes = weights.empty() ? "" : str(weights[0].shape()[1]);
  for (const nn::Parameter& w : weights) sizes += str(" -> ", w.shape()[0]);
  return "Radial network " + sizes;
}

MaceInteraction::MaceInteraction(const MaceOptions& o, int layer, const Mesh& mesh, DType dtype)
    : linear_up(normal({first_l(o, layer) + 1, o.channels, o.channels}, mesh, dtype)),
      radial(o, mesh, dtype),
      paths_{.l_in = first_l(o, layer), .l_edge = o.max_ell, .l_out = o.max_ell},
      agnostic_(layer == 0 && o.first_block == MaceOptions::FirstBlock::kAgnostic),
      neighbours_(o.avg_num_neighbors),
      elements_(elements_of(o)),
      r_max_(o.r_max),
      cutoff_power_(o.cutoff_power) {
  const kernels::TensorPaths& paths =
      kernels::tensor_paths(first_l(o, layer), o.max_ell, o.max_ell);
  const std::int64_t hidden = o.radial_mlp.empty() ? o.radial_basis : o.radial_mlp.back();
  path_weights = normal({hidden, paths.count() * o.channels}, mesh, dtype);
  linear = normal({paths.count(), o.channels, o.channels}, mesh, dtype);
  const int skip_l = agnostic_ ? o.max_ell : std::min(first_l(o, layer), last_l(o, layer));
  skip = normal({skip_l + 1, elements_, o.channels, o.channels}, mesh, dtype);
  skipped_rows_ = kernels::irreps_rows(last_l(o, layer)) - kernels::irreps_rows(skip_l);
  if (o.density) density = normal({1, o.radial_basis}, mesh, dtype);

  const Layout each = Layout::replicated(mesh, {paths.count(), 1, 1});
  path_scale_ = Tensor::from_function(
      each,
      [&](const Index& i) {
        const int l = paths.paths[static_cast<std::size_t>(i[0])].l3;
        return 1.0 / root(o.channels * paths.into(l));
      },
      dtype);

  if (o.radial_intervals == 0) return;
  // Slopes by differences of fourth order over a tenth of an interval: far below the error of the
  // spline. The last knot is the cutoff, where functions end with slope 0; the first is moved off
  // r = 0.
  const std::int64_t intervals = o.radial_intervals;
  const double spacing = o.r_max / static_cast<double>(intervals);
  const double step = 0.1 * spacing;
  knots_ = Tensor::from_function(
      Layout::replicated(mesh, {5 * (intervals + 1)}),
      [&](const Index& i) {
        const double knot = std::max(static_cast<double>(i[0] / 5), 0.5) * spacing;
        return knot + step * static_cast<double>(i[0] % 5 - 2);
      },
      DType::kFloat64);
  stencil_ = Tensor::from_function(
      Layout::replicated(mesh, {intervals + 1, 2, 5}),
      [&](const Index& i) {
        constexpr double kSlope[5] = {1.0, -8.0, 0.0, 8.0, -1.0};
        if (i[0] == intervals) return 0.0;
        if (i[1] == 0) return i[2] == 2 ? 1.0 : 0.0;
        return kSlope[i[2]] / 12.0 * spacing / step;
      },
      DType::kFloat64);
}

Tensor MaceInteraction::radial_table() const {
  const std::int64_t points = knots_.shape()[0];
  const std::int64_t basis =
      radial.weights.empty() ? path_weights.shape()[0] : radial.weights[0].shape()[1];
  const Tensor x = bessel(knots_, basis, r_max_) *
                   reshape(polynomial_envelope(knots_ / r_max_, cutoff_power_), {points, 1});
  // The last layer is linear, so differences are taken before it, where rows are short.
  const std::int64_t hidden = path_weights.shape()[0];
  const Tensor values = reshape(radial.forward_fp64(x), {points / 5, 5, hidden});
  const Tensor knots = reshape(matmul(stencil_, values), {2 * points / 5, hidden});
  const Tensor weight = cast(path_weights(), DType::kFloat64) * (radial.scale() / root(hidden));
  return cast(matmul(knots, weight), path_weights().dtype());
}

void MaceInteraction::fields(nn::Fields& f) {
  f("linear_up", linear_up);
  f("radial", radial);
  f("path_weights", path_weights);
  f("linear", linear);
  f("skip", skip);
  f("density", density);
}

std::string MaceInteraction::describe() const {
  return fmt::format("Interaction {}, {} paths to l = {}, {} channels",
                     agnostic_ ? "agnostic" : "residual", linear.shape()[0], paths_.l_out,
                     linear.shape()[1]);
}

Tensor MaceInteraction::messages(const GhostRowsInFlight& rows,
                                 const MaceEdges& edges,
                                 const nn::Graph& graph) const {
  const std::int64_t hidden = path_weights.shape()[0];
  const bool tables = edges.spline.defined();
  const Tensor functions = tables ? edges.spline : radial(edges.radial);
  const Tensor coefficients =
      tables ? radial_table() : path_weights() * (radial.scale() / root(hidden));
  const Tensor summed =
      equivariant_convolution(rows, edges.harmonics, functions, coefficients, graph.senders,
                              graph.receivers, paths_, graph.nodes(), edges.interval);
  Tensor weight = linear() * path_scale_;
  if (!density.defined()) return path_linear(summed, weight / neighbours_, paths_);
  const Tensor mixed = path_linear(summed, weight, paths_);
  const Tensor of_edge =
      tanh(square(tessera::linear(edges.radial, density() / root(density.shape()[1]))));
  const Tensor around = nn::sum_edges(of_edge, graph) + 1.0;
  return mixed / reshape(around, {graph.node_count(), 1, 1});
}

MaceInteraction::Result MaceInteraction::first(const Tensor& table,
                                               const Tensor& node_elements,
                                               const Tensor& row_elements,
                                               const MaceEdges& edges,
                                               const nn::Graph& graph) const {
  const LayerScope scope(scope_name());
  const std::int64_t channels = linear.shape()[1];
  const Tensor up = irreps_linear(table, linear_up() / root(channels));
  Result result;
  result.messages = messages(gather(up, row_elements), edges, graph);
  const Tensor weight = skip() / root(channels * elements_);
  if (agnostic_) {
    result.messages = irreps_linear(result.messages, weight, node_elements);
    return result;
  }
  // Nodes of one element are alike: the product is taken once for each.
  const Tensor all = Tensor::from_function(
      Layout::replicated(table.mesh(), {elements_}),
      [](const Index& i) { return static_cast<double>(i[0]); }, DType::kInt64);
  result.skip = gather(irreps_linear(table, weight, all), node_elements);
  if (skipped_rows_ > 0) result.skip = pad(result.skip, {0, 0, 0}, {0, skipped_rows_, 0});
  return result;
}

MaceInteraction::Result MaceInteraction::next(const Tensor& features,
                                              const Tensor& node_elements,
                                              const MaceEdges& edges,
                                              const nn::Graph& graph) const {
  const LayerScope scope(scope_name());
  const std::int64_t channels = linear.shape()[1];
  const Tensor up = irreps_linear(features, linear_up() / root(channels));
  const GhostRowsInFlight rows = nn::start_node_rows(up, graph);
  Result result;
  result.skip = irreps_linear(features, skip() / root(channels * elements_), node_elements);
  result.messages = messages(rows, edges, graph);
  return result;
}

MaceProduct::MaceProduct(const MaceOptions& o, int layer, const Mesh& mesh, DType dtype)
    : linear(normal({last_l(o, layer) + 1, o.channels, o.channels}, mesh, dtype)),
      spec_{.lmax = o.max_ell,
            .l_out = last_l(o, layer),
            .correlation = o.correlation,
            .basis = o.couplings} {
  for (const kernels::ContractionBlock& b :
       kernels::contraction_blocks(o.max_ell, last_l(o, layer), o.correlation, o.couplings)) {
    weights.push_back(normal({elements_of(o), b.count, o.channels}, mesh, dtype,
                             1.0 / static_cast<double>(std::max<std::int64_t>(b.count, 1))));
  }
}

void MaceProduct::fields(nn::Fields& f) {
  f("weights", weights);
  f("linear", linear);
}

std::string MaceProduct::describe() const {
  return fmt::format("Products of {} messages to l = {}", spec_.correlation, spec_.l_out);
}

Tensor MaceProduct::operator()(const Tensor& messages,
                               const Tensor& skip,
                               const Tensor& elements) const {
  const LayerScope scope(scope_name());
  std::vector<Tensor> blocks;
  for (const nn::Parameter& w : weights) blocks.push_back(w());
  const Tensor products = symmetric_contraction(
      messages, blocks.size() == 1 ? blocks[0] : concat(blocks, 1), elements, spec_);
  const Tensor mixed = irreps_linear(products, linear() / root(linear.shape()[1]));
  return skip.defined() ? mixed + skip : mixed;
}

MaceReadout::MaceReadout(const MaceOptions& o, int layer, const Mesh& mesh, DType dtype) {
  std::int64_t in = o.channels;
  if (layer == o.layers - 1) {
    hidden = normal({o.readout, in}, mesh, dtype);
    in = o.readout;
  }
  linear = normal({1, in}, mesh, dtype);
}

void MaceReadout::fields(nn::Fields& f) {
  f("hidden", hidden);
  f("linear", linear);
}

std::string MaceReadout::describe() const {
  return hidden.defined() ? fmt::format("Readout, {} hidden", hidden.shape()[0]) : "Readout";
}

Tensor MaceReadout::operator()(const Tensor& features) const {
  const LayerScope scope(scope_name());
  Tensor x = slice(features, 1, 0, 1);
  if (hidden.defined()) x = scaled_silu(tessera::linear(x, hidden() / root(hidden.shape()[1])));
  x = tessera::linear(x, linear() / root(linear.shape()[1]));
  return reshape(x, {features.size(0)});
}

}  // namespace tessera::models
