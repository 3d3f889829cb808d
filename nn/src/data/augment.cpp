#include <algorithm>
#include <tessera/kernels/random.hpp>
#include <tessera/nn/data/augment.hpp>
#include <utility>

#include "data/draws.hpp"

namespace tessera::data {
namespace {

constexpr std::uint64_t kAugmentKey = 0x6175676d656e74ull;  // "augment": draws of their own

/// Whether a permutation is an odd number of swaps.
bool odd(const Dims& permutation) {
  bool result = false;
  for (int a = 0; a < permutation.size(); ++a)
    for (int b = a + 1; b < permutation.size(); ++b)
      result = result != (permutation[a] > permutation[b]);
  return result;
}

}  // namespace

Augmentation::Augmentation(const AugmentOptions& options) : options_(options) {
  AugmentOptions& o = options_;
  const int dims = o.shape.size();
  if (o.crop.empty()) o.crop = o.shape;
  o.periodic.resize(static_cast<std::size_t>(dims), false);
  if (dims < 1 || dims > 3 || o.crop.size() != dims)
    throw UsageError(str("data: crops of ", o.crop, " of fields of ", o.shape,
                         ". Use 1 to 3 dimensions, as many for both."));
  for (int d = 0; d < dims; ++d) {
    if (o.crop[d] < 1 || o.crop[d] > o.shape[d])
      throw UsageError(
          str("data: crops of ", o.crop, " do not fit fields of ", o.shape, ". Use smaller ones."));
    if (o.turns && o.crop[d] != o.crop[0])
      throw UsageError(str("data: crops of ", o.crop,
                           " cannot be turned. Make them as long in each dimension."));
  }
}

Augmentation::Choice Augmentation::choice(std::int64_t epoch, std::int64_t sample) const {
  const int dims = options_.shape.size();
  Draws draws(options_.seed ^ kAugmentKey, static_cast<std::uint64_t>(epoch),
              static_cast<std::uint64_t>(sample));
  Choice c;
  // Always as many draws, so that an option changes nothing that belongs to another.
  for (int d = 0; d < dims; ++d) {
    const bool periodic = options_.periodic[static_cast<std::size_t>(d)];
    const std::int64_t starts = periodic && options_.crop[d] < options_.shape[d]
                                    ? options_.shape[d]
                                    : options_.shape[d] - options_.crop[d] + 1;
    c.start.push_back(draws.below(starts));
    c.to.push_back(d);
  }
  for (int d = 0; d < dims; ++d) {
    const bool mirror = draws.below(2) == 1;
    c.mirrored.push_back(options_.flips && mirror);
  }
  for (int d = dims - 1; d > 0; --d) {
    const auto other = static_cast<int>(draws.below(d + 1));
    if (options_.turns) std::swap(c.to[d], c.to[other]);
  }
  // A rotation has as many mirror images as its permutation has swaps, modulo two.
  bool reflected = odd(c.to);
  for (int d = 0; d + 1 < dims; ++d) {
    const bool mirror = draws.below(2) == 1;
    if (!options_.turns || !mirror) continue;
    c.mirrored[static_cast<std::size_t>(d)] = !c.mirrored[static_cast<std::size_t>(d)];
    reflected = !reflected;
  }
  if (reflected) c.mirrored.back() = !c.mirrored.back();
  return c;
}

void Augmentation::read(const Choice& choice,
                        const Box& box,
                        const View& out,
                        const std::function<void(const Box&, const View&)>& read) const {
  if (box.dims() != shape().size() || !Box::whole(shape()).contains(box) ||
      out.shape != box.shape())
    throw ShapeError(str("data: part ", box.str(), " of samples of ", shape(),
                         " into a view of shape ", out.shape, "."));
  if (box.empty()) return;
  Box source = box;
  View view = out;
  std::int64_t origin = 0;
  for (int d = 0; d < box.dims(); ++d) {
    const auto i = static_cast<int>(choice.to[d]);
    view.shape[d] = out.shape[i];
    if (choice.mirrored[static_cast<std::size_t>(d)]) {
      const std::int64_t end = choice.start[d] + shape()[d];
      source.set(d, {end - box.hi[i], end - box.lo[i]});
      origin += (out.shape[i] - 1) * out.strides[i];
      view.strides[d] = -out.strides[i];
    } else {
      source.set(d, {choice.start[d] + box.lo[i], choice.start[d] + box.hi[i]});
      view.strides[d] = out.strides[i];
    }
  }
  view.data = out.as<std::byte>() + origin * static_cast<std::int64_t>(size_of(out.dtype));
  read(source, view);
}

}  // namespace tessera::data
