#pragma once

#include <cstdint>
#include <functional>
#include <tessera/core/view.hpp>
#include <vector>

namespace tessera::data {

struct AugmentOptions {
  Shape shape;         ///< points of the whole field per dimension (1 to 3)
  Shape crop = {};     ///< points of a sample; empty: the whole field
  bool flips = false;  ///< mirrors half of the samples along each dimension
  /// Turns samples by multiples of 90 degrees (2-D: 4, 3-D: 24 rotations, all as likely). The crop
  /// must be as long in each dimension.
  bool turns = false;
  /// Dimensions in which crops run across the edge.
  std::vector<bool> periodic = {};
  std::uint64_t seed = 0;
};

/// Random crops, mirror images and rotations of samples, decided by (seed, epoch, global number of
/// the sample) alone: every rank of any mesh sees its part of the same sample. Components of
/// vectors do not turn with it.
class Augmentation {
 public:
  /// Throws UsageError when crop and field do not fit.
  explicit Augmentation(const AugmentOptions& options);

  /// What is done with one sample: y[i] = x[j], j[d] = start[d] + k, where k = i[to[d]] or,
  /// mirrored, crop - 1 - i[to[d]].
  struct Choice {
    Index start;
    Dims to;
    std::vector<bool> mirrored;
  };
  Choice choice(std::int64_t epoch, std::int64_t sample) const;
  /// Points of a sample.
  const Shape& shape() const { return options_.crop; }

  /// Reads the part `box` of a sample into `out`: calls `read(source, into)` once, where `source`
  /// is a box of the field (beyond its edge in periodic dimensions) and `into` a view on the values
  /// of `out` in the field's own directions, with negative strides where mirrored.
  void read(const Choice& choice,
            const Box& box,
            const View& out,
            const std::function<void(const Box& source, const View& into)>& read) const;

 private:
  AugmentOptions options_;
};

}  // namespace tessera::data
