// ranks: 1 2 3 4
// Ops registered from outside the library go through the same test as those inside.
#include "support/autograd/pairs.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

bool splits(const Layout& layout, int dim) { return layout.is_split(dim); }

OP_TEST("all pairs, by a ring") {
  OpCase c = {.inputs = {uniform({3, 4, 2}), uniform({4, 3, 2}), uniform({4, 3, 3})},
              .f = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                return {all_pairs(in[0], in[1], in[2])};
              },
              .reference = [](const std::vector<DenseArray>& in) -> std::vector<DenseArray> {
                return {all_pairs_reference(in[0], in[1], in[2])};
              },
              .linear = {{2}}};
  c.unsupported = [](const std::vector<Layout>& in) {
    return splits(in[0], 2) || splits(in[1], 2) || splits(in[2], 2);
  };
  // On a 2-D mesh, inputs that split one dimension over different axes do not go together.
  c.may_throw = [](const std::vector<Layout>& in) { return in[0].mesh().axis_count() > 1; };
  return c;
}

}  // namespace
}  // namespace tessera::test
