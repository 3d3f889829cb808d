#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera {

/// What an event of a profile was.
enum class ProfileKind : std::uint8_t {
  kPhase,     ///< a part of the program: forward, optimizer (ProfilePhase)
  kOp,        ///< an op, with all that happens inside: redistribution, halo exchange, computation
  kTransfer,  ///< a communication call, from its start until it was seen to be done
  kWait       ///< time in which this process did nothing but wait for a call
};

/// Something that this process did while a Profile recorded. Times are in seconds since it began.
struct ProfileEvent {
  ProfileKind kind = ProfileKind::kPhase;
  const char* name = "";  ///< a literal: phase, op, or kind of call
  double start = 0.0;
  double seconds = 0.0;
  double cpu_seconds = 0.0;     ///< kWait: processor time spent waiting
  double flops = 0.0;           ///< kOp: OpDef::cost; 0 where the op only moves memory
  std::int64_t bytes = 0;       ///< kOp: read and written by this rank; kTransfer: sent
  std::int64_t live_bytes = 0;  ///< kOp: of the memory pool when it ended
  std::uint64_t sequence = 0;   ///< kTransfer, kWait: number of the call on this process
  std::uint32_t layer = 0;      ///< text: path of the layer that called the op
  std::uint32_t detail = 0;     ///< text: layouts of an op; what a call is for
  std::uint32_t first_peer = 0;
  std::uint32_t peer_count = 0;
};

/// A process that a transfer concerned, and the bytes that went there and came from there. In a
/// reduction, which is one sum over all, the members have no bytes of their own.
struct ProfilePeer {
  int process = 0;
  std::int64_t bytes = 0;
};

/// A record of what this process does, from start() to stop(). One at a time; used by the thread
/// that calls Tessera. Without one, an op costs a branch more, and so does a communication call.
class Profile {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Scope : std::uint8_t { kCommunication, kEverything };

  explicit Profile(Scope scope = Scope::kEverything);
  ~Profile();
  Profile(const Profile&) = delete;

  /// Records from now on; the first start is time 0. Throws UsageError while another one records.
  void start();
  void stop();

  bool records_ops() const { return scope_ == Scope::kEverything; }
  /// Seconds since the first start().
  double seconds(Clock::time_point at) const {
    return std::chrono::duration<double>(at - origin_).count();
  }
  void add(const ProfileEvent& event) { events_.push_back(event); }
  void add_peer(ProfilePeer peer) { peers_.push_back(peer); }
  /// Number of a text; the same texts have the same number, 0 is the empty one.
  std::uint32_t text(std::string_view text);
  /// The text that `make` returns, made once per `key`.
  std::uint32_t text(std::uint64_t key, const std::function<std::string()>& make);

  const std::vector<ProfileEvent>& events() const { return events_; }
  const std::vector<ProfilePeer>& peers() const { return peers_; }
  const std::string& text_of(std::uint32_t number) const { return texts_[number]; }

 private:
  Scope scope_;
  bool started_ = false;
  Clock::time_point origin_;
  std::vector<ProfileEvent> events_;
  std::vector<ProfilePeer> peers_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_key_;
};

namespace detail {
inline Profile* active_profile = nullptr;
}

/// The profile that records now, or null.
inline Profile* profile() { return detail::active_profile; }

/// Processor time of this process, in seconds.
double process_cpu_seconds();

/// Names what happens during its life, where a profile records. `name` is a literal.
class ProfilePhase {
 public:
  explicit ProfilePhase(const char* name) : name_(name), start_(Profile::Clock::now()) {}
  ~ProfilePhase() {
    if (profile() == nullptr) return;
    const double start = profile()->seconds(start_);
    if (start < 0.0) return;  // it began before the profile
    profile()->add({.kind = ProfileKind::kPhase,
                    .name = name_,
                    .start = start,
                    .seconds = profile()->seconds(Profile::Clock::now()) - start});
  }
  ProfilePhase(const ProfilePhase&) = delete;

 private:
  const char* name_;
  Profile::Clock::time_point start_;
};

}  // namespace tessera
