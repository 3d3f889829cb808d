#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tessera/core/mesh.hpp>
#include <vector>

#include "affinity.hpp"

// The only door to MPI: plain types outside, mpi.h in mpi.cpp. Nothing here blocks except start()
// and stop().
namespace tessera::parallel::mpi {

/// An MPI_Request of MPICH.
using Handle = int;
inline constexpr Handle kNone = 0x2c000000;

/// Separate communicators, so that messages of different use never match.
enum class Channel : std::uint8_t { kInternal, kUser, kCheck };
inline constexpr int kChannels = 3;
inline constexpr int kMaxTag = (1 << 27) - 1;

/// A short message of the failure protocol.
struct Control {
  enum Type : std::int32_t { kFail, kQuery, kStatus } type = kFail;
  std::int32_t origin = 0;
  std::int32_t code = 0;  ///< exit code of a failure
  std::array<char, 812> text{};
  std::array<char, 200> place{};  ///< what the process did when it failed

  void set_text(std::string_view what);
  void set_place(std::string_view what);
};

struct Started {
  Process process;
  LocalJob local;
  bool owned = false;
};

/// Initialises MPI, or adopts it. Throws CommError when the library is not MPICH or was built for
/// other limits.
Started start(int* argc, char*** argv);
/// Finalises it when it was ours. All messages must be done.
void stop();
bool active();
std::string version();

Handle isend(const void* data, std::int64_t bytes, int peer, int tag, Channel channel);
Handle irecv(void* data, std::int64_t bytes, int peer, int tag, Channel channel);

struct Completion {
  int index;
  std::int64_t bytes;  ///< received; -1 where MPI reported an error
};
/// Appends what has finished; their handles become kNone.
void test_some(std::span<Handle> handles, std::vector<Completion>& done);

/// A message that has come and that no receive here asks for.
struct Unexpected {
  int source;
  int tag;
  std::int64_t bytes;
};
std::optional<Unexpected> unexpected(Channel channel);

void send_control(int peer, const Control& message);
bool receive_control(Control& message);

[[noreturn]] void abort(int code);

}  // namespace tessera::parallel::mpi
