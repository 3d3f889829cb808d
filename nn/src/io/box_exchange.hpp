#pragma once

#include <cstddef>
#include <cstdint>
#include <tessera/core/view.hpp>
#include <vector>

#include "io/mesh_ranks.hpp"

namespace tessera::io {

/// The boxes of all ranks, on every rank.
std::vector<Box> all_boxes(const Collective& ranks, const Box& mine);

/// Brings to each rank r the box wanted[r] of an array whose parts held[r] are disjoint and cover
/// what is wanted; returns this rank's, dense, as `dtype`. Only pieces that are wanted move.
std::vector<std::byte> fetch_box(const char* op,
                                 const MeshRanks& ranks,
                                 const std::vector<Box>& held,
                                 const View& mine,
                                 DType dtype,
                                 const std::vector<Box>& wanted);

/// The same for rows (indices of dimension 0, in any order, none missing) of an array that is cut
/// along dimension 0 alone.
std::vector<std::byte> fetch_rows(const char* op,
                                  const MeshRanks& ranks,
                                  const std::vector<Box>& held,
                                  const View& mine,
                                  DType dtype,
                                  const std::vector<std::int64_t>& rows);

/// The dense elements of the part `box` of `view`, which is the part `whole` of an array.
std::vector<std::byte> dense_part(
    const char* op, const Box& whole, const View& view, const Box& box, DType dtype);

}  // namespace tessera::io
