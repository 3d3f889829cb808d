#pragma once

#include <tessera/core/view.hpp>

/// Sums and extrema over dimensions. Sums of floating types are taken in double over fixed blocks
/// that are added in order: the result is the same for any number of threads.
namespace tessera::kernels {

enum class ReduceKind : std::uint8_t {
  kSum,
  kMax,  ///< NaN wins; the least value of the type when nothing is reduced
  kMin,
  kAll,  ///< on bool
  kAny,  ///< on bool
};
const char* name(ReduceKind kind);

/// y = reduction of x over the dimensions in which y has size 1; both have the same number of
/// dimensions. A sum of floating values may be stored in any floating type, one of integers or bool
/// in any integer type; the other kinds keep the type. Throws ShapeError, DTypeError.
void reduce(ReduceKind kind, const View& x, const View& y);

}  // namespace tessera::kernels
