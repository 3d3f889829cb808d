#pragma once

#include <cstddef>

namespace tessera {

/// Memory for small short-lived objects (tensor handles, tape nodes): free blocks of one size are
/// kept in a list per thread, so that taking one costs a few instructions. The lists hold what was
/// in use at most at one time. Under address sanitizer this is plain operator new.
void* take_object(std::size_t bytes);
void give_object(void* block, std::size_t bytes);

/// Base of classes whose objects come from the cache.
struct CachedObject {
  static void* operator new(std::size_t bytes) { return take_object(bytes); }
  static void operator delete(void* block, std::size_t bytes) { give_object(block, bytes); }
};

}  // namespace tessera
