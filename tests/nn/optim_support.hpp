#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/module.hpp>
#include <tessera/nn/optim.hpp>

#include "support/op_test.hpp"

namespace tessera::test {

inline Mesh line() { return Mesh::world({{"x", process().count}}); }

/// Three parameters, one of them split at rest; loss = sum of c (p - t)^4.
struct Toy : nn::Module {
  nn::Parameter a, b, c;
  explicit Toy(const Mesh& mesh, DType dtype = DType::kFloat64)
      : a({5, 3}, nn::init::normal(0, 1), mesh, dtype),
        b({7}, nn::init::normal(0, 1), mesh, dtype),
        c({2, 4, 3}, nn::init::normal(0, 1), mesh, dtype) {
    nn::initialize(*this, 1);
    nn::place(*this, {{"a", {.rest = Placement(mesh).shard(0, {"x"})}}});
  }
  void fields(nn::Fields& f) override {
    f("a", a);
    f("b", b);
    f("c", c);
  }
  Tensor loss() {
    Tensor total;
    double scale = 0.5;
    for (const nn::Parameter& p : parameters()) {
      const Tensor part = sum(square(square(p() - 0.3))) * scale;
      total = total.defined() ? total + part : part;
      scale += 0.25;
    }
    return total;
  }
};

struct Reference {
  std::vector<DenseArray> p;
  explicit Reference(Toy& toy) {
    for (const nn::Parameter& q : toy.parameters()) p.push_back(to_dense(q.value()));
  }
  static double gradient(std::size_t which, double v) {
    return (0.5 + 0.25 * static_cast<double>(which)) * 4 * std::pow(v - 0.3, 3);
  }
  void check(Toy& toy, double tolerance = 1e-12) const {
    const auto now = toy.parameters();
    for (std::size_t i = 0; i < p.size(); ++i) {
      CHECK(compare(now[i].path(), now[i].value(), p[i], tolerance) == "");
    }
  }
};

inline void train(Toy& toy, optim::Optimizer& optimizer) {
  backward(toy.loss());
  optimizer.step();
  for (const nn::Parameter& p : toy.parameters()) CHECK_FALSE(gradient(p.value()).defined());
}

}  // namespace tessera::test
