#pragma once

#include <cstdint>
#include <string>
#include <tessera/core/mesh.hpp>
#include <vector>

namespace tessera::parallel {

/// The processes that take part in a collective, in a fixed order.
///
/// A cheap handle: equal groups are the same object, compared by pointer. Making one does not
/// communicate.
class Group {
 public:
  /// This process alone.
  Group();
  /// The given processes; their order is the order of sums and of gathered pieces. Throws
  /// UsageError on an empty list, duplicates or processes that the job does not have.
  static Group of(const std::vector<int>& processes);
  /// The processes of `mesh` that share every coordinate of this process outside `axes`, in mesh
  /// order. Throws UsageError when this process is not part of the mesh.
  static Group of(const Mesh& mesh, AxisMask axes);
  /// All processes of the job.
  static Group world();

  int size() const;
  /// Place of this process in the group; -1 when it is not part of it.
  int rank() const;
  int process_of(int rank) const { return processes()[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& processes() const;
  /// Content hash, the same on every process and in every run.
  std::uint64_t hash() const;
  /// `{0, 2, 4}`
  std::string str() const;
  friend bool operator==(const Group& a, const Group& b) { return a.data_ == b.data_; }

 private:
  struct Data;
  explicit Group(const Data* data) : data_(data) {}
  const Data* data_;  // interned, lives as long as the process
};

}  // namespace tessera::parallel
