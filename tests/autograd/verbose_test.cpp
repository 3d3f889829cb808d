// ranks: 2
// TESSERA_VERBOSE=1: one line per op with layouts, and what was communicated for it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/autograd/stencil.hpp"

namespace tessera::test {
namespace {

/// What is written to stderr while f runs.
std::string errors_of(const std::function<void()>& f) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int saved = dup(2);
  dup2(fileno(file), 2);
  f();
  std::fflush(stderr);
  dup2(saved, 2);
  close(saved);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  REQUIRE(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

TEST_CASE("what an op did, and what moved for it") {
  setenv("TESSERA_VERBOSE", "1", 1);  // read at the first op
  const Mesh mesh = Mesh::world({{"h", 2}});
  const Layout split = Layout::make(mesh, {2, 8, 5}, {{}, {{0}, {}}});
  const Tensor x = to_tensor(random_array({2, 8, 5}, 1), split);
  const std::string text = errors_of([&] {
    const Tensor y = exp(reduced(sum(stencil(x, {}), {1})));
    to_dense(y);
  });
  if (process().rank == 0) {
    CHECK_THAT(text, Catch::Contains("tessera: stencil f64[2, 8/h, 5] -> f64[2, 8/h, 5]") &&
                         Catch::Contains("halo: 1 messages, 80 bytes from rank 0"));
    CHECK_THAT(text, Catch::Contains("tessera: sum f64[2, 8/h, 5] -> f64[2, 5] partial(h)"));
    CHECK_THAT(text, Catch::Contains("redistribute: [2, 5] partial(h) -> [2, 5]"));
    CHECK_THAT(text, Catch::Contains("tessera: exp f64[2, 5] -> f64[2, 5]"));
  } else {
    CHECK(text.empty());
  }
  const std::string inserted = errors_of([&] { exp(sum(x, {1})); });
  if (process().rank == 0) {
    CHECK_THAT(inserted, Catch::Contains("exp: [2, 5] partial(h) -> [2, 5]"));
  }
}

}  // namespace
}  // namespace tessera::test
