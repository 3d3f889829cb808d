#include <fmt/format.h>

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/mlp.hpp>
#include <tessera/nn/tensor_parallel.hpp>

namespace tessera::nn {
namespace {

MlpOptions complete(MlpOptions o) {
  if (o.hidden == 0) o.hidden = 4 * o.channels;
  if (o.out == 0) o.out = o.channels;
  return o;
}

}  // namespace

Mlp::Mlp(const MlpOptions& options, const Mesh& mesh, DType dtype)
    : fc1({.in = options.channels, .out = complete(options).hidden}, mesh, dtype),
      fc2({.in = complete(options).hidden, .out = complete(options).out}, mesh, dtype),
      activation_(options.activation),
      dropout_(options.dropout) {
  if (options.gated)
    gate.emplace(LinearOptions{.in = options.channels, .out = complete(options).hidden}, mesh,
                 dtype);
}

void Mlp::fields(Fields& f) {
  f("fc1", fc1);
  f("gate", gate);
  f("dropout", dropout_);
  f("fc2", fc2);
}

Tensor Mlp::forward(const Tensor& x) const {
  const Tensor in = gathered_for(x, fc1.weight);
  const Tensor h =
      gate ? activate((*gate)(in), activation_) * fc1(in) : activate(fc1(in), activation_);
  return returned_to(fc2(dropout_(h)), x);
}

std::string Mlp::describe() const {
  return fmt::format("Mlp {}{}", name(activation_), gate ? ", gated" : "");
}

}  // namespace tessera::nn
