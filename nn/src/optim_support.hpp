#pragma once

#include <span>
#include <string>
#include <tessera/kernels/optim.hpp>
#include <tessera/nn/parameter.hpp>
#include <vector>

namespace tessera::optim {

using Names = std::vector<std::string>;

/// The same state for each parameter.
inline auto always(Names names) {
  return [names = std::move(names)](const nn::Parameter&) { return names; };
}

/// Changes as the kernels take them, state in the order of its names. (A template, since Change is
/// for optimisers alone.)
template <class Change>
kernels::OptimSegment segment_of(const Change& change) {
  kernels::OptimSegment segment;
  segment.parameter = change.value.mutable_local();
  segment.gradient = change.gradient.local();
  View* const states[] = {&segment.first, &segment.second, &segment.third};
  for (std::size_t s = 0; s < change.slots.size() && s < 3; ++s)
    *states[s] = change.slots[s].mutable_local();
  segment.rate = change.rate;
  segment.weight_decay = change.weight_decay;
  return segment;
}

template <class Change>
std::vector<kernels::OptimSegment> segments_of(const std::vector<Change>& changes) {
  std::vector<kernels::OptimSegment> segments;
  segments.reserve(changes.size());
  for (const Change& change : changes) segments.push_back(segment_of(change));
  return segments;
}

/// numbers[i] of all ranks together, in a pipeline those of all stages; one reduction. Every rank
/// of the model's mesh must call.
void reduce_numbers(std::span<double> numbers,
                    const std::vector<nn::Parameter>& parameters,
                    ReduceOp op = ReduceOp::kSum);

}  // namespace tessera::optim
