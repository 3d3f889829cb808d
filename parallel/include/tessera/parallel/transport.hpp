#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/core/dtype.hpp>
#include <tessera/core/layout.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/ref.hpp>
#include <tessera/parallel/group.hpp>
#include <vector>

namespace tessera::parallel {

/// What is communicated.
enum class CallKind : std::uint8_t {
  kSend,
  kRecv,
  kExchange,
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll
};
inline constexpr int kCallKinds = 9;
const char* name(CallKind kind);

/// One message of an exchange, to `peer` (a process).
struct Send {
  int peer;
  const void* data;
  std::int64_t bytes;
};
/// One message of an exchange, from `peer` (a process).
struct Recv {
  int peer;
  void* data;
  std::int64_t bytes;
};

/// For the report of a failure: who asks, about which tensor. `op` is a literal.
struct CallInfo {
  const char* op = "";
  Layout layout = {};
  Device device = {};  ///< where the buffers lie
};

/// One communication call, as the transport sees it.
struct Call {
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp reduce = ReduceOp::kSum;
  int root = 0;  ///< group rank that broadcasts
  int peer = 0;  ///< process; kSend and kRecv
  int tag = 0;   ///< kSend and kRecv
  Group group;
  const void* in = nullptr;
  void* out = nullptr;
  /// Elements per member of the group (kAllReduce, kBroadcast: one number).
  std::vector<std::int64_t> in_counts;
  std::vector<std::int64_t> out_counts;
  /// kExchange
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  std::uint64_t sequence = 0;  ///< number of this call on this process, from 1
  CallInfo info;

  /// `all_reduce #17 sum f32 x 1000 in {0, 1} for conv_weight_grad [16, 3, 3, 16] partial(data)`
  std::string str() const;
};

/// A call in flight.
class Operation : public RefCounted {
 public:
  /// Tests without blocking and starts the next stage where there is one; true when done, and ever
  /// after.
  virtual bool advance() = 0;
  /// Processes whose messages have not come yet (or that have not taken ours).
  virtual std::vector<int> missing() const { return {}; }
  /// Messages and bytes that this process has sent to others so far.
  std::int64_t messages() const { return messages_; }
  std::int64_t bytes() const { return bytes_; }

 protected:
  std::int64_t messages_ = 0;
  std::int64_t bytes_ = 0;
};

/// Moves bytes and takes sums: the seam between the calls and what carries them (MPI; one process
/// alone; NCCL), where tests put transports that misbehave.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Starts the call on the calling thread and returns at once. Buffers must stay until the
  /// operation is done.
  virtual Ref<Operation> start(const Call& call) = 0;
};

/// The transport for buffers on devices of this kind; throws NotSupported when there is none.
Transport& transport(Device::Kind kind = Device::kCpu);
/// Puts another in its place and returns the old one (which a wrapper forwards to).
std::unique_ptr<Transport> exchange_transport(Device::Kind kind,
                                              std::unique_ptr<Transport> transport);

}  // namespace tessera::parallel
