#pragma once

#include <tessera/core/error.hpp>
#include <tessera/parallel/failure.hpp>

namespace tessera {

/// A file that can be read, but is damaged or does not hold what is needed.
class DataError : public IoError, public parallel::HasExitCode {
 public:
  using IoError::IoError;
  int exit_code() const override { return 65; }
};

}  // namespace tessera
