#pragma once

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/recompute.hpp>
#include <utility>

#include "tape.hpp"

namespace tessera {

/// What the runs of an outermost recompute() share, in program order.
struct Replay : RefCounted {
  std::vector<RandomKey> keys;
  std::vector<Outputs> kept;
};

/// The part of the tape that one recompute() made. Its nodes are those of a plain call, at their
/// places and with their numbers, but without saved values; fill() runs the function again and puts
/// these in. So nobody else on the tape knows of it.
///
/// Owned by its nodes, of which it knows only those that are alive.
class Segment : public RefCounted {
 public:
  /// One call of an op that might have been recorded (node: null if it was not, or is gone), or of
  /// recompute() (op: null).
  struct Entry {
    const OpDef* op = nullptr;
    Node* node = nullptr;
    Segment* child = nullptr;
  };

  ~Segment() override;

  /// Puts the saved values in, once. Throws UsageError inside of the first run.
  void fill();

  Ref<Segment> parent;    // fills the inputs of this one
  std::size_t place = 0;  // in the parent's entries
  Ref<Replay> replay;
  std::size_t first_key = 0;
  std::size_t first_kept = 0;
  std::vector<std::string> keep;  // own and those of the parents
  const char* layer = "";
  std::vector<Entry> entries;
  /// Undefined while the parent has none of the values either.
  RecomputedFunction function;
  std::vector<Tensor> inputs;
  enum class State : std::uint8_t { kOpen, kOutlined, kFilled } state = State::kOpen;
};

/// A run of a segment's function.
class SegmentRun {
 public:
  enum class Mode : std::uint8_t {
    kOutline,  ///< the first: makes nodes without saved values
    kRelink,   ///< inside the second run of a parent: outputs get their nodes again
    kFill,     ///< the second: nodes get their saved values
    kDead      ///< nothing of the segment is left on the tape
  };
  /// `segment` is null for Mode::kDead only.
  SegmentRun(Segment* segment, Mode mode, const std::vector<std::string>& keep);
  ~SegmentRun();
  SegmentRun(const SegmentRun&) = delete;

  Mode mode() const { return mode_; }
  Segment* segment() const { return segment_; }
  const std::vector<std::string>& keep() const { return keep_; }
  /// Lets a segment that begins here know of what was drawn and kept so far.
  void share(Segment& child) const;
  /// Calls the function; throws UsageError when it does not do what it did the first time.
  std::vector<Tensor> run(const RecomputedFunction& f, std::span<const Tensor> inputs);

  /// Instead of record() outside of segments.
  void record(const OpDef& op,
              std::span<const Tensor> inputs,
              const ArgsRef& args,
              Outputs& outputs);
  bool keeps(const OpDef& op) const;
  /// The outputs of this call of an op that is kept, from the first run; empty: this is the first.
  Outputs kept_outputs();
  void keep_outputs(const Outputs& outputs);
  RandomKey key(const std::function<RandomKey()>& draw);
  /// The recompute() that stands at this place; null: nothing of it is left.
  Segment* next_child() { return next(nullptr).child; }

 private:
  Segment::Entry& next(const OpDef* op);
  void check_versions(const Node& node, std::span<const Tensor> inputs) const;

  Segment* segment_;
  Mode mode_;
  const std::vector<std::string>& keep_;
  SegmentRun* outer_;
  Replay* replay_;
  std::size_t entry_ = 0;
  std::size_t key_ = 0;
  std::size_t kept_ = 0;
};

/// While alive, ops are no part of the run: what happens inside of one that is kept.
class SegmentPause {
 public:
  SegmentPause() : run_(std::exchange(segment_run, nullptr)) {}
  ~SegmentPause() { segment_run = run_; }
  SegmentPause(const SegmentPause&) = delete;

 private:
  SegmentRun* run_;
};

}  // namespace tessera
