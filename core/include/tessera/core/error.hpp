#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tessera {

/// Concatenates its arguments as text; the way all messages of the project are built.
template <class... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

/// Base of every error that Tessera throws. Messages read `op: problem (why). what to do`.
///
/// Errors that follow from global metadata (shapes, layouts, dtypes) are thrown on every rank
/// alike, before anything is sent, and leave all state unchanged.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sizes that do not fit each other.
class ShapeError : public Error {
  using Error::Error;
};
/// A decomposition that the op does not support, or one that does not describe the tensor.
class LayoutError : public Error {
  using Error::Error;
};
/// An element type that the op does not support, or a mix of them.
class DTypeError : public Error {
  using Error::Error;
};
/// A device that is absent or does not match.
class DeviceError : public Error {
  using Error::Error;
};
/// Memory ran out, or its limit was reached.
class OutOfMemory : public Error {
  using Error::Error;
};
/// Another rank failed, does not answer, or does something else.
class CommError : public Error {
  using Error::Error;
};
/// A file that cannot be read or written, or does not hold what it should.
class IoError : public Error {
  using Error::Error;
};
/// A wrong option, argument or order of calls.
class UsageError : public Error {
  using Error::Error;
};
/// Meaningful, but not implemented.
class NotSupported : public Error {
  using Error::Error;
};

}  // namespace tessera
