#pragma once

#include <cstdint>
#include <span>
#include <tessera/core/dtype.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/core/ref.hpp>
#include <tessera/parallel/group.hpp>
#include <tessera/parallel/transport.hpp>
#include <vector>

namespace tessera::parallel {

/// A communication in flight. Nothing that returns one blocks.
///
/// All calls are made by the thread that made the Runtime, in the same program order on all members
/// of a group.
class [[nodiscard]] Request {
 public:
  /// One that is done.
  Request() noexcept;
  Request(Request&&) noexcept;
  /// Waits for the old call first, as the destructor does.
  Request& operator=(Request&& other) noexcept;
  /// Waits, unless the call keeps its buffers itself.
  ~Request();

  /// Makes the call keep `owner` (a Buffer, say) alive until it is done. With all of its buffers
  /// kept, a Request may be dropped: the call then completes in the background.
  Request& keep(Ref<const RefCounted> owner);
  /// Whether it is done; progresses it. Throws CommError when the job has failed.
  bool test();
  /// Returns when it is done. Throws CommError when another process fails meanwhile; past
  /// TESSERA_TIMEOUT seconds (default 300, 0: never) the job ends with a report of the call and of
  /// the processes that have not arrived.
  void wait();
  /// Whether wait() has returned, or the call was done at once.
  bool done() const { return !flight_; }

  struct Flight;

 private:
  friend class Starter;
  explicit Request(Ref<Flight> flight);
  Ref<Flight> flight_;
};

/// Waits for all.
void wait_all(std::span<Request> requests);

/// Sends `bytes` bytes to process `peer`; matched by its irecv with the same tag (0 <= tag <=
/// kMaxTag), in order.
Request isend(const void* data, std::int64_t bytes, int peer, int tag, const CallInfo& info = {});
/// Receives exactly `bytes` bytes; another length is a CommError.
Request irecv(void* data, std::int64_t bytes, int peer, int tag, const CallInfo& info = {});
inline constexpr int kMaxTag = (1 << 19) - 1;

/// Many messages as one call: a halo exchange, a redistribution. The k-th message from A to B in
/// A's list is the k-th one from A in B's list; exchanges in flight at once never mix. Only peers
/// with a message take part.
Request exchange_messages(std::span<const Send> sends,
                          std::span<const Recv> recvs,
                          const CallInfo& info = {});

/// Done when all members have started it.
Request barrier(const Group& group, const CallInfo& info = {});

/// `data` of member `root` (a group rank) to all.
Request broadcast(
    const Group& group, void* data, std::int64_t bytes, int root, const CallInfo& info = {});

/// data[i] = sum (maximum, minimum) over the members, in place.
///
/// Sums are taken in group order, ((x_0 + x_1) + x_2) + ..., so they are the same bits on every
/// member and in every run, whatever the size or the timing; bf16 is summed in fp32 and rounded
/// once. For bool, sum and maximum are "or", minimum is "and". A maximum or minimum with a NaN is a
/// NaN.
Request all_reduce(const Group& group,
                   void* data,
                   std::int64_t count,
                   DType dtype,
                   ReduceOp op = ReduceOp::kSum,
                   const CallInfo& info = {});

/// Member r gets the r-th piece (counts[r] elements) of the reduction of `in` (all pieces in a
/// row); same order of sums.
Request reduce_scatter(const Group& group,
                       const void* in,
                       void* out,
                       std::span<const std::int64_t> counts,
                       DType dtype,
                       ReduceOp op = ReduceOp::kSum,
                       const CallInfo& info = {});

/// out = the members' pieces in group order; member r gives bytes[r]. `in` may be its place in
/// `out`.
Request all_gather(const Group& group,
                   const void* in,
                   void* out,
                   std::span<const std::int64_t> bytes,
                   const CallInfo& info = {});
/// Every member gives the same number of bytes.
Request all_gather(const Group& group,
                   const void* in,
                   void* out,
                   std::int64_t bytes_each,
                   const CallInfo& info = {});

/// Piece r of `in` (in_bytes[r]) goes to member r; piece r of `out` (out_bytes[r]) comes from it.
Request all_to_all(const Group& group,
                   const void* in,
                   std::span<const std::int64_t> in_bytes,
                   void* out,
                   std::span<const std::int64_t> out_bytes,
                   const CallInfo& info = {});

/// One number from each member, e.g. sizes that only the data decide; waits.
std::vector<std::int64_t> all_gather_counts(const Group& group,
                                            std::int64_t count,
                                            const CallInfo& info = {});

/// Lets all calls in flight progress; cheap when there are none. Kernels call it (core/threads.hpp)
/// between tiles; threads other than the one that communicates return at once. Never throws.
void poll();

/// Calls started and not done.
std::int64_t outstanding();

/// Sets the limit of the watchdog in place of TESSERA_TIMEOUT; 0: wait for ever.
void set_comm_timeout(double seconds);
/// Switches the check mode in place of TESSERA_CHECKS=collective: before each collective and
/// exchange its members compare operation, number, element type, sizes and root, and where they
/// differ every one throws CommError.
void set_collective_checks(bool on);

}  // namespace tessera::parallel
