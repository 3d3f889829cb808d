#include <array>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/parallel/make_transport.hpp>
#include <tessera/parallel/transport.hpp>
#include <utility>

#include "flight.hpp"
#include "host_transport.hpp"

namespace tessera::parallel {

namespace {

std::unique_ptr<Transport>& slot(Device::Kind kind) {
  // Never destroyed: calls in flight may outlive static objects.
  static auto* const slots =
      new std::array<std::unique_ptr<Transport>, 2>{std::make_unique<HostTransport>(), nullptr};
  return (*slots)[static_cast<std::size_t>(kind)];
}

}  // namespace

const char* name(CallKind kind) {
  switch (kind) {
    case CallKind::kSend:
      return "send";
    case CallKind::kRecv:
      return "receive";
    case CallKind::kExchange:
      return "exchange";
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kBroadcast:
      return "broadcast";
    case CallKind::kAllReduce:
      return "all_reduce";
    case CallKind::kReduceScatter:
      return "reduce_scatter";
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

std::unique_ptr<Transport> make_host_transport() { return std::make_unique<HostTransport>(); }

Transport& transport(Device::Kind kind) {
  if (slot(kind) == nullptr) {
    throw NotSupported(str("transport: there is none for buffers on ",
                           kind == Device::kCuda ? "CUDA devices" : "the CPU",
                           ". Use a build with NCCL, or copy the buffers to the host."));
  }
  return *slot(kind);
}

std::unique_ptr<Transport> exchange_transport(Device::Kind kind,
                                              std::unique_ptr<Transport> transport) {
  return std::exchange(slot(kind), std::move(transport));
}

std::string Call::str() const { return Record(*this).str(); }

Record::Record(const Call& call)
    : sequence(call.sequence),
      root(call.root),
      peer(call.peer),
      tag(call.tag),
      kind(call.kind),
      dtype(call.dtype),
      reduce(call.reduce),
      group(call.group),
      info(call.info) {
  for (const std::int64_t count : call.in_counts) amount += count;
  for (const Send& send : call.sends) amount += send.bytes;
  for (const Recv& recv : call.recvs) amount += recv.bytes;
}

std::string Record::str() const {
  std::string text = tessera::str(name(kind), " #", sequence);
  switch (kind) {
    case CallKind::kSend:
      text += tessera::str(" of ", amount, " bytes to process ", peer, " with tag ", tag);
      break;
    case CallKind::kRecv:
      text += tessera::str(" of ", amount, " bytes from process ", peer, " with tag ", tag);
      break;
    case CallKind::kExchange:
      text += tessera::str(" of ", amount, " bytes both ways");
      break;
    case CallKind::kBarrier:
      text += tessera::str(" in ", group.str());
      break;
    case CallKind::kBroadcast:
      text += tessera::str(" of ", amount, " bytes from rank ", root, " in ", group.str());
      break;
    case CallKind::kAllReduce:
    case CallKind::kReduceScatter:
      text += tessera::str(" ", name(reduce), " ", name(dtype), " x ", amount, " in ", group.str());
      break;
    case CallKind::kAllGather:
    case CallKind::kAllToAll:
      text += tessera::str(" of ", amount, " bytes in ", group.str());
      break;
  }
  if (info.op != nullptr && *info.op != '\0') text += tessera::str(" for ", info.op);
  if (info.layout.defined()) text += tessera::str(" ", info.layout.str());
  return text;
}

}  // namespace tessera::parallel
