#include <tessera/parallel/runtime.hpp>

#include "support/runtime.hpp"

namespace tessera::test {

std::shared_ptr<void> start_runtime(int argc, char** argv) {
  return std::make_shared<Runtime>(argc, argv);
}

}  // namespace tessera::test
