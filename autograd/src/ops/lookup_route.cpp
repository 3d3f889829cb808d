#include "lookup_route.hpp"

#include <algorithm>
#include <tessera/kernels/elementwise.hpp>

namespace tessera {

namespace {

std::vector<std::int64_t> flattened(const View& index) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(index.size()));
  kernels::copy(index, View::dense(values.data(), DType::kInt64, index.shape));
  return values;
}

Shape domain_of(const LookupDims& dims, const Shape& shape) {
  Shape domain;
  for (int d = dims.first_domain(); d < dims.channel(); ++d) domain.push_back(shape[d]);
  return domain;
}

Box domain_of(const LookupDims& dims, const Box& box) {
  return Box(domain_of(dims, box.lo), domain_of(dims, box.hi));
}

/// index[i] = f(batch item, index[i]) for all that are not below 0.
template <class F>
void replace_each(const LookupDims& dims,
                  const Shape& shape,
                  std::vector<std::int64_t>& index,
                  const F& f) {
  std::int64_t items = 1;
  for (int d = 0; d < dims.first_domain(); ++d) items *= shape[d];
  if (index.empty()) return;
  const std::size_t per_item = index.size() / static_cast<std::size_t>(items);
  for (std::int64_t item = 0; item < items; ++item) {
    std::int64_t* const own = index.data() + static_cast<std::size_t>(item) * per_item;
    for (std::size_t i = 0; i < per_item; ++i)
      if (own[i] >= 0) own[i] = f(item, own[i]);
  }
}

}  // namespace

std::vector<std::int64_t> local_rows(const char* op,
                                     const LookupDims& dims,
                                     const View& index,
                                     const Box& table,
                                     const Shape& global) {
  std::vector<std::int64_t> rows = flattened(index);
  const Shape domain = domain_of(dims, global);
  const Box box = domain_of(dims, table);
  const std::int64_t n = domain.product();
  const std::int64_t mine = box.volume();
  const bool whole = box == Box::whole(domain);
  replace_each(dims, index.shape, rows, [&](std::int64_t item, std::int64_t at) -> std::int64_t {
    if (at >= n) {
      throw ShapeError(str(op, ": index ", at, " is outside the ", n, " elements of the domain ",
                           domain, ". Check the indices."));
    }
    if (whole) return item * mine + at;
    std::int64_t offset = 0;
    std::int64_t stride = 1;
    for (int d = domain.size() - 1; d >= 0; --d) {
      const std::int64_t x = at % domain[d];
      at /= domain[d];
      if (x < box.lo[d] || x >= box.hi[d]) return -1;
      offset += (x - box.lo[d]) * stride;
      stride *= box[d].size();
    }
    return item * mine + offset;
  });
  return rows;
}

RowRoute lookup_route(const char* op,
                      const LookupDims& dims,
                      const Tensor& index,
                      const Layout& table,
                      AxisMask axes) {
  const Mesh& mesh = table.mesh();
  const std::vector<int> members = mesh.group(mesh.rank(), axes);
  const Shape domain = domain_of(dims, table.shape());
  const int count = domain.size();
  std::int64_t items = 1;
  for (int d = 0; d < dims.first_domain(); ++d) items *= table.local_shape()[d];

  // Rows are numbered member by member, within one row-major over batch and domain.
  std::vector<Box> boxes;
  std::vector<Interval> owned;
  std::int64_t next = 0;
  for (const int member : members) {
    boxes.push_back(domain_of(dims, table.owned(member)));
    owned.push_back({next, next + items * boxes.back().volume()});
    next = owned.back().hi;
  }

  // In each dimension the part that holds a coordinate; parts together name a member.
  std::vector<std::vector<std::int32_t>> part(static_cast<std::size_t>(count));
  std::vector<std::int64_t> weight(static_cast<std::size_t>(count), 0);
  std::int64_t combinations = 1;
  for (int d = 0; d < count; ++d) {
    const int dim = dims.first_domain() + d;
    if ((table.axes_of(dim) & axes) == 0) continue;
    const Bounds& bounds = table.split(dim).bounds;
    auto& parts = part[static_cast<std::size_t>(d)];
    for (std::size_t p = 0; p + 1 < bounds.size(); ++p)
      parts.insert(parts.end(), static_cast<std::size_t>(bounds[p + 1] - bounds[p]),
                   static_cast<std::int32_t>(p));
    weight[static_cast<std::size_t>(d)] = combinations;
    combinations *= static_cast<std::int64_t>(bounds.size()) - 1;
  }
  std::vector<std::size_t> member_of(static_cast<std::size_t>(combinations));
  for (std::size_t r = 0; r < members.size(); ++r) {
    std::int64_t combination = 0;
    for (int d = 0; d < count; ++d) {
      if (const std::int64_t w = weight[static_cast<std::size_t>(d)]; w != 0)
        combination += w * table.part_of(dims.first_domain() + d, members[r]);
    }
    member_of[static_cast<std::size_t>(combination)] = r;
  }

  require_data(op, table);
  std::vector<std::int64_t> wanted = flattened(index.local());
  const std::int64_t n = domain.product();
  const Box mine = domain_of(dims, table.local_box());
  bool valid = true;
  const auto row = [&](std::int64_t item, std::int64_t at) -> std::int64_t {
    if (at >= n) {
      valid = false;
      return -1;
    }
    Index x = domain;
    std::int64_t combination = 0;
    for (int d = count - 1; d >= 0; --d) {
      x[d] = at % domain[d];
      at /= domain[d];
      if (const auto& parts = part[static_cast<std::size_t>(d)]; !parts.empty()) {
        combination += weight[static_cast<std::size_t>(d)] * parts[static_cast<std::size_t>(x[d])];
      } else if (x[d] < mine.lo[d] || x[d] >= mine.hi[d]) {
        return -1;  // of ranks outside the group, who add it to a pending sum
      }
    }
    const std::size_t r = member_of[static_cast<std::size_t>(combination)];
    const Box& box = boxes[r];
    std::int64_t offset = 0;
    for (int d = 0; d < count; ++d) offset = offset * box[d].size() + x[d] - box.lo[d];
    return owned[r].lo + item * box.volume() + offset;
  };
  replace_each(dims, index.local_shape(), wanted, row);
  return make_route(op, parallel::Group::of(mesh, axes), wanted, owned, valid, index.layout(),
                    table);
}

}  // namespace tessera
