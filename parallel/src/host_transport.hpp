#pragma once

#include <deque>
#include <tessera/parallel/transport.hpp>
#include <unordered_map>
#include <vector>

#include "batch.hpp"

namespace tessera::parallel {

/// A message of this process to itself.
struct SelfMessage : public Operation {
  bool advance() override { return matched; }
  std::vector<int> missing() const override;

  bool sends = false;
  bool matched = false;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t bytes = 0;
};

/// What is known of a message that a call here should have received and did not: the processes have
/// made different calls. Empty: there is none, as far as MPI shows.
std::string message_without_receiver();

/// Carries calls on host memory: over MPI messages, or within one process.
///
/// All collectives are made of point-to-point messages in one round (large reductions and
/// broadcasts: two), so that they move on even when this process computes between rare polls, and
/// so that a missing process can be named.
class HostTransport : public Transport {
 public:
  Ref<Operation> start(const Call& call) override;

 private:
  Ref<Operation> point_to_point(const Call& call);
  Ref<Operation> to_self(const Call& call);
  Ref<Operation> exchange(const Call& call);
  /// Tags of this call towards each member. Every pair of processes counts the calls that contain
  /// both, alike on both sides since both run the same program; so the messages of calls in flight
  /// at once never match each other.
  std::vector<int> tags(const Call& call);
  int next_tag(int peer, const Call& call);

  std::unordered_map<int, std::deque<Ref<SelfMessage>>> self_messages_;  // by tag, unmatched
};

/// An operation made of one batch of messages; the base of those with more stages.
class BatchOperation : public Operation {
 public:
  bool advance() override { return batch.test(); }
  std::vector<int> missing() const override { return batch.missing(); }

  Batch batch{mpi::Channel::kInternal};
  std::vector<int> tags;

  void count_sent() {
    messages_ = batch.messages();
    bytes_ = batch.bytes();
  }
};

Ref<Operation> start_broadcast(const Call& call, std::vector<int> tags);
Ref<Operation> start_all_gather(const Call& call, std::vector<int> tags);
Ref<Operation> start_all_to_all(const Call& call, std::vector<int> tags);
Ref<Operation> start_reduction(const Call& call, std::vector<int> tags);

}  // namespace tessera::parallel
