#pragma once

#include <memory>
#include <tessera/core/tensor.hpp>
#include <tessera/parallel/group.hpp>
#include <vector>

namespace tessera {

/// Who needs which rows of a tensor whose dimension 0 is split, for the local part of an index.
///
/// This rank wants the rows `unique` (global, without repeats; those of member r of the group come
/// r-th, `want_counts[r]` of them); position i of its index is the row unique[place[i]]. It serves
/// the rows `served` (counted from its own first row), the first `serve_counts[0]` to member 0, ...
struct RowRoute {
  parallel::Group group;
  std::vector<std::int64_t> unique;
  std::vector<std::int64_t> place;
  std::vector<std::int64_t> want_counts;
  std::vector<std::int64_t> served;
  std::vector<std::int64_t> serve_counts;
};

/// The route for `index` ([m], replicated or split over `axes`) into the rows of `rows`, whose
/// dimension 0 is split over `axes`. Every member of the group must call; routes of the tensors
/// used last are remembered, so that a graph's edges are exchanged once. Throws ShapeError on every
/// member when an index of any is out of range.
std::shared_ptr<const RowRoute> row_route(const char* op,
                                          const Tensor& index,
                                          const Layout& rows,
                                          AxisMask axes);

/// Throws NotSupported in a DryRun, where an index has no values to read.
void require_data(const char* op, const Layout& rows);

/// The same for rows numbered so that member r owns [owned[r].lo, owned[r].hi): `wanted` holds the
/// rows that this rank names, those below 0 are none (place: -1). `valid` is whether all indices of
/// this rank are in range. Every member must call; throws ShapeError on all when one is not valid.
/// `index` and `rows` are named in messages.
RowRoute make_route(const char* op,
                    const parallel::Group& group,
                    const std::vector<std::int64_t>& wanted,
                    const std::vector<Interval>& owned,
                    bool valid,
                    const Layout& index,
                    const Layout& rows);

}  // namespace tessera
