#include <algorithm>
#include <cstring>
#include <numeric>
#include <tessera/core/dry_run.hpp>

#include "host_transport.hpp"

namespace tessera::parallel {

namespace {

// Up to this size a broadcast goes from the root to all; beyond it every member forwards a piece.
constexpr std::int64_t kDirectBroadcastBytes = 64 * 1024;

const std::byte* at(const void* base, std::int64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}
std::byte* at(void* base, std::int64_t offset) { return static_cast<std::byte*>(base) + offset; }

std::vector<std::int64_t> offsets_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> offsets(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, offsets.begin() + 1);
  return offsets;
}

// Members after this one first, so that not all send to the first member at once.
template <class F>
void for_each_other(const Group& group, F&& f) {
  for (int k = 1; k < group.size(); ++k) {
    const int r = (group.rank() + k) % group.size();
    f(static_cast<std::size_t>(r), group.process_of(r));
  }
}

// The root gives each other member one piece, which that member hands on to the rest: the root
// sends the data once instead of once per member.
class ScatterBroadcast : public BatchOperation {
 public:
  ScatterBroadcast(const Call& call, std::vector<int> call_tags)
      : group_(call.group), root_(call.root), data_(call.out), bytes_total_(call.out_counts[0]) {
    tags = std::move(call_tags);
    for_each_other(group_, [&](std::size_t r, int peer) {
      if (group_.rank() == root_) {
        const auto [begin, bytes] = piece(static_cast<int>(r));
        batch.send(at(data_, begin), bytes, peer, tags[r]);
      } else if (static_cast<int>(r) == root_) {
        const auto [begin, bytes] = piece(group_.rank());
        own_piece_.recv(at(data_, begin), bytes, peer, tags[r]);
      } else {
        const auto [begin, bytes] = piece(static_cast<int>(r));
        batch.recv(at(data_, begin), bytes, peer, tags[r] + 1);
      }
    });
    count_sent();
  }

  bool advance() override {
    if (!forwarded_ && group_.rank() != root_) {
      if (!own_piece_.test()) return false;
      const Piece own = piece(group_.rank());
      for_each_other(group_, [&](std::size_t r, int peer) {
        if (static_cast<int>(r) != root_) {
          batch.send(at(data_, own.begin), own.bytes, peer, tags[r] + 1);
        }
      });
      count_sent();
      forwarded_ = true;
    }
    return batch.test();
  }

  std::vector<int> missing() const override {
    const std::vector<int> root = own_piece_.missing();
    return root.empty() ? batch.missing() : root;
  }

 private:
  struct Piece {
    std::int64_t begin;
    std::int64_t bytes;
  };
  Piece piece(int r) const {
    const std::int64_t parts = group_.size() - 1;
    const std::int64_t k = r < root_ ? r : r - 1;
    const std::int64_t begin = bytes_total_ * k / parts;
    return {begin, bytes_total_ * (k + 1) / parts - begin};
  }

  Group group_;
  int root_;
  void* data_;
  std::int64_t bytes_total_;
  Batch own_piece_{mpi::Channel::kInternal};
  bool forwarded_ = false;
};

}  // namespace

Ref<Operation> start_broadcast(const Call& call, std::vector<int> tags) {
  const std::int64_t bytes = call.out_counts[0];
  if (bytes > kDirectBroadcastBytes && call.group.size() > 2) {
    return make_ref<ScatterBroadcast>(call, std::move(tags));
  }
  auto operation = make_ref<BatchOperation>();
  if (bytes > 0) {
    for_each_other(call.group, [&](std::size_t r, int peer) {
      if (call.group.rank() == call.root) {
        operation->batch.send(call.out, bytes, peer, tags[r]);
      } else if (static_cast<int>(r) == call.root) {
        operation->batch.recv(call.out, bytes, peer, tags[r]);
      }
    });
  }
  operation->count_sent();
  return operation;
}

Ref<Operation> start_all_gather(const Call& call, std::vector<int> tags) {
  const auto& bytes = call.out_counts;
  const std::vector<std::int64_t> offsets = offsets_of(bytes);
  const auto self = static_cast<std::size_t>(call.group.rank());
  auto operation = make_ref<BatchOperation>();
  for_each_other(call.group, [&](std::size_t r, int peer) {
    if (bytes[r] > 0) operation->batch.recv(at(call.out, offsets[r]), bytes[r], peer, tags[r]);
  });
  if (bytes[self] > 0) {
    for_each_other(call.group, [&](std::size_t r, int peer) {
      operation->batch.send(call.in, bytes[self], peer, tags[r]);
    });
    std::byte* own = at(call.out, offsets[self]);
    if (own != call.in && !dry_run())
      std::memcpy(own, call.in, static_cast<std::size_t>(bytes[self]));
  }
  operation->count_sent();
  return operation;
}

Ref<Operation> start_all_to_all(const Call& call, std::vector<int> tags) {
  const std::vector<std::int64_t> in_offsets = offsets_of(call.in_counts);
  const std::vector<std::int64_t> out_offsets = offsets_of(call.out_counts);
  const auto self = static_cast<std::size_t>(call.group.rank());
  auto operation = make_ref<BatchOperation>();
  for_each_other(call.group, [&](std::size_t r, int peer) {
    const std::int64_t bytes = call.out_counts[r];
    if (bytes > 0) operation->batch.recv(at(call.out, out_offsets[r]), bytes, peer, tags[r]);
  });
  for_each_other(call.group, [&](std::size_t r, int peer) {
    const std::int64_t bytes = call.in_counts[r];
    if (bytes > 0) operation->batch.send(at(call.in, in_offsets[r]), bytes, peer, tags[r]);
  });
  if (call.in_counts[self] > 0 && !dry_run()) {
    std::memcpy(at(call.out, out_offsets[self]), at(call.in, in_offsets[self]),
                static_cast<std::size_t>(call.in_counts[self]));
  }
  operation->count_sent();
  return operation;
}

}  // namespace tessera::parallel
