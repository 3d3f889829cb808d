// ranks: 1 2 3 4
#include <tessera/models/transolver.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::Transolver;
using models::TransolverOptions;

TransolverOptions small() {
  return {.in_channels = 3,
          .out_channels = 2,
          .channels = 12,
          .depth = 2,
          .heads = 3,
          .slices = 5,
          .dropout = 0.1};
}

}  // namespace

TEST_CASE("transolver: any mesh gives one answer") {
  check_cuts<Transolver>(small(), {2, 19, 3}, 1);
  check_cuts<Transolver>(small(), {1, 3, 3}, 1);  // fewer points than ranks
}

TEST_CASE("transolver: training is the same on any mesh") {
  check_training<Transolver>(small(), {2, 29, 3}, 1, 6, 1e-3);
}

TEST_CASE("transolver in bf16, with and without recomputation") {
  check_narrow<Transolver>(small(), {2, 40, 3});
}

TEST_CASE("transolver refuses what it cannot do") {
  TransolverOptions o = small();
  const Transolver model(o, Mesh::self());
  CHECK(model.total_stride() == 1);
  CHECK_THROWS_AS(model(Tensor::zeros(Layout::replicated(Mesh::self(), {1, 5, 2}))), ShapeError);
  CHECK_THROWS_AS(model(Tensor::zeros(Layout::replicated(Mesh::self(), {1, 5, 2, 3}))), ShapeError);
  o.heads = 5;
  CHECK_THROWS_AS(Transolver(o, Mesh::self()), UsageError);
  o = small();
  o.depth = 0;
  CHECK_THROWS_AS(Transolver(o, Mesh::self()), UsageError);
}

}  // namespace tessera::test
