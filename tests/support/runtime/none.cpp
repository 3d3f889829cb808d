#include "support/runtime.hpp"

namespace tessera::test {

std::shared_ptr<void> start_runtime(int, char**) { return nullptr; }

}  // namespace tessera::test
