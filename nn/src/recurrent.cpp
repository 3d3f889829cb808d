#include <fmt/format.h>

#include <cmath>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/recurrent.hpp>

namespace tessera::nn {
namespace {

/// `state`, or zero in the layout of x.
Tensor or_zero(const Tensor& state, const Tensor& x, std::int64_t hidden) {
  if (state.defined()) return state;
  Layout layout = x.layout().dual();
  layout = layout.with_dim(x.dims() - 1, hidden, {});
  return Tensor::zeros(layout, x.dtype());
}

/// Equal pieces of the last dimension.
std::vector<Tensor> pieces(const Tensor& gates, int count) {
  return split(gates, Dims::filled(count, gates.size(-1) / count), -1);
}

RecurrentState lstm_step(const Tensor& gates, const Tensor& cell) {
  const std::vector<Tensor> g = pieces(gates, 4);  // i, f, g, o
  const Tensor c = sigmoid(g[1]) * cell + sigmoid(g[0]) * tanh(g[2]);
  return {sigmoid(g[3]) * tanh(c), c};
}

}  // namespace

GatedCell::GatedCell(
    const char* name, std::int64_t gates, const RecurrentOptions& o, const Mesh& mesh, DType dtype)
    : name_(name) {
  if (o.in <= 0 || o.hidden <= 0) {
    throw UsageError(str(name, ": ", o.in, " inputs and ", o.hidden,
                         " hidden numbers must be positive. Set .in and .hidden."));
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(o.hidden));
  const Init first = init::uniform(-bound, bound);
  weight_ih = Parameter({gates * o.hidden, o.in}, first, mesh, dtype);
  weight_hh = Parameter({gates * o.hidden, o.hidden}, first, mesh, dtype);
  if (!o.bias) return;
  bias_ih = Parameter({gates * o.hidden}, first, mesh, dtype);
  bias_hh = Parameter({gates * o.hidden}, first, mesh, dtype);
}

void GatedCell::fields(Fields& f) {
  f("weight_ih", weight_ih);
  f("weight_hh", weight_hh);
  f("bias_ih", bias_ih);
  f("bias_hh", bias_hh);
}

std::string GatedCell::describe() const {
  return fmt::format("{} {} -> {}", name_, weight_ih.shape()[1], weight_hh.shape()[1]);
}

LstmCell::LstmCell(const RecurrentOptions& options, const Mesh& mesh, DType dtype)
    : GatedCell("LstmCell", 4, options, mesh, dtype) {}

RecurrentState LstmCell::operator()(const Tensor& input, const RecurrentState& state) const {
  const LayerScope scope(scope_name());
  const Tensor x = computed(input);
  const std::int64_t hidden = weight_hh.shape()[1];
  const Tensor h = computed(or_zero(state.hidden, x, hidden));
  const Tensor c = computed(or_zero(state.cell, x, hidden));
  return lstm_step(linear(x, weight_ih(), bias_ih()) + linear(h, weight_hh(), bias_hh()), c);
}

GruCell::GruCell(const RecurrentOptions& options, const Mesh& mesh, DType dtype)
    : GatedCell("GruCell", 3, options, mesh, dtype) {}

RecurrentState GruCell::operator()(const Tensor& input, const RecurrentState& state) const {
  const LayerScope scope(scope_name());
  const Tensor x = computed(input);
  const Tensor h = computed(or_zero(state.hidden, x, weight_hh.shape()[1]));
  const std::vector<Tensor> gx = pieces(linear(x, weight_ih(), bias_ih()), 3);  // r, z, n
  const std::vector<Tensor> gh = pieces(linear(h, weight_hh(), bias_hh()), 3);
  const Tensor r = sigmoid(gx[0] + gh[0]);
  const Tensor z = sigmoid(gx[1] + gh[1]);
  const Tensor n = tanh(gx[2] + r * gh[2]);
  return {n + z * (h - n), {}};
}

ConvLstmCell::ConvLstmCell(const ConvLstmOptions& options, const Mesh& mesh, DType dtype)
    : gates({.dims = options.dims,
             .in = options.in > 0 && options.hidden > 0 ? options.in + options.hidden : 0,
             .out = 4 * options.hidden,
             .kernel = options.kernel,
             .edges = options.edges,
             .bias = options.bias},
            mesh,
            dtype) {}

void ConvLstmCell::fields(Fields& f) { f("gates", gates); }

RecurrentState ConvLstmCell::operator()(const Tensor& input, const RecurrentState& state) const {
  const LayerScope scope(scope_name());
  const Tensor x = computed(input);
  const std::int64_t hidden = gates.weight.shape()[0] / 4;
  const Tensor h = computed(or_zero(state.hidden, x, hidden));
  const Tensor c = computed(or_zero(state.cell, x, hidden));
  return lstm_step(gates(concat({x, h}, -1)), c);
}

std::string ConvLstmCell::describe() const {
  const Shape& w = gates.weight.shape();
  return fmt::format("ConvLstmCell {} -> {}", w.back() - w[0] / 4, w[0] / 4);
}

Unrolled unroll(const RecurrentCell& cell, const Tensor& x, const RecurrentState& state) {
  if (x.dims() < 3 || x.size(1) == 0) {
    throw ShapeError(
        str("unroll: ", x.shape(),
            " is not [N, T, ..., C] with at least one step. Put time in dimension 1."));
  }
  if (x.layout().is_split(1)) {
    throw LayoutError(
        str("unroll: time, dimension 1 of ", x.layout(),
            ", is split (a step needs the one before). Split samples or the domain."));
  }
  const std::int64_t steps = x.size(1);
  Unrolled result{.output = {}, .state = state};
  std::vector<Tensor> outputs;
  for (std::int64_t t = 0; t < steps; ++t) {
    Shape now = x.shape();
    now.erase(1);
    result.state = cell(reshape(slice(x, 1, t, t + 1), now), result.state);
    Shape shape = result.state.hidden.shape();
    shape.insert(1, 1);
    outputs.push_back(reshape(result.state.hidden, shape));
  }
  result.output = concat(outputs, 1);
  return result;
}

Tensor Recurrent::forward(const Tensor& x) const {
  const Unrolled result = unroll(*cell_, x);
  return last_only_ ? result.state.hidden : result.output;
}

}  // namespace tessera::nn
