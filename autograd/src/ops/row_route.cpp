#include "row_route.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <tessera/core/box.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera {

namespace {

std::vector<std::int64_t> local_indices(const Tensor& index) {
  const View view = index.local();
  std::vector<std::int64_t> values(static_cast<std::size_t>(view.size()));
  for (std::int64_t i = 0; i < view.size(); ++i) {
    const std::int64_t at = i * view.strides[0];
    values[static_cast<std::size_t>(i)] =
        view.dtype == DType::kInt64 ? view.as<std::int64_t>()[at] : view.as<std::int32_t>()[at];
  }
  return values;
}

std::vector<std::int64_t> bytes_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> bytes = counts;
  for (std::int64_t& b : bytes) b *= static_cast<std::int64_t>(sizeof(std::int64_t));
  return bytes;
}

/// The route of an index into rows in their own order.
RowRoute route_of(const char* op, const Tensor& index, const Layout& rows, AxisMask axes) {
  require_data(op, rows);
  const Mesh& mesh = rows.mesh();
  const std::vector<std::int64_t> wanted = local_indices(index);
  const std::int64_t n = rows.shape()[0];
  const bool valid = std::all_of(wanted.begin(), wanted.end(),
                                 [n](std::int64_t row) { return row >= 0 && row < n; });
  std::vector<Interval> owned;
  for (const int member : mesh.group(mesh.rank(), axes)) owned.push_back(rows.owned(0, member));
  return make_route(op, parallel::Group::of(mesh, axes), wanted, owned, valid, index.layout(),
                    rows);
}

struct Entry {
  Tensor index;  // held, so that its identity is not used again
  std::uint32_t version;
  Layout rows;
  std::shared_ptr<const RowRoute> route;
};

constexpr std::size_t kRemembered = 16;

}  // namespace

void require_data(const char* op, const Layout& rows) {
  if (dry_run()) {
    throw NotSupported(str(op, ": rows of ", rows,
                           " by an index that is split, too, have no plan "
                           "without data (the index decides what is sent). Measure a real step."));
  }
}

RowRoute make_route(const char* op,
                    const parallel::Group& group,
                    const std::vector<std::int64_t>& wanted,
                    const std::vector<Interval>& owned,
                    bool valid,
                    const Layout& index,
                    const Layout& rows) {
  RowRoute route;
  route.group = group;
  const std::size_t count = owned.size();

  route.unique = wanted;
  std::erase_if(route.unique, [](std::int64_t row) { return row < 0; });
  std::sort(route.unique.begin(), route.unique.end());
  route.unique.erase(std::unique(route.unique.begin(), route.unique.end()), route.unique.end());

  // Parts follow each other, but members need not be in the order of the parts.
  std::vector<std::int64_t> ordered;
  ordered.reserve(route.unique.size());
  std::vector<std::int64_t> start(count);
  route.want_counts.assign(count, 0);
  for (std::size_t r = 0; r < count; ++r) {
    start[r] = static_cast<std::int64_t>(ordered.size());
    const auto lo = std::lower_bound(route.unique.begin(), route.unique.end(), owned[r].lo);
    const auto hi = std::lower_bound(lo, route.unique.end(), owned[r].hi);
    ordered.insert(ordered.end(), lo, hi);
    route.want_counts[r] = hi - lo;
  }

  // A negative count tells the others of an index out of range: all throw together.
  std::vector<std::int64_t> counts = route.want_counts;
  if (!valid) std::fill(counts.begin(), counts.end(), -1);
  route.serve_counts.assign(count, 0);
  const std::vector<std::int64_t> one(count, sizeof(std::int64_t));
  parallel::all_to_all(route.group, counts.data(), one, route.serve_counts.data(), one,
                       {op, rows, {}})
      .wait();
  if (std::find(route.serve_counts.begin(), route.serve_counts.end(), -1) !=
      route.serve_counts.end()) {
    throw ShapeError(str(op, ": an index of ", index, " is outside the rows of ", rows,
                         " on some rank. Check the indices."));
  }

  std::int64_t total = 0;
  for (const std::int64_t c : route.serve_counts) total += c;
  route.served.resize(static_cast<std::size_t>(total));
  parallel::all_to_all(route.group, ordered.data(), bytes_of(route.want_counts),
                       route.served.data(), bytes_of(route.serve_counts), {op, rows, {}})
      .wait();
  const std::int64_t first = owned[static_cast<std::size_t>(group.rank())].lo;
  for (std::int64_t& row : route.served) row -= first;

  route.place.reserve(wanted.size());
  for (const std::int64_t row : wanted) {
    if (row < 0) {
      route.place.push_back(-1);
      continue;
    }
    std::size_t r = 0;
    while (!(owned[r].lo <= row && row < owned[r].hi)) ++r;
    const auto begin = ordered.begin() + start[r];
    const auto at = std::lower_bound(begin, begin + route.want_counts[r], row);
    route.place.push_back(at - ordered.begin());
  }
  route.unique = std::move(ordered);
  return route;
}

std::shared_ptr<const RowRoute> row_route(const char* op,
                                          const Tensor& index,
                                          const Layout& rows,
                                          AxisMask axes) {
  // Per group, so that all its members remember and forget alike, whatever else they take part in.
  static auto* const remembered =
      new std::map<std::pair<std::uint64_t, AxisMask>, std::list<Entry>>;
  std::list<Entry>& entries = (*remembered)[{rows.mesh().hash(), axes}];
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
    return e.index.id() == index.id() && e.rows == rows;
  });
  // An index changed in place on one rank is news to the others: they agree before they rely on it.
  std::int32_t known = found != entries.end() && found->version == found->index.version() ? 1 : 0;
  if (found != entries.end()) {
    parallel::all_reduce(parallel::Group::of(rows.mesh(), axes), &known, 1, DType::kInt32,
                         ReduceOp::kMin, {op, rows, {}})
        .wait();
    if (known != 0) {
      entries.splice(entries.begin(), entries, found);
      return found->route;
    }
    entries.erase(found);
  }
  auto route = std::make_shared<const RowRoute>(route_of(op, index, rows, axes));
  if (entries.size() == kRemembered) entries.pop_back();
  entries.push_front({index, index.version(), rows, route});
  return route;
}

}  // namespace tessera
