// ranks: none
// An index out of range that one process alone can see.
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/parallel/runtime.hpp>

#include "support/dense.hpp"

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
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      str(TESSERA_MPIEXEC, " -n 2 '", self, "' 'job: a wrong index on process 1' 2>&1");
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> block;
  while (const std::size_t n = fread(block.data(), 1, block.size(), pipe)) {
    text.append(block.data(), n);
  }
  const int status = pclose(pipe);
  INFO(text);
  CHECK(WEXITSTATUS(status) == 70);
  CHECK(text.find("  process 1 of 2: gather: index 99 is outside the 10 rows.") !=
        std::string::npos);
  CHECK(text.find("went on") == std::string::npos);
}

}  // namespace tessera::test
