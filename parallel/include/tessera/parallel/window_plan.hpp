#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <tessera/core/dtype.hpp>
#include <tessera/core/edge.hpp>
#include <tessera/core/layout.hpp>
#include <vector>

namespace tessera::parallel {

/// A run of virtual coordinates of one dimension that shows consecutive elements of one part:
/// virtual `at.lo + i` is real `from.lo + i` (step 1), `from.hi - 1 - i` (step -1) or `from.lo`
/// (step 0, `from` has one element).
struct Segment {
  Interval at;
  Interval from;
  int step = 1;
  int part = 0;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// Cuts the virtual interval `need` of a dimension with boundaries `bounds` into segments, in
/// rising virtual order. Virtual coordinates without an element (EdgeRule::kZero) are in no
/// segment. Throws ShapeError when the rule asks for an element of an empty dimension.
std::vector<Segment> window_segments(Interval need, const Bounds& bounds, EdgeRule edge);

/// A box of elements that travels between two ranks; each element once, however often it is seen.
struct Parcel {
  int peer = 0;  ///< mesh rank on the other side
  Box box;       ///< real coordinates, inside the sender's part
  friend bool operator==(const Parcel&, const Parcel&) = default;
};

/// A box of virtual coordinates and the elements that it shows.
struct Image {
  int parcel = -1;  ///< index into the receives; -1: elements of this rank's own part
  Box at;           ///< virtual coordinates
  Box from;         ///< real coordinates; extent 1 where step 0
  std::array<std::int8_t, kMaxDims> step{};  ///< per dimension +1, -1 (mirrored) or 0 (repeated)
  friend bool operator==(const Image&, const Image&) = default;
};

/// What one rank receives and sends, and where it sees it, so that it can read its virtual box
/// `needed` of a tensor of which it owns `owned`. What it needs and owns in place is in no image.
///
/// Exactly the elements that are needed and not owned travel. Receives and sends are sorted by
/// peer, then by position (row-major), so the parcels that r receives from s are, in order, those
/// that s sends to r. All parcels of one peer make one message.
struct ExchangePlan {
  Shape global;
  Box owned;
  Box needed;
  std::vector<Parcel> receives;
  std::vector<Parcel> sends;
  std::vector<Image> images;  ///< disjoint

  bool communicates() const { return !receives.empty() || !sends.empty(); }
  std::int64_t receive_bytes(DType dtype) const;
  std::int64_t send_bytes(DType dtype) const;
  /// Number of distinct peers.
  int receive_messages() const;
  int send_messages() const;
};

/// The virtual input coordinates that a mesh rank needs along a dimension.
using NeededFunction = std::function<Interval(int dim, int rank)>;

/// The exchange of mesh rank `rank` that gives every rank of the mesh what it needs of a tensor
/// with layout `input`; a pure function of global metadata, without communication.
///
/// `edges` has one rule per dimension. `needed(d, r)` may reach below 0 and beyond the shape; for a
/// dimension without a window it is the owned interval. It may depend on r only through the axes
/// that split dimension d of the input and those that split no dimension of it: then the plan is
/// the product of one list per dimension, and costs O(sum of parts + images of this rank).
/// Axes that do not split the input keep to themselves (owners have the receiver's coordinates).
ExchangePlan plan_window(const Layout& input,
                         std::span<const EdgeRule> edges,
                         int rank,
                         const NeededFunction& needed);

/// The largest part of `work` whose need is owned, for one dimension of size n: it can be computed
/// before the exchange is done. Under EdgeRule::kZero what lies outside [0, n) is not needed.
/// `need` must grow with its argument (both ends monotone); it is called O(log work) times.
Interval interior_interval(Interval work,
                           Interval owned,
                           std::int64_t n,
                           EdgeRule edge,
                           const std::function<Interval(Interval)>& need);

/// A work box cut into the part that needs no exchange and the few disjoint boxes around it.
struct WorkSplit {
  Box interior;
  std::vector<Box> boundary;
};

/// Cuts `work` by one interior interval per dimension; an empty interior leaves `work` as the only
/// boundary box.
WorkSplit split_work(const Box& work, std::span<const Interval> interior);

}  // namespace tessera::parallel
