#pragma once

#include <tessera/core/error.hpp>

namespace tessera::parallel {

/// What calls throw after the job has failed: not a failure of its own.
class RemoteFailure : public CommError {
  using CommError::CommError;
};

}  // namespace tessera::parallel
