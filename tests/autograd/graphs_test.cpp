// ranks: 1 2 3 4
// deep: 1 4
// Random graphs of ops, layouts changed in between: whatever comes together in a value or in its
// gradient, the answer is that of one rank.
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "support/autograd/stencil.hpp"

namespace tessera::test {
namespace {

const Shape kShape{3, 5, 4};

struct Instruction {
  int op;
  std::size_t a, b;  // operands, counted back from the newest value
  int dim;
  std::uint64_t seed;
};

/// Any layout of the mesh of x, the same in every run of the program.
Tensor moved(const Tensor& x, std::uint64_t seed) {
  Rng rng(seed);
  return redistribute(x, draw_layout(x.mesh(), x.shape(), rng));
}

Tensor apply(const Instruction& i,
             const Tensor& a,
             const Tensor& b,
             const std::vector<Tensor>& in) {
  const int d = i.dim;
  const Dims swap = d == 0 ? Dims{1, 0, 2} : d == 1 ? Dims{0, 2, 1} : Dims{2, 1, 0};
  switch (i.op) {
    case 0:
      return a + b;
    case 1:
      return tanh(a) * b;
    case 2:
      return tanh(a + in[1]);
    case 3:
      return stencil(a, {.edge = d}) * 0.3;
    case 4:
      return a - mean(a, {d}, true);
    case 5:
      return expand(sum(a * b, {d}, true), kShape) * 0.2;
    case 6:
      return linear(a, in[2]);
    case 7:
      return permute(sin(permute(a, swap)), swap);
    case 8:
      return concat({slice(a, d, 1, kShape[d]), slice(b, d, 0, 1)}, d);
    case 9:
      return reshape(tanh(reshape(a, {kShape[0], kShape[1], 2, 2})), kShape);
    case 10:
      return affine(a, -0.5, 0.25);
    default:
      return moved(a, i.seed);
  }
}

RANDOM_OP_TEST("random graphs") {
  std::vector<Instruction> program;
  const std::int64_t length = rng.integer(3, 9);
  for (std::int64_t k = 0; k < length; ++k) {
    program.push_back({static_cast<int>(rng.integer(0, 13)),
                       static_cast<std::size_t>(rng.integer(0, 2)),
                       static_cast<std::size_t>(rng.integer(0, 3)),
                       static_cast<int>(rng.integer(0, 2)), rng.bits()});
  }
  InputSpec weight = uniform({4, 4});
  weight.cuttable = {};  // an activation and a weight split over one axis is an error by rule
  return {.inputs = {uniform(kShape), uniform({5, 4}), weight},
          .f = [program](const std::vector<Tensor>& in) -> std::vector<Tensor> {
            std::vector<Tensor> values = {in[0], linear(in[0], in[2]) + in[1]};
            const auto back = [&](std::size_t k) {
              return values[values.size() - 1 - std::min(k, values.size() - 1)];
            };
            for (const Instruction& i : program)
              values.push_back(apply(i, back(i.a), back(i.b), in));
            return {values.back() + back(2), sum(square(back(1)), {1}), values[1]};
          },
          .may_throw = [](const std::vector<Layout>&) { return true; },
          .bf16_tolerance = 0.0};
}

}  // namespace
}  // namespace tessera::test
