#include "segment.hpp"

#include <algorithm>
#include <tessera/core/scope.hpp>

namespace tessera {

namespace {

[[noreturn]] void throw_other_calls(const char* first, const char* second) {
  throw UsageError(str("recompute: the second run came to ", second, " where the first had ", first,
                       " (it has to call the same ops in the same order). Let the function depend "
                       "on nothing that changes between forward and backward, and draw random "
                       "keys through replayed()."));
}

const char* name_of(const OpDef* op) { return op != nullptr ? op->name : "another recompute()"; }

std::vector<std::string> joined(std::vector<std::string> keep, const SegmentRun* outer) {
  if (outer != nullptr) keep.insert(keep.end(), outer->keep().begin(), outer->keep().end());
  return keep;
}

}  // namespace

Segment::~Segment() {
  if (parent) parent->entries[place].child = nullptr;
}

void Segment::fill() {
  if (state == State::kFilled) return;
  if (state == State::kOpen) {
    throw UsageError(
        "recompute: a gradient is taken inside of the function (its values are not kept yet). Take "
        "it outside, or call this function plainly.");
  }
  if (parent) parent->fill();
  {
    const EnableGrad guard;
    const LayerScope scope(layer);
    SegmentRun(this, SegmentRun::Mode::kFill, keep).run(function, inputs);
  }
  state = State::kFilled;
  function = {};
  inputs.clear();
}

SegmentRun::SegmentRun(Segment* segment, Mode mode, const std::vector<std::string>& keep)
    : segment_(segment), mode_(mode), keep_(keep), outer_(segment_run) {
  if (mode == Mode::kFill) {  // may start anywhere: inside the backward of another segment
    replay_ = segment->replay.get();
    key_ = segment->first_key;
    kept_ = segment->first_kept;
  } else {
    replay_ = outer_ != nullptr ? outer_->replay_ : segment->replay.get();
    key_ = outer_ != nullptr ? outer_->key_ : 0;
    kept_ = outer_ != nullptr ? outer_->kept_ : 0;
  }
  segment_run = this;
}

SegmentRun::~SegmentRun() {
  segment_run = outer_;
  if (outer_ == nullptr || mode_ == Mode::kFill) return;
  outer_->key_ = key_;
  outer_->kept_ = kept_;
}

std::vector<Tensor> SegmentRun::run(const RecomputedFunction& f, std::span<const Tensor> inputs) {
  std::vector<Tensor> outputs = f(inputs);
  const bool again = mode_ == Mode::kRelink || mode_ == Mode::kFill;
  if (again && entry_ < segment_->entries.size())
    throw_other_calls(name_of(segment_->entries[entry_].op), "its end");
  return outputs;
}

Segment::Entry& SegmentRun::next(const OpDef* op) {
  std::vector<Segment::Entry>& entries = segment_->entries;
  if (entry_ == entries.size()) throw_other_calls("its end", name_of(op));
  if (entries[entry_].op != op) throw_other_calls(name_of(entries[entry_].op), name_of(op));
  return entries[entry_++];
}

void SegmentRun::record(const OpDef& op,
                        std::span<const Tensor> inputs,
                        const ArgsRef& args,
                        Outputs& outputs) {
  switch (mode_) {
    case Mode::kDead:
      return;
    case Mode::kOutline: {
      const Ref<Node> node = outline(op, inputs, args, outputs, *segment_);
      if (node) {
        node->place = segment_->entries.size();
        node->segment = Ref<Segment>(segment_);
        link(node, outputs);
      }
      segment_->entries.push_back({&op, node.get(), nullptr});
      return;
    }
    case Mode::kRelink:
    case Mode::kFill: {
      const Ref<Node> node(next(&op).node);
      if (!node) return;
      if (mode_ == Mode::kFill) {
        check_versions(*node, inputs);
        save(*node, inputs, outputs);
      }
      link(node, outputs);
      return;
    }
  }
}

void SegmentRun::check_versions(const Node& node, std::span<const Tensor> inputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if ((node.op->saved_inputs >> i & 1u) == 0 || !inputs[i].defined()) continue;
    if (inputs[i].version() == node.inputs[i].saved.version) continue;
    throw UsageError(
        str(node.op->name, ": input ", i, " ", inputs[i].str(),
            " was changed in place after it was used (computing it again would give another "
            "gradient). Change a copy, or change it after backward()."));
  }
}

void SegmentRun::share(Segment& child) const {
  child.replay = Ref<Replay>(replay_);
  child.first_key = key_;
  child.first_kept = kept_;
}

bool SegmentRun::keeps(const OpDef& op) const {
  return std::any_of(keep_.begin(), keep_.end(),
                     [&](const std::string& k) { return k == op.name; });
}

Outputs SegmentRun::kept_outputs() {
  Outputs outputs;
  if (mode_ == Mode::kOutline) return outputs;
  Outputs& kept = replay_->kept[kept_++];
  for (int j = 0; j < kept.size(); ++j) outputs.push_back(kept[j].detach());
  if (mode_ == Mode::kFill) kept = {};
  return outputs;
}

void SegmentRun::keep_outputs(const Outputs& outputs) {
  Outputs& kept = replay_->kept.emplace_back();
  for (int j = 0; j < outputs.size(); ++j) kept.push_back(outputs[j].detach());
  ++kept_;
}

RandomKey SegmentRun::key(const std::function<RandomKey()>& draw) {
  if (mode_ == Mode::kOutline) replay_->keys.push_back(draw());
  return replay_->keys[key_++];
}

std::vector<Tensor> recompute(const RecomputedFunction& f,
                              const std::vector<Tensor>& inputs,
                              const RecomputeOptions& options) {
  if (!grad_enabled()) return f(inputs);
  using Mode = SegmentRun::Mode;
  SegmentRun* const outer = segment_run;
  if (outer != nullptr && outer->mode() != Mode::kOutline) {
    // A call inside the second run of another: it stands on the tape already.
    const Ref<Segment> segment(outer->mode() == Mode::kDead ? nullptr : outer->next_child());
    if (!segment)
      return SegmentRun(nullptr, Mode::kDead, joined(options.keep, outer)).run(f, inputs);
    if (outer->mode() == Mode::kFill) {
      segment->function = f;
      segment->inputs = inputs;
    }
    return SegmentRun(segment.get(), Mode::kRelink, segment->keep).run(f, inputs);
  }
  const Ref<Segment> segment(new Segment);
  segment->keep = joined(options.keep, outer);
  segment->layer = current_scope().layer;
  if (outer != nullptr) {
    segment->parent = Ref<Segment>(outer->segment());
    segment->place = segment->parent->entries.size();
    segment->parent->entries.push_back({nullptr, nullptr, segment.get()});
    outer->share(*segment);
  } else {
    segment->replay = Ref<Replay>(new Replay);
    segment->function = f;
    segment->inputs = inputs;
  }
  std::vector<Tensor> outputs =
      SegmentRun(segment.get(), Mode::kOutline, segment->keep).run(f, inputs);
  segment->state = Segment::State::kOutlined;
  return outputs;
}

Tensor recompute(const std::function<Tensor(const Tensor&)>& f,
                 const Tensor& x,
                 const RecomputeOptions& options) {
  if (!grad_enabled()) return f(x);
  const RecomputedFunction list = [f](std::span<const Tensor> inputs) {
    return std::vector<Tensor>{f(inputs[0])};
  };
  return recompute(list, std::vector<Tensor>{x}, options)[0];
}

RandomKey replayed(const std::function<RandomKey()>& draw) {
  return segment_run != nullptr ? segment_run->key(draw) : draw();
}

}  // namespace tessera
