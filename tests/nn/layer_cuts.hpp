#pragma once

#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/module.hpp>

#include "support/op_test.hpp"

namespace tessera::test {

/// y and the gradients of a random sum of it with respect to x and the parameters.
inline std::vector<Tensor> outcome(nn::Layer& layer, const Tensor& input) {
  nn::initialize(layer, 5);
  const Tensor x = require_grad(input);
  const Tensor y = layer(x);
  backward(sum(y * to_tensor(random_array(y.shape(), 9), y.layout().dual())));
  std::vector<Tensor> all = {y, gradient(x)};
  for (const nn::Parameter& p : layer.parameters()) all.push_back(gradient(p.value()));
  return all;
}

/// Values of the parameter of this path in an initialised model.
inline DenseArray value_of(nn::Module& model, const std::string& path) {
  for (const auto& [name, p] : model.named_parameters())
    if (name == path) return to_dense(p.value());
  throw UsageError("no parameter " + path);
}

/// A layer gives one answer for every cut of its input, of samples and the domain.
template <class Make>
std::vector<DenseArray> check_layer_cuts(const Make& make, const Shape& shape) {
  Rng rng(from_process_0(run_seed()));
  const DenseArray x = random_array(shape, 2);
  auto one = make(Mesh::self());
  std::vector<DenseArray> expected;
  for (const Tensor& t : outcome(one, to_self(x))) expected.push_back(to_dense(t));
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < 4; ++variant) {
      std::vector<int> dims;
      int next = static_cast<int>(rng.integer(0, shape.size() - 2));
      for (int a = 0; a < mesh.axis_count(); ++a) {
        dims.push_back(next);
        next = (next + 1) % (shape.size() - 1);
      }
      const Layout layout = draw_layout(mesh, shape, dims, variant, rng);
      INFO("input " << layout.str());
      auto many = make(mesh);
      const std::vector<Tensor> actual = outcome(many, to_tensor(x, layout));
      for (std::size_t i = 0; i < actual.size(); ++i)
        CHECK(compare(str("tensor ", i), actual[i], expected[i], 1e-11, 1e-3) == "");
    }
  }
  return expected;
}

}  // namespace tessera::test
