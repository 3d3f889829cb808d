#include <algorithm>
#include <memory>
#include <mutex>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/core/mesh.hpp>

namespace tessera {

namespace {
Process this_process;
}  // namespace

const Process& process() { return this_process; }
void set_process(Process process) { this_process = process; }

struct Mesh::Data {
  std::vector<MeshAxis> axes;
  std::vector<int> strides;
  std::vector<int> processes;
  std::uint64_t hash = 0;
};

Mesh Mesh::of(const std::vector<int>& processes, const std::vector<MeshAxis>& axes) {
  std::int64_t expected = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].size < 1) {
      throw UsageError(tessera::str("mesh: axis '", axes[i].name, "' has size ", axes[i].size,
                                    ". Use at least 1."));
    }
    expected *= axes[i].size;
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[j].name == axes[i].name) {
        throw UsageError(
            tessera::str("mesh: axis '", axes[i].name, "' occurs twice. Name each axis once."));
      }
    }
  }
  auto data = std::make_unique<Data>();
  data->axes = axes;
  data->processes = processes;
  if (axes.size() > 16) throw UsageError("mesh: more than 16 axes. Merge some.");
  if (expected != static_cast<std::int64_t>(processes.size())) {
    throw UsageError(tessera::str("mesh: axes describe ", expected, " ranks but there are ",
                                  processes.size(),
                                  ". Start that many ranks, or change the sizes."));
  }
  std::vector<int> sorted = processes;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw UsageError("mesh: a process occurs twice. List each process once.");
  }
  data->strides.assign(axes.size(), 1);
  for (int i = static_cast<int>(axes.size()) - 2; i >= 0; --i) {
    const auto u = static_cast<std::size_t>(i);
    data->strides[u] = data->strides[u + 1] * axes[u + 1].size;
  }
  Hasher hasher;
  for (const MeshAxis& axis : axes) {
    hasher.add_bytes(axis.name.data(), axis.name.size());
    hasher.add(static_cast<std::uint64_t>(axis.size));
  }
  for (const int p : processes) hasher.add(static_cast<std::uint64_t>(p));
  data->hash = hasher.value();

  static std::mutex mutex;
  static std::vector<std::unique_ptr<Data>> known;
  const std::lock_guard lock(mutex);
  for (const auto& other : known) {
    if (other->hash == data->hash && other->axes == axes && other->processes == processes)
      return Mesh(other.get());
  }
  known.push_back(std::move(data));
  return Mesh(known.back().get());
}

Mesh Mesh::world(const std::vector<MeshAxis>& axes) {
  std::vector<int> all(static_cast<std::size_t>(process().count));
  std::iota(all.begin(), all.end(), 0);
  return of(all, axes);
}

Mesh Mesh::self() { return single(process().rank); }
Mesh Mesh::single(int process) { return of({process}, {}); }

int Mesh::size() const { return static_cast<int>(data_->processes.size()); }

int Mesh::rank() const {
  const auto& all = data_->processes;
  const auto mine = static_cast<std::size_t>(process().rank);
  if (mine < all.size() && all[mine] == process().rank) return process().rank;  // the world mesh
  const auto it = std::find(all.begin(), all.end(), process().rank);
  return it == all.end() ? -1 : static_cast<int>(it - all.begin());
}

int Mesh::process_of(int rank) const { return data_->processes[static_cast<std::size_t>(rank)]; }
int Mesh::axis_count() const { return static_cast<int>(data_->axes.size()); }
const std::string& Mesh::axis_name(int axis) const {
  return data_->axes[static_cast<std::size_t>(axis)].name;
}
int Mesh::axis_size(int axis) const { return data_->axes[static_cast<std::size_t>(axis)].size; }

bool Mesh::has_axis(std::string_view name) const {
  return std::any_of(data_->axes.begin(), data_->axes.end(),
                     [&](const MeshAxis& a) { return a.name == name; });
}

int Mesh::axis(std::string_view name) const {
  for (int i = 0; i < axis_count(); ++i)
    if (axis_name(i) == name) return i;
  throw UsageError(
      tessera::str("mesh: no axis '", name, "' (the axes are ", str(), "). Use one of them."));
}

AxisMask Mesh::all_axes() const { return (AxisMask{1} << axis_count()) - 1; }

int Mesh::coordinate(int rank, int axis) const {
  return rank / data_->strides[static_cast<std::size_t>(axis)] % axis_size(axis);
}

int Mesh::rank_at(std::span<const int> coordinates) const {
  int rank = 0;
  for (std::size_t i = 0; i < coordinates.size(); ++i) rank += coordinates[i] * data_->strides[i];
  return rank;
}

int Mesh::with_coordinate(int rank, int axis, int coordinate) const {
  return rank + (coordinate - this->coordinate(rank, axis)) *
                    data_->strides[static_cast<std::size_t>(axis)];
}

int Mesh::parts(AxisMask mask) const {
  int parts = 1;
  for (int a = 0; a < axis_count(); ++a)
    if (mask >> a & 1u) parts *= axis_size(a);
  return parts;
}

std::vector<int> Mesh::group(int rank, AxisMask mask) const {
  std::vector<int> ranks{rank};
  for (int a = 0; a < axis_count(); ++a) {
    if (!(mask >> a & 1u)) continue;
    std::vector<int> grown;
    for (const int r : ranks)
      for (int c = 0; c < axis_size(a); ++c) grown.push_back(with_coordinate(r, a, c));
    ranks = std::move(grown);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Mesh Mesh::slice(std::string_view axis, int coordinate) const {
  const int index = this->axis(axis);
  if (coordinate < 0 || coordinate >= axis_size(index)) {
    throw UsageError(tessera::str("mesh: coordinate ", coordinate, " is outside axis '", axis,
                                  "' (", str(), ")."));
  }
  std::vector<MeshAxis> axes = data_->axes;
  axes.erase(axes.begin() + index);
  std::vector<int> processes;
  for (int r = 0; r < size(); ++r)
    if (this->coordinate(r, index) == coordinate) processes.push_back(process_of(r));
  return of(processes, axes);
}

std::uint64_t Mesh::hash() const { return data_->hash; }

std::string Mesh::str() const {
  std::string text;
  for (const MeshAxis& a : data_->axes)
    text += tessera::str(text.empty() ? "" : " ", a.name, "=", a.size);
  return text.empty() ? "one rank" : text;
}

}  // namespace tessera
