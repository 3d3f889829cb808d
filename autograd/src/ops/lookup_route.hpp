#pragma once

#include <tessera/autograd/op.hpp>

#include "row_route.hpp"

namespace tessera {

/// How the dimensions of a table [b..., d..., C] and of an index [b..., o..., K] fall into groups.
struct LookupDims {
  std::int64_t batch;
  std::int64_t domain;
  std::int64_t outer;

  int first_domain() const { return static_cast<int>(batch); }
  int channel() const { return static_cast<int>(batch + domain); }
  int tap() const { return static_cast<int>(batch + outer); }
};

/// The index of this rank, row-major, as rows of the part `table` that this rank has (row-major
/// over its batch and domain); -1 for what the part does not hold. Throws ShapeError for an index
/// beyond the domain.
std::vector<std::int64_t> local_rows(const char* op,
                                     const LookupDims& dims,
                                     const View& index,
                                     const Box& table,
                                     const Shape& global);

/// The route of the index of this rank ([b..., o..., K]) into the parts of a table of layout
/// `table`, whose domain is split over `axes`; what is split over other axes, too, and lies
/// elsewhere, is no row.
RowRoute lookup_route(const char* op,
                      const LookupDims& dims,
                      const Tensor& index,
                      const Layout& table,
                      AxisMask axes);

}  // namespace tessera
