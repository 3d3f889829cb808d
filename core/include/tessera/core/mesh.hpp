#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// This process among all processes of the job; `Runtime` sets it, the default is one process
/// alone.
struct Process {
  int rank = 0;
  int count = 1;
};
const Process& process();
void set_process(Process process);

/// Set of mesh axes, bit i = axis i.
using AxisMask = std::uint32_t;

/// A named axis of a mesh and the number of ranks along it.
struct MeshAxis {
  std::string name;
  int size = 1;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

/// Ranks arranged on a grid with named axes, e.g. `Mesh::world({{"data", 2}, {"h", 2}, {"w", 4}})`.
///
/// Pure geometry: no communication. Mesh ranks run row-major over the axes, the last axis
/// innermost. Equal meshes are the same object (a Mesh is a cheap handle, compared by pointer).
class Mesh {
 public:
  /// An undefined handle.
  Mesh() = default;
  /// All processes of the job; throws UsageError when the sizes do not multiply to their number.
  static Mesh world(const std::vector<MeshAxis>& axes);
  /// The given processes (in mesh order); throws UsageError on duplicates or a wrong count.
  static Mesh of(const std::vector<int>& processes, const std::vector<MeshAxis>& axes);
  /// This process alone; has no axes.
  static Mesh self();
  /// `process` alone.
  static Mesh single(int process);

  bool defined() const { return data_ != nullptr; }
  /// Number of ranks.
  int size() const;
  /// Rank of this process in the mesh, or -1 when it is not part of it.
  int rank() const;
  /// Process that holds mesh rank `rank`.
  int process_of(int rank) const;
  int axis_count() const;
  const std::string& axis_name(int axis) const;
  int axis_size(int axis) const;
  /// Index of a named axis; throws UsageError listing the names when there is none.
  int axis(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// Mask of all axes.
  AxisMask all_axes() const;
  /// Position of `rank` along `axis`.
  int coordinate(int rank, int axis) const;
  /// Rank at these coordinates.
  int rank_at(std::span<const int> coordinates) const;
  /// `rank` moved to `coordinate` along `axis`.
  int with_coordinate(int rank, int axis, int coordinate) const;
  /// Number of ranks along all axes of `mask` together.
  int parts(AxisMask mask) const;
  /// Mesh ranks that share every coordinate of `rank` outside `mask`, in rank order.
  std::vector<int> group(int rank, AxisMask mask) const;
  /// The ranks whose position along `axis` is `coordinate`, without that axis: one stage of a
  /// pipeline, say.
  Mesh slice(std::string_view axis, int coordinate) const;

  /// Content hash, the same on every rank and in every run.
  std::uint64_t hash() const;
  /// `data=2 h=2 w=4`
  std::string str() const;
  friend bool operator==(const Mesh& a, const Mesh& b) { return a.data_ == b.data_; }

 private:
  struct Data;
  explicit Mesh(const Data* data) : data_(data) {}
  const Data* data_ = nullptr;  // interned, lives as long as the process
};

}  // namespace tessera
