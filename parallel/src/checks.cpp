#include <array>
#include <cstdlib>
#include <map>
#include <string_view>
#include <tessera/core/error.hpp>
#include <tessera/core/hash.hpp>
#include <unordered_map>

#include "batch.hpp"
#include "flight.hpp"

namespace tessera::parallel {

namespace {

// What the members of a call compare: 32 bytes each way.
struct Fingerprint {
  CallKind kind;
  DType dtype;
  ReduceOp reduce;
  std::uint8_t pairwise;  // `a` must be the other side's `b`
  std::int32_t root;
  std::uint32_t group;
  std::uint32_t number;  // of this call in the group
  std::uint64_t a;
  std::uint64_t b;

  bool same_call(const Fingerprint& other) const {
    return kind == other.kind && dtype == other.dtype && reduce == other.reduce &&
           root == other.root && group == other.group && number == other.number;
  }
  bool fits(const Fingerprint& other) const {
    if (!same_call(other)) return false;
    return pairwise != 0 ? a == other.b && b == other.a : a == other.a && b == other.b;
  }
  std::string str() const {
    std::string text = tessera::str(name(kind), " ");
    if (kind == CallKind::kExchange || kind == CallKind::kAllToAll) {
      text += tessera::str("sending ", a, " and expecting ", b, " bytes");
    } else if (kind == CallKind::kAllReduce || kind == CallKind::kReduceScatter) {
      text += tessera::str(name(reduce), " ", name(dtype), " x ", a);
    } else if (kind == CallKind::kBroadcast) {
      text += tessera::str("of ", a, " bytes from rank ", root);
    } else if (kind == CallKind::kAllGather) {
      text += tessera::str("of ", a, " bytes");
    }
    if (kind != CallKind::kExchange) {
      text +=
          tessera::str(kind == CallKind::kBarrier ? "" : " ", "(call ", number, " in its group)");
    }
    return text;
  }
};
static_assert(sizeof(Fingerprint) == 32);

struct State {
  int enabled = -1;
  std::unordered_map<std::uint64_t, std::uint32_t> group_calls;
  std::unordered_map<int, int> pair_checks;
};
State& state() {
  static State* const instance = new State;
  return *instance;
}

class CheckOperation : public Operation {
 public:
  explicit CheckOperation(const std::map<int, Fingerprint>& mine) : theirs_(mine) {
    std::map<int, int> tags;
    for (auto& [peer, fingerprint] : theirs_) {
      int& count = state().pair_checks[peer];
      tags[peer] = count++ & mpi::kMaxTag;
      batch_.recv(&fingerprint, sizeof(Fingerprint), peer, tags[peer]);
    }
    mine_ = mine;
    for (const auto& [peer, fingerprint] : mine_) {
      batch_.send(&fingerprint, sizeof(Fingerprint), peer, tags[peer]);
    }
  }
  bool advance() override { return batch_.test(); }
  std::vector<int> missing() const override { return batch_.missing(); }
  const std::map<int, Fingerprint>& theirs() const { return theirs_; }

 private:
  Batch batch_{mpi::Channel::kCheck};
  std::map<int, Fingerprint> mine_;
  std::map<int, Fingerprint> theirs_;
};

std::map<int, Fingerprint> swap_fingerprints(const Call& call,
                                             const std::map<int, Fingerprint>& mine) {
  const auto operation = make_ref<CheckOperation>(mine);
  const auto flight = make_ref<Request::Flight>();
  flight->record = Record(call);
  flight->operation = operation;
  flight->started = Clock::now();
  flight->counted = false;
  wait_for(*flight, watchdog_timeout());
  return operation->theirs();
}

std::map<int, Fingerprint> fingerprints(const Call& call) {
  std::map<int, Fingerprint> mine;
  Fingerprint common{};
  common.kind = call.kind;
  common.dtype = call.dtype;
  common.reduce = call.reduce;
  common.root = call.root;
  common.pairwise = call.kind == CallKind::kExchange || call.kind == CallKind::kAllToAll;
  if (call.kind == CallKind::kExchange) {
    for (const Send& send : call.sends) {
      mine.try_emplace(send.peer, common).first->second.a += static_cast<std::uint64_t>(send.bytes);
    }
    for (const Recv& recv : call.recvs) {
      mine.try_emplace(recv.peer, common).first->second.b += static_cast<std::uint64_t>(recv.bytes);
    }
  } else {
    common.group = static_cast<std::uint32_t>(call.group.hash());
    common.number = ++state().group_calls[call.group.hash()];
    Hasher hasher;
    for (const std::int64_t count : call.out_counts) {
      hasher.add(static_cast<std::uint64_t>(count));
      common.a += static_cast<std::uint64_t>(count);
    }
    common.b = hasher.value();
    for (int r = 0; r < call.group.size(); ++r) {
      Fingerprint& fingerprint = mine[call.group.process_of(r)];
      fingerprint = common;
      if (call.kind == CallKind::kAllToAll) {
        fingerprint.a = static_cast<std::uint64_t>(call.in_counts[static_cast<std::size_t>(r)]);
        fingerprint.b = static_cast<std::uint64_t>(call.out_counts[static_cast<std::size_t>(r)]);
      }
    }
  }
  mine.erase(process().rank);
  return mine;
}

[[noreturn]] void disagree(const Call& call,
                           int peer,
                           const Fingerprint& mine,
                           const Fingerprint& theirs) {
  throw CommError(str(name(call.kind), ": processes disagree (process ", process().rank, " calls ",
                      mine.str(), *call.info.op != '\0' ? " for " : "", call.info.op,
                      call.info.layout.defined() ? " " + call.info.layout.str() : "",
                      " as its call #", call.sequence, ", process ", peer, " calls ", theirs.str(),
                      mine.group != theirs.group ? " on another group" : "",
                      "). All members must make the same calls in the same order."));
}

}  // namespace

bool checks_enabled() {
  int& enabled = state().enabled;
  if (enabled < 0) {
    const char* text = std::getenv("TESSERA_CHECKS");
    enabled =
        text != nullptr && std::string_view(text).find("collective") != std::string_view::npos;
  }
  return enabled == 1;
}

void set_collective_checks(bool on) { state().enabled = on ? 1 : 0; }

void check_call(const Call& call) {
  if (call.kind == CallKind::kSend || call.kind == CallKind::kRecv) return;
  const std::map<int, Fingerprint> mine = fingerprints(call);
  if (mine.empty()) return;
  const std::map<int, Fingerprint> theirs = swap_fingerprints(call, mine);
  const Fingerprint* wrong = nullptr;
  int wrong_peer = -1;
  for (const auto& [peer, fingerprint] : theirs) {
    const Fingerprint& own = mine.at(peer);
    if (own.fits(fingerprint)) continue;
    if (!own.same_call(fingerprint) || call.kind != CallKind::kAllToAll) {
      disagree(call, peer, own, fingerprint);
    }
    wrong = &fingerprint;
    wrong_peer = peer;
  }
  if (call.kind != CallKind::kAllToAll) return;

  // The sizes of an all-to-all concern two members each; a second round tells the others.
  std::map<int, Fingerprint> verdict = mine;
  for (auto& [peer, fingerprint] : verdict) {
    fingerprint.a = wrong != nullptr ? 1 : 0;
    fingerprint.b = static_cast<std::uint64_t>(wrong_peer + 1);
  }
  const std::map<int, Fingerprint> verdicts = swap_fingerprints(call, verdict);
  if (wrong != nullptr) disagree(call, wrong_peer, mine.at(wrong_peer), *wrong);
  for (const auto& [peer, fingerprint] : verdicts) {
    if (fingerprint.a == 0) continue;
    throw CommError(str("all_to_all: processes disagree (process ", peer, " and process ",
                        fingerprint.b - 1,
                        " about the bytes between them). All members must agree on all sizes."));
  }
}

}  // namespace tessera::parallel
