#pragma once

#include <memory>

namespace tessera::test {

/// Starts what the tests run in (messages, devices, threads); it ends with the last copy of the
/// result.
std::shared_ptr<void> start_runtime(int argc, char** argv);

}  // namespace tessera::test
