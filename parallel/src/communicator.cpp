#include <algorithm>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/parallel/communicator.hpp>

#include "flight.hpp"

namespace tessera::parallel {

Request start_call(Call call);

namespace {

[[noreturn]] void refuse(CallKind kind, const std::string& problem) {
  throw UsageError(str(name(kind), ": ", problem));
}

Call collective(CallKind kind, const Group& group, const CallInfo& info) {
  if (group.rank() < 0) {
    refuse(kind,
           str("this process is not in the group ", group.str(), ". Only members may call it."));
  }
  Call call;
  call.kind = kind;
  call.group = group;
  call.info = info;
  return call;
}

void check_size(CallKind kind, std::int64_t size, const void* data) {
  if (size < 0) refuse(kind, str("size ", size, " is negative. Give a size of at least 0."));
  if (size > 0 && data == nullptr) refuse(kind, "there is no buffer (null). Give one.");
}

void check_sizes(CallKind kind,
                 const Group& group,
                 std::span<const std::int64_t> sizes,
                 const void* data) {
  if (static_cast<int>(sizes.size()) != group.size()) {
    refuse(kind, str(sizes.size(), " sizes for a group of ", group.size(),
                     ". Give one size for each member."));
  }
  for (const std::int64_t size : sizes) check_size(kind, size, data);
}

void check_peer(CallKind kind, int peer) {
  if (peer < 0 || peer >= process().count) {
    refuse(kind, str("process ", peer, " does not exist (the job has ", process().count,
                     "). Use processes of this job."));
  }
}

Call message(CallKind kind, std::int64_t bytes, int peer, int tag, const CallInfo& info) {
  check_peer(kind, peer);
  if (tag < 0 || tag > kMaxTag) {
    refuse(kind, str("tag ", tag, " is out of range. Use 0 to ", kMaxTag, "."));
  }
  Call call;
  call.kind = kind;
  call.peer = peer;
  call.tag = tag;
  call.in_counts = {bytes};
  call.out_counts = {bytes};
  call.info = info;
  return call;
}

}  // namespace

Request isend(const void* data, std::int64_t bytes, int peer, int tag, const CallInfo& info) {
  check_size(CallKind::kSend, bytes, data);
  Call call = message(CallKind::kSend, bytes, peer, tag, info);
  call.in = data;
  return start_call(std::move(call));
}

Request irecv(void* data, std::int64_t bytes, int peer, int tag, const CallInfo& info) {
  check_size(CallKind::kRecv, bytes, data);
  Call call = message(CallKind::kRecv, bytes, peer, tag, info);
  call.out = data;
  return start_call(std::move(call));
}

Request exchange_messages(std::span<const Send> sends,
                          std::span<const Recv> recvs,
                          const CallInfo& info) {
  for (const Send& send : sends) {
    check_peer(CallKind::kExchange, send.peer);
    check_size(CallKind::kExchange, send.bytes, send.data);
  }
  for (const Recv& recv : recvs) {
    check_peer(CallKind::kExchange, recv.peer);
    check_size(CallKind::kExchange, recv.bytes, recv.data);
  }
  Call call;
  call.kind = CallKind::kExchange;
  call.sends.assign(sends.begin(), sends.end());
  call.recvs.assign(recvs.begin(), recvs.end());
  call.info = info;
  return start_call(std::move(call));
}

Request barrier(const Group& group, const CallInfo& info) {
  return start_call(collective(CallKind::kBarrier, group, info));
}

Request broadcast(
    const Group& group, void* data, std::int64_t bytes, int root, const CallInfo& info) {
  Call call = collective(CallKind::kBroadcast, group, info);
  check_size(call.kind, bytes, data);
  if (root < 0 || root >= group.size()) {
    refuse(call.kind,
           str("root ", root, " is not a rank of the group ", group.str(), ". Use 0 to size - 1."));
  }
  call.root = root;
  call.in = data;
  call.out = data;
  call.in_counts = {bytes};
  call.out_counts = {bytes};
  return start_call(std::move(call));
}

Request all_reduce(const Group& group,
                   void* data,
                   std::int64_t count,
                   DType dtype,
                   ReduceOp op,
                   const CallInfo& info) {
  Call call = collective(CallKind::kAllReduce, group, info);
  check_size(call.kind, count, data);
  call.dtype = dtype;
  call.reduce = op;
  call.in = data;
  call.out = data;
  call.in_counts = {count};
  call.out_counts = {count};
  return start_call(std::move(call));
}

Request reduce_scatter(const Group& group,
                       const void* in,
                       void* out,
                       std::span<const std::int64_t> counts,
                       DType dtype,
                       ReduceOp op,
                       const CallInfo& info) {
  Call call = collective(CallKind::kReduceScatter, group, info);
  check_sizes(call.kind, group, counts, in);
  check_size(call.kind, counts[static_cast<std::size_t>(group.rank())], out);
  call.dtype = dtype;
  call.reduce = op;
  call.in = in;
  call.out = out;
  call.in_counts.assign(counts.begin(), counts.end());
  call.out_counts = call.in_counts;
  return start_call(std::move(call));
}

Request all_gather(const Group& group,
                   const void* in,
                   void* out,
                   std::span<const std::int64_t> bytes,
                   const CallInfo& info) {
  Call call = collective(CallKind::kAllGather, group, info);
  check_sizes(call.kind, group, bytes, out);
  check_size(call.kind, bytes[static_cast<std::size_t>(group.rank())], in);
  call.in = in;
  call.out = out;
  call.in_counts.assign(bytes.begin(), bytes.end());
  call.out_counts = call.in_counts;
  return start_call(std::move(call));
}

Request all_gather(
    const Group& group, const void* in, void* out, std::int64_t bytes_each, const CallInfo& info) {
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(group.size()), bytes_each);
  return all_gather(group, in, out, bytes, info);
}

Request all_to_all(const Group& group,
                   const void* in,
                   std::span<const std::int64_t> in_bytes,
                   void* out,
                   std::span<const std::int64_t> out_bytes,
                   const CallInfo& info) {
  Call call = collective(CallKind::kAllToAll, group, info);
  check_sizes(call.kind, group, in_bytes, in);
  check_sizes(call.kind, group, out_bytes, out);
  const auto self = static_cast<std::size_t>(group.rank());
  if (in_bytes[self] != out_bytes[self]) {
    refuse(call.kind, str("this process sends itself ", in_bytes[self], " bytes but expects ",
                          out_bytes[self], ". Make them equal."));
  }
  call.in = in;
  call.out = out;
  call.in_counts.assign(in_bytes.begin(), in_bytes.end());
  call.out_counts.assign(out_bytes.begin(), out_bytes.end());
  return start_call(std::move(call));
}

std::vector<std::int64_t> all_gather_counts(const Group& group,
                                            std::int64_t count,
                                            const CallInfo& info) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group.size()), 0);
  all_gather(group, &count, counts.data(), std::int64_t{sizeof count}, info).wait();
  return counts;
}

}  // namespace tessera::parallel
