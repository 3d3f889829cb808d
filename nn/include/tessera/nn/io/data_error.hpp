#pragma once

#include <tessera/core/error.hpp>

namespace tessera {

/// A file that can be read, but is damaged or does not hold what is needed.
class DataError : public IoError {
  using IoError::IoError;
};

}  // namespace tessera
