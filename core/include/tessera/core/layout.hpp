#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tessera/core/box.hpp>
#include <tessera/core/mesh.hpp>
#include <tessera/core/ref.hpp>
#include <vector>

namespace tessera {

/// How the pieces of a Partial value combine.
enum class ReduceOp : std::uint8_t { kSum, kMax, kMin };
const char* name(ReduceOp op);

/// Boundaries `0 = b_0 <= b_1 <= ... <= b_P = n` of the P parts of a dimension of size n; parts may
/// be empty.
using Bounds = std::vector<std::int64_t>;

/// Boundaries of `parts` parts of `n` rows, balanced in blocks of `multiple` rows (the last block
/// may be short).
Bounds balanced_bounds(std::int64_t n, int parts, std::int64_t multiple = 1);

/// How one dimension is split: by which mesh axes (outermost first) and where. No axes: not split.
struct DimSplit {
  std::vector<int> axes;
  Bounds bounds;
  friend bool operator==(const DimSplit&, const DimSplit&) = default;
};

/// The decomposition of a tensor: mesh, global shape, the split of each dimension, and the axes on
/// which the value is a sum (or maximum, minimum) not yet taken. Axes that neither split nor are
/// Partial replicate.
///
/// Immutable, interned and identical on every rank: equal layouts are the same object while alive,
/// so comparison is one of pointers. Ids are never reused.
class Layout {
  struct Data : SharedRefCounted {
    Mesh mesh;
    Shape shape;
    std::vector<DimSplit> splits;
    AxisMask split_axes = 0;
    AxisMask partial = 0;
    ReduceOp op = ReduceOp::kSum;
    std::uint64_t hash = 0;
    std::uint64_t id = 0;
    Box local_box;
    Shape local_shape;

    bool equals(const Data& other) const;
    void dispose() const override;
  };

 public:
  Layout() = default;
  /// Throws LayoutError when an axis occurs twice or boundaries do not cover the shape.
  static Layout make(const Mesh& mesh,
                     const Shape& shape,
                     std::vector<DimSplit> splits,
                     AxisMask partial = 0,
                     ReduceOp partial_op = ReduceOp::kSum);
  /// Every rank holds everything.
  static Layout replicated(const Mesh& mesh, const Shape& shape);

  bool defined() const { return static_cast<bool>(data_); }
  const Mesh& mesh() const { return data_->mesh; }
  const Shape& shape() const { return data_->shape; }
  int dims() const { return shape().size(); }
  const DimSplit& split(int dim) const { return data_->splits[static_cast<std::size_t>(dim)]; }
  bool is_split(int dim) const { return !split(dim).axes.empty(); }
  /// Number of parts of a dimension; 1 when not split.
  int parts(int dim) const;
  /// All axes that split some dimension.
  AxisMask split_axes() const { return data_->split_axes; }
  AxisMask axes_of(int dim) const;
  AxisMask partial_axes() const { return data_->partial; }
  ReduceOp partial_op() const { return data_->op; }
  bool is_replicated() const { return split_axes() == 0 && partial_axes() == 0; }

  /// Which part of `dim` mesh rank `rank` owns.
  int part_of(int dim, int rank) const;
  Interval owned(int dim, int rank) const;
  /// What mesh rank `rank` owns, in global coordinates.
  Box owned(int rank) const;
  /// What this process owns; an empty box when it is not part of the mesh.
  const Box& local_box() const { return data_->local_box; }
  const Shape& local_shape() const { return data_->local_shape; }

  /// The same with Partial replaced by Replicate: the layout of gradients (DESIGN: dual).
  Layout dual() const;
  Layout with_partial(AxisMask partial, ReduceOp op = ReduceOp::kSum) const;
  /// Same splits, another dimension `dim` (size and boundaries); an unsplit one when `split.axes`
  /// is empty.
  Layout with_dim(int dim, std::int64_t size, const DimSplit& split) const;
  /// This layout with dimension `dim` removed or a new one inserted before it; throws LayoutError
  /// when a removed one is split.
  Layout without_dim(int dim) const;
  Layout with_inserted_dim(int dim, std::int64_t size) const;

  std::uint64_t id() const { return data_ ? data_->id : 0; }
  /// Content hash, the same on every rank and in every run.
  std::uint64_t hash() const { return data_->hash; }
  /// `[4, 64/h, 64/w, 16] partial(data)`; uneven boundaries are spelled out.
  std::string str() const;
  friend bool operator==(const Layout& a, const Layout& b) { return a.data_ == b.data_; }

 private:
  explicit Layout(Ref<const Data> data);
  Ref<const Data> data_;
};

std::ostream& operator<<(std::ostream& out, const Layout& layout);

/// Options of Placement::resolve.
struct ResolveOptions {
  /// Domain boundaries become multiples of this, so that every level of a strided network aligns.
  std::int64_t multiple = 1;
};

/// The wish how a tensor shall be split, without sizes: `Placement(mesh).batch("data").domain(0,
/// "h").domain(1, "w")`.
class Placement {
 public:
  Placement() = default;
  explicit Placement(const Mesh& mesh) : mesh_(mesh) {}

  /// Splits dimension 0 (samples) over the axis. An axis that the mesh lacks is an error, as
  /// everywhere here.
  Placement batch(std::string_view axis) const;
  /// Splits domain dimension `d` (tensor dimension d + 1) over the axis.
  Placement domain(int d, std::string_view axis) const { return shard(d + 1, {axis}, true); }
  /// Splits tensor dimension `dim` over the axes together, outermost first. `domain` dimensions
  /// obey `multiple`.
  Placement shard(int dim, std::vector<std::string_view> axes, bool domain = false) const;
  /// Only the split of dimension 0: labels and other per-sample values.
  Placement batch_only() const;

  const Mesh& mesh() const { return mesh_; }
  /// The layout of a tensor of this shape; throws LayoutError when a split dimension does not
  /// exist.
  Layout resolve(const Shape& shape, const ResolveOptions& options = {}) const;
  std::string str() const;

 private:
  struct Entry {
    int dim;
    std::vector<int> axes;
    bool domain;
  };
  Mesh mesh_;
  std::vector<Entry> entries_;
};

}  // namespace tessera
