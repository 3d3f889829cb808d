#pragma once

#include <functional>
#include <memory>
#include <tessera/parallel/transport.hpp>

namespace tessera::test {

/// While alive, calls that are not the tests' own go through `spoil`: it may replace what a call
/// has put into its buffers, once the call is done.
class FaultyTransport {
 public:
  /// Called with the finished call and with what its `out` buffer held before (all_reduce only).
  using Spoil = std::function<void(const parallel::Call& call, const std::byte* before)>;

  explicit FaultyTransport(Spoil spoil);
  ~FaultyTransport();
  FaultyTransport(const FaultyTransport&) = delete;
  FaultyTransport& operator=(const FaultyTransport&) = delete;

 private:
  class Wrapper;
};

}  // namespace tessera::test
