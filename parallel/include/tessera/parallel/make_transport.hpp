#pragma once

#include <memory>
#include <tessera/parallel/transport.hpp>

namespace tessera::parallel {

/// A new transport for host memory, of the kind that is in place from the start. One that has
/// carried calls between processes must not be replaced by another while those processes go on.
std::unique_ptr<Transport> make_host_transport();

}  // namespace tessera::parallel
