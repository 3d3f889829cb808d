#include "support/autograd/evaluate.hpp"

#include <cmath>
#include <tessera/autograd/autograd.hpp>

namespace tessera::test {

namespace {

DenseArray make_values(const InputSpec& spec, std::uint64_t seed) {
  if (spec.absent) {
    DenseArray none;
    none.absent = true;
    return none;
  }
  DenseArray a = spec.values ? spec.values(spec.shape, seed) : random_array(spec.shape, seed);
  if (a.shape != spec.shape)
    throw ShapeError(str("input made with shape ", a.shape, " instead of ", spec.shape));
  return a;
}

}  // namespace

bool wants_gradient(const InputSpec& spec) { return spec.differentiable && spec.floating(); }

std::vector<DenseArray> make_inputs(const OpCase& c) {
  std::vector<DenseArray> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(make_values(c.inputs[i], c.seed * 1000003 + i));
  }
  return inputs;
}

DenseArray cotangent(const OpCase& c, std::uint64_t purpose, std::size_t i, const Shape& shape) {
  return random_array(shape, (c.seed * 1000003 + i) * 31 + purpose);
}

Results evaluate(const OpCase& c,
                 const std::vector<DenseArray>& values,
                 DType dtype,
                 const MakeTensor& make,
                 const MakeCotangent& make_cotangent,
                 bool second,
                 bool* have_outputs) {
  Results r;
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const InputSpec& spec = c.inputs[i];
    if (spec.absent) {
      inputs.emplace_back();
      continue;
    }
    Tensor x = make(i, values[i], spec.floating() ? dtype : spec.dtype);
    if (c.first && wants_gradient(spec)) {
      x = require_grad(x);
      r.leaves.push_back(x);
    }
    inputs.push_back(x);
  }
  r.outputs = c.f(inputs);
  if (have_outputs != nullptr) *have_outputs = true;
  if (!c.first || r.leaves.empty()) return r;

  std::vector<Tensor> floating;
  for (std::size_t j = 0; j < r.outputs.size(); ++j) {
    const Tensor& y = r.outputs[j];
    if (!is_floating(y.dtype())) continue;
    floating.push_back(y);
    const Tensor t = make_cotangent(cotangent(c, kOfOutput, j, y.shape()), y.layout(), y.dtype());
    r.cotangents.push_back(second ? require_grad(t) : t);
  }
  r.first = grad(floating, r.leaves, {.create_graph = second}, r.cotangents);
  if (!second) return r;

  std::vector<Tensor> sources;
  std::vector<Tensor> directions;
  for (std::size_t i = 0; i < r.first.size(); ++i) {
    const Tensor& g = r.first[i];
    if (!requires_grad(g)) continue;
    sources.push_back(g);
    directions.push_back(
        make_cotangent(cotangent(c, kOfGradient, i, g.shape()), g.layout(), g.dtype()));
  }
  std::vector<Tensor> wanted = r.leaves;
  wanted.insert(wanted.end(), r.cotangents.begin(), r.cotangents.end());
  r.second = grad(sources, wanted, {.allow_unused = true}, directions);
  return r;
}

Results evaluate_on_self(const OpCase& c,
                         const std::vector<DenseArray>& values,
                         DType dtype,
                         bool second) {
  return evaluate(
      c, values, dtype, [](std::size_t, const DenseArray& a, DType t) { return to_self(a, t); },
      [](const DenseArray& a, const Layout&, DType t) { return to_self(a, t); }, second);
}

std::vector<DenseArray> output_cotangents(const OpCase& c, const std::vector<Tensor>& outputs) {
  std::vector<DenseArray> result;
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    if (is_floating(outputs[j].dtype()))
      result.push_back(cotangent(c, kOfOutput, j, outputs[j].shape()));
  }
  return result;
}

std::vector<DenseArray> dense_all(const std::vector<Tensor>& tensors,
                                  const std::vector<Shape>& shapes) {
  std::vector<DenseArray> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    result.push_back(tensors[i].defined() ? to_dense(tensors[i]) : DenseArray(shapes[i]));
  }
  return result;
}

std::vector<Shape> variable_shapes(const Results& r) {
  std::vector<Shape> shapes;
  for (const Tensor& x : r.leaves) shapes.push_back(x.shape());
  for (const Tensor& x : r.cotangents) shapes.push_back(x.shape());
  return shapes;
}

void add_product(const DenseArray& a, const DenseArray& b, double* sum, double* terms) {
  for (std::size_t e = 0; e < a.values.size(); ++e) {
    *sum += a.values[e] * b.values[e];
    *terms += std::abs(a.values[e] * b.values[e]);
  }
}

}  // namespace tessera::test
