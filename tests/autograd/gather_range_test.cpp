// ranks: none
// An index out of range that one process alone can see.
#include <catch2/catch.hpp>
#include <cstdio>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/parallel/runtime.hpp>

#include "support/dense.hpp"
#include "support/run_job.hpp"

namespace tessera::test {

TEST_CASE("job: a wrong index on process 1", "[.]") {
  std::exit(Runtime::guard([] {
    const Mesh mesh = Mesh::world({{"x", process().count}});
    const Tensor rows = Tensor::full(Layout::replicated(mesh, {10, 3}), 1.0);
    DenseArray index({6}, 4.0);
    index.values[5] = 99.0;
    const Layout split = Placement(mesh).shard(0, {"x"}).resolve({6}, {});
    const Tensor y = gather(rows, to_tensor(index, split, DType::kInt64));
    sum(y).item();
    std::printf("process %d went on\n", process().rank);
  }));
}

TEST_CASE("an index out of range on one process ends the job with its name") {
  const Outcome job = run_job(2, "a wrong index on process 1");
  INFO(job.text);
  CHECK(job.code == 70);
  CHECK(job.says("  process 1 of 2: gather: index 99 is outside the 10 rows."));
  CHECK(!job.says("went on"));
}

}  // namespace tessera::test
