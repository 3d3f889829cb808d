#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <tessera/core/layout.hpp>
#include <tessera/parallel/redistribution_plan.hpp>
#include <unordered_map>
#include <utility>

namespace tessera::parallel {

/// The plans used last, by one or two layouts and a 64-bit number that stands for all else that the
/// plan depends on. It owns the layouts of its plans, so their ids stay; at most `capacity` plans
/// are kept, whatever sizes come by. For the calling thread of the job only.
template <class Plan>
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  /// The plan of this key, made by `make()` when it is not here.
  template <class Make>
  std::shared_ptr<const Plan> get(const Layout& a,
                                  const Layout& b,
                                  std::uint64_t key,
                                  Make&& make) {
    const Key wanted{a.id(), b.id(), key};
    if (const auto it = index_.find(wanted); it != index_.end()) {
      ++hits_;
      entries_.splice(entries_.begin(), entries_, it->second);
      return it->second->plan;
    }
    ++misses_;
    auto plan = std::make_shared<const Plan>(make());
    if (capacity_ == 0) return plan;
    if (entries_.size() == capacity_) {
      index_.erase(entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({wanted, a, b, plan});
    index_.emplace(wanted, entries_.begin());
    return plan;
  }

  std::size_t size() const { return entries_.size(); }
  std::size_t capacity() const { return capacity_; }
  std::int64_t hits() const { return hits_; }
  std::int64_t misses() const { return misses_; }
  void clear() {
    index_.clear();
    entries_.clear();
  }

 private:
  struct Key {
    std::uint64_t a;
    std::uint64_t b;
    std::uint64_t key;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& k) const {
      return static_cast<std::size_t>((k.a * 0x9e3779b97f4a7c15u ^ k.b) * 0xbf58476d1ce4e5b9u ^
                                      k.key);
    }
  };
  struct Entry {
    Key key;
    Layout a;
    Layout b;
    std::shared_ptr<const Plan> plan;
  };
  std::size_t capacity_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Key, typename std::list<Entry>::iterator, KeyHash> index_;
  std::int64_t hits_ = 0;
  std::int64_t misses_ = 0;
};

/// The cache behind the function below (1,024 plans).
PlanCache<RedistributionPlan>& redistribution_plans();

/// plan_redistribution() for this process, remembered. Throws LayoutError when this process is not
/// part of the mesh.
std::shared_ptr<const RedistributionPlan> cached_redistribution_plan(const Layout& from,
                                                                     const Layout& to);

}  // namespace tessera::parallel
