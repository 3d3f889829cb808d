#include "host_transport.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/error.hpp>

namespace tessera::parallel {

namespace {

// A tag holds the number of the call in its pair, what is called, and the stage: calls that differ
// never match, even where their messages have one size. A pair would need 2^19 calls in flight to
// meet itself. The receives of stage 0 are there as soon as the call has begun, so a message of
// stage 0 that finds none belongs to a call that was not made here; other stages may come early.
constexpr std::uint32_t kTagCycle = 1u << 19;
constexpr int kWhats = 64;
constexpr int kStages = 4;
constexpr int kDTypes = static_cast<int>(DType::kBool) + 1;
constexpr int kFirstReduction = 5;
static_assert(kTagCycle * kWhats * kStages - 1 == mpi::kMaxTag);
static_assert(kFirstReduction + 2 * 3 * kDTypes <= kWhats);
constexpr std::array kOthers{CallKind::kBarrier, CallKind::kBroadcast, CallKind::kAllGather,
                             CallKind::kAllToAll, CallKind::kExchange};
static_assert(kOthers.size() == kFirstReduction);

int what_of(const Call& call) {
  if (call.kind == CallKind::kAllReduce || call.kind == CallKind::kReduceScatter) {
    const int scatters = call.kind == CallKind::kReduceScatter ? 1 : 0;
    return kFirstReduction + (scatters * 3 + static_cast<int>(call.reduce)) * kDTypes +
           static_cast<int>(call.dtype);
  }
  return static_cast<int>(std::find(kOthers.begin(), kOthers.end(), call.kind) - kOthers.begin());
}

std::string what_text(int what) {
  if (what < kFirstReduction) return name(kOthers[static_cast<std::size_t>(what)]);
  const int k = (what - kFirstReduction) / kDTypes;
  return str(name(k < 3 ? CallKind::kAllReduce : CallKind::kReduceScatter), " ",
             name(static_cast<ReduceOp>(k % 3)), " ",
             name(static_cast<DType>((what - kFirstReduction) % kDTypes)));
}

/// Calls so far by process, alike on both sides of each pair.
std::vector<std::uint32_t>& pair_calls() {
  static auto* const instance = new std::vector<std::uint32_t>;
  return *instance;
}

}  // namespace

std::vector<int> SelfMessage::missing() const { return {process().rank}; }

std::string message_without_receiver() {
  const std::optional<mpi::Unexpected> message = mpi::unexpected(mpi::Channel::kInternal);
  if (!message || message->tag % kStages != 0) return "";
  const auto peer = static_cast<std::size_t>(message->source);
  const std::uint32_t calls = peer < pair_calls().size() ? pair_calls()[peer] : 0;
  const auto number = static_cast<std::uint32_t>(message->tag / (kStages * kWhats));
  const std::uint32_t behind = (calls - number) % kTagCycle;
  // Calls that are still to be made here may come early.
  if (behind == 0 || behind > kTagCycle / 2) return "";
  return str("process ", message->source, " has sent ", message->bytes, " bytes of its ",
             what_text(message->tag / kStages % kWhats), ", call ", number + 1,
             " between it and process ", process().rank, ", which made another one");
}

int HostTransport::next_tag(int peer, const Call& call) {
  // The calls of a plan are nobody's: each process plays other ranks.
  if (dry_run()) return what_of(call) * kStages;
  auto& calls = pair_calls();
  const auto index = static_cast<std::size_t>(peer);
  if (index >= calls.size()) calls.resize(static_cast<std::size_t>(process().count), 0);
  return (static_cast<int>(calls[index]++ % kTagCycle) * kWhats + what_of(call)) * kStages;
}

std::vector<int> HostTransport::tags(const Call& call) {
  const Group& group = call.group;
  std::vector<int> result(static_cast<std::size_t>(group.size()), 0);
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank()) {
      result[static_cast<std::size_t>(r)] = next_tag(group.process_of(r), call);
    }
  }
  return result;
}

Ref<Operation> HostTransport::start(const Call& call) {
  switch (call.kind) {
    case CallKind::kSend:
    case CallKind::kRecv:
      return call.peer == process().rank ? to_self(call) : point_to_point(call);
    case CallKind::kExchange:
      return exchange(call);
    case CallKind::kBarrier: {
      auto operation = make_ref<BatchOperation>();
      operation->tags = tags(call);
      for (int r = 0; r < call.group.size(); ++r) {
        if (r == call.group.rank()) continue;
        const int peer = call.group.process_of(r);
        const int tag = operation->tags[static_cast<std::size_t>(r)];
        operation->batch.recv(nullptr, 0, peer, tag);
        operation->batch.send(nullptr, 0, peer, tag);
      }
      operation->count_sent();
      return operation;
    }
    case CallKind::kBroadcast:
      return start_broadcast(call, tags(call));
    case CallKind::kAllGather:
      return start_all_gather(call, tags(call));
    case CallKind::kAllToAll:
      return start_all_to_all(call, tags(call));
    case CallKind::kAllReduce:
    case CallKind::kReduceScatter:
      return start_reduction(call, tags(call));
  }
  throw UsageError("transport: unknown kind of call. Use one of CallKind.");
}

Ref<Operation> HostTransport::point_to_point(const Call& call) {
  auto operation = make_ref<BatchOperation>();
  operation->batch = Batch(mpi::Channel::kUser);
  if (call.kind == CallKind::kSend) {
    operation->batch.send(call.in, call.in_counts[0], call.peer, call.tag);
  } else {
    operation->batch.recv(call.out, call.out_counts[0], call.peer, call.tag);
  }
  operation->count_sent();
  return operation;
}

Ref<Operation> HostTransport::to_self(const Call& call) {
  auto message = make_ref<SelfMessage>();
  message->sends = call.kind == CallKind::kSend;
  message->in = call.in;
  message->out = call.out;
  message->bytes = message->sends ? call.in_counts[0] : call.out_counts[0];
  auto& waiting = self_messages_[call.tag];
  if (waiting.empty() || waiting.front()->sends == message->sends) {
    waiting.push_back(message);
    return message;
  }
  const Ref<SelfMessage> other = waiting.front();
  if (other->bytes != message->bytes) {
    throw CommError(str("receive: the message to itself has ",
                        (message->sends ? message : other)->bytes, " instead of the ",
                        (message->sends ? other : message)->bytes,
                        " bytes expected. Make the two sizes equal."));
  }
  const void* from = message->sends ? message->in : other->in;
  void* to = message->sends ? other->out : message->out;
  if (message->bytes > 0 && !dry_run())
    std::memcpy(to, from, static_cast<std::size_t>(message->bytes));
  message->matched = true;
  other->matched = true;
  waiting.pop_front();
  return message;
}

Ref<Operation> HostTransport::exchange(const Call& call) {
  const int self = process().rank;
  auto recv = call.recvs.begin();
  const auto next_from_self = [&] {
    while (recv != call.recvs.end() && recv->peer != self) ++recv;
    return recv != call.recvs.end();
  };
  bool matches = true;
  for (const Send& message : call.sends) {
    if (message.peer != self) continue;
    matches = matches && next_from_self() && recv->bytes == message.bytes;
    if (!matches) break;
    if (message.bytes > 0 && !dry_run()) {
      std::memcpy(recv->data, message.data, static_cast<std::size_t>(message.bytes));
    }
    ++recv;
  }
  if (!matches || next_from_self()) {
    throw CommError(
        "exchange: messages of this process to itself do not match. Give both sides alike.");
  }

  auto operation = make_ref<BatchOperation>();
  std::vector<std::pair<int, int>> tag_of;  // few neighbours: searching beats hashing
  const auto tag = [&](int peer) {
    for (const auto& [known, value] : tag_of) {
      if (known == peer) return value;
    }
    return tag_of.emplace_back(peer, next_tag(peer, call)).second;
  };
  for (const Recv& message : call.recvs) {
    if (message.peer != self) {
      operation->batch.recv(message.data, message.bytes, message.peer, tag(message.peer));
    }
  }
  for (const Send& message : call.sends) {
    if (message.peer != self) {
      operation->batch.send(message.data, message.bytes, message.peer, tag(message.peer));
    }
  }
  operation->count_sent();
  return operation;
}

}  // namespace tessera::parallel
