#include <algorithm>
#include <memory>
#include <tessera/core/error.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/parallel/group.hpp>
#include <unordered_map>

namespace tessera::parallel {

struct Group::Data {
  std::vector<int> processes;
  std::uint64_t hash = 0;
  // Groups made before the Runtime outlive the change of this process's number.
  mutable int rank = -1;
  mutable int rank_of_process = -1;
};

Group Group::of(const std::vector<int>& processes) {
  if (processes.empty()) {
    throw UsageError("group: no processes (a collective needs members). Name at least one.");
  }
  Hasher hasher;
  for (const int p : processes) hasher.add(static_cast<std::uint64_t>(p));
  const std::uint64_t hash = hasher.value();

  static std::unordered_multimap<std::uint64_t, std::unique_ptr<Data>> known;
  const auto [first, last] = known.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second->processes == processes) return Group(it->second.get());
  }
  std::vector<int> sorted = processes;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    throw UsageError("group: a process occurs twice. List each process once.");
  }
  if (sorted.front() < 0 || sorted.back() >= process().count) {
    throw UsageError(tessera::str(
        "group: process ", sorted.front() < 0 ? sorted.front() : sorted.back(),
        " does not exist (the job has ", process().count, "). Use processes of this job."));
  }
  auto data = std::make_unique<Data>();
  data->processes = processes;
  data->hash = hash;
  return Group(known.emplace(hash, std::move(data))->second.get());
}

Group::Group() {
  static const Data* self = nullptr;
  if (self == nullptr || self->processes.front() != process().rank) {
    self = of({process().rank}).data_;
  }
  data_ = self;
}

Group Group::of(const Mesh& mesh, AxisMask axes) {
  struct Entry {
    Mesh mesh;
    AxisMask axes;
    Group group;
  };
  static std::unordered_multimap<std::uint64_t, Entry> known;
  const std::uint64_t key = mesh.hash() ^ (0x9e3779b97f4a7c15u * (axes + 1u));
  const auto [first, last] = known.equal_range(key);
  for (auto it = first; it != last; ++it) {
    if (it->second.mesh == mesh && it->second.axes == axes) return it->second.group;
  }
  if (mesh.rank() < 0) {
    throw UsageError(tessera::str("group: this process is not part of the mesh ", mesh.str(),
                                  ". Only members may communicate on a mesh."));
  }
  std::vector<int> processes;
  for (const int r : mesh.group(mesh.rank(), axes)) processes.push_back(mesh.process_of(r));
  const Group group = of(processes);
  known.emplace(key, Entry{mesh, axes, group});
  return group;
}

Group Group::world() {
  std::vector<int> all(static_cast<std::size_t>(process().count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return of(all);
}

int Group::size() const { return static_cast<int>(data_->processes.size()); }

int Group::rank() const {
  const int self = process().rank;
  if (data_->rank_of_process != self) {
    const auto it = std::find(data_->processes.begin(), data_->processes.end(), self);
    data_->rank =
        it == data_->processes.end() ? -1 : static_cast<int>(it - data_->processes.begin());
    data_->rank_of_process = self;
  }
  return data_->rank;
}

const std::vector<int>& Group::processes() const { return data_->processes; }
std::uint64_t Group::hash() const { return data_->hash; }

std::string Group::str() const {
  if (size() > 2 && processes().back() - processes().front() == size() - 1 &&
      std::is_sorted(processes().begin(), processes().end())) {
    return tessera::str("{", processes().front(), "..", processes().back(), "}");
  }
  std::string text = "{";
  for (int r = 0; r < size(); ++r) text += tessera::str(r > 0 ? ", " : "", process_of(r));
  return text + "}";
}

}  // namespace tessera::parallel
