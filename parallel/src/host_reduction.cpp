#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/memory.hpp>

#include "host_transport.hpp"
#include "reduce.hpp"

namespace tessera::parallel {

namespace {

// An all-reduce whose incoming messages fit in this many bytes sends everything to everyone: one
// round.
constexpr std::int64_t kDirectBytes = 256 * 1024;
// Longer reductions run in segments, which bounds the scratch memory.
constexpr std::int64_t kSegmentBytes = 32 * 1024 * 1024;

std::byte* at(void* base, std::int64_t offset) { return static_cast<std::byte*>(base) + offset; }
const std::byte* at(const void* base, std::int64_t offset) {
  return static_cast<const std::byte*>(base) + offset;
}

// What all reductions share: the contributions of all members to one piece end up in this process,
// which combines them in group order. No sum is ever split over processes, so the order does not
// depend on sizes, segments or timing.
class Reduction : public BatchOperation {
 protected:
  Reduction(const Call& call, std::vector<int> call_tags)
      : group_(call.group),
        dtype_(call.dtype),
        reduce_(call.reduce),
        element_(static_cast<std::int64_t>(size_of(call.dtype))),
        inputs_(static_cast<std::size_t>(call.group.size())) {
    tags = std::move(call_tags);
  }

  int members() const { return group_.size(); }
  int self() const { return group_.rank(); }

  template <class F>
  void for_each_other(F&& f) const {
    for (int k = 1; k < members(); ++k) {
      const int r = (self() + k) % members();
      f(r, group_.process_of(r), tags[static_cast<std::size_t>(r)]);
    }
  }

  // Receives `count` elements from each other member; `own` is this member's contribution.
  void receive_contributions(const void* own, std::int64_t count, int stage = 0) {
    if (count == 0) return;
    const std::int64_t bytes = count * element_;
    const auto needed = static_cast<std::size_t>(bytes * (members() - 1));
    if (needed > 0 && (!scratch_ || scratch_->bytes() < needed)) {
      const AllocationScope scope("all_reduce");
      scratch_ = MemoryPool::of({}).allocate(needed);
    }
    inputs_[static_cast<std::size_t>(self())] = own;
    std::int64_t offset = 0;
    for_each_other([&](int r, int peer, int tag) {
      std::byte* place = scratch_->data() + offset;
      batch.recv(place, bytes, peer, tag + stage);
      inputs_[static_cast<std::size_t>(r)] = place;
      offset += bytes;
    });
  }

  void combine(void* out, std::int64_t count) {
    if (count > 0 && !dry_run()) reduce_in_order(dtype_, reduce_, inputs_, out, count);
  }

  Group group_;
  DType dtype_;
  ReduceOp reduce_;
  std::int64_t element_;

 private:
  std::vector<const void*> inputs_;
  Ref<Buffer> scratch_;
};

class DirectAllReduce : public Reduction {
 public:
  DirectAllReduce(const Call& call, std::vector<int> call_tags)
      : Reduction(call, std::move(call_tags)), data_(call.out), count_(call.out_counts[0]) {
    done_ = count_ == 0 || members() == 1;
    if (done_) return;
    receive_contributions(data_, count_);
    for_each_other(
        [&](int, int peer, int tag) { batch.send(data_, count_ * element_, peer, tag); });
    count_sent();
  }
  bool advance() override {
    if (done_) return true;
    if (!batch.test()) return false;
    combine(data_, count_);
    done_ = true;
    return true;
  }

 private:
  void* data_;
  std::int64_t count_;
  bool done_ = false;
};

// Reduce-scatter and all-gather of one segment after the other; the reduce-scatter alone for
// kReduceScatter.
class SegmentedReduction : public Reduction {
 public:
  SegmentedReduction(const Call& call, std::vector<int> call_tags)
      : Reduction(call, std::move(call_tags)),
        gathers_(call.kind == CallKind::kAllReduce),
        in_(call.in),
        out_(call.out),
        counts_(call.out_counts) {
    const std::int64_t segment_elements = std::max<std::int64_t>(1, kSegmentBytes / element_);
    std::int64_t longest = 0;
    if (gathers_) {
      step_ = segment_elements;
      longest = counts_[0];
    } else {
      step_ = std::max<std::int64_t>(1, segment_elements / members());
      for (const std::int64_t count : counts_) longest = std::max(longest, count);
    }
    segments_ = (longest + step_ - 1) / step_;
    if (segments_ > 0) scatter();
  }

  bool advance() override {
    while (segment_ < segments_) {
      if (!batch.test()) return false;
      batch.clear();
      if (gathering_) {
        gathering_ = false;
      } else {
        const Piece own = piece(self());
        combine(gathers_ ? at(out_, own.begin * element_) : at(out_, segment_ * step_ * element_),
                own.count);
        if (gathers_) {
          gather();
          continue;
        }
      }
      if (++segment_ < segments_) scatter();
    }
    return true;
  }

 private:
  struct Piece {
    std::int64_t begin;
    std::int64_t count;
  };

  // The part of the current segment that member r reduces.
  Piece piece(int r) const {
    const std::int64_t first = segment_ * step_;
    if (gathers_) {
      const std::int64_t length = std::min(step_, counts_[0] - first);
      const std::int64_t begin = length * r / members();
      return {first + begin, length * (r + 1) / members() - begin};
    }
    std::int64_t begin = 0;
    for (int k = 0; k < r; ++k) begin += counts_[static_cast<std::size_t>(k)];
    const std::int64_t count = counts_[static_cast<std::size_t>(r)];
    return {begin + first, std::clamp<std::int64_t>(count - first, 0, step_)};
  }

  void scatter() {
    const Piece own = piece(self());
    // Receives of further segments are not there from the start (see kStages).
    const int stage = segment_ == 0 ? 0 : 2;
    receive_contributions(at(in_, own.begin * element_), own.count, stage);
    for_each_other([&](int r, int peer, int tag) {
      const Piece theirs = piece(r);
      if (theirs.count == 0) return;
      batch.send(at(in_, theirs.begin * element_), theirs.count * element_, peer, tag + stage);
    });
    count_sent();
  }

  void gather() {
    const Piece own = piece(self());
    for_each_other([&](int r, int peer, int tag) {
      const Piece theirs = piece(r);
      if (theirs.count == 0) return;
      batch.recv(at(out_, theirs.begin * element_), theirs.count * element_, peer, tag + 1);
    });
    for_each_other([&](int, int peer, int tag) {
      if (own.count == 0) return;
      batch.send(at(out_, own.begin * element_), own.count * element_, peer, tag + 1);
    });
    count_sent();
    gathering_ = true;
  }

  bool gathers_;
  const void* in_;
  void* out_;
  std::vector<std::int64_t> counts_;
  std::int64_t step_ = 0;  // elements of a segment (of each piece, for the reduce-scatter)
  std::int64_t segments_ = 0;
  std::int64_t segment_ = 0;
  bool gathering_ = false;
};

}  // namespace

Ref<Operation> start_reduction(const Call& call, std::vector<int> tags) {
  if (call.kind == CallKind::kAllReduce) {
    const std::int64_t incoming = call.out_counts[0] *
                                  static_cast<std::int64_t>(size_of(call.dtype)) *
                                  (call.group.size() - 1);
    if (incoming <= kDirectBytes) return make_ref<DirectAllReduce>(call, std::move(tags));
  }
  return make_ref<SegmentedReduction>(call, std::move(tags));
}

}  // namespace tessera::parallel
