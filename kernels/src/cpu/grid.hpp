#pragma once

#include <array>
#include <cstdint>
#include <tessera/core/view.hpp>
#include <utility>
#include <vector>

#include "cpu/tiles.hpp"

namespace tessera::kernels::cpu {

/// A piece [N, d..., C] with one to three domain dimensions as [N, d0, d1, d2, C]; missing leading
/// ones have size 1.
struct Grid {
  std::array<Interval, 5> box;
  std::array<std::int64_t, 5> stride{};
  std::array<std::int64_t, 3> domain{1, 1, 1};  ///< global domain sizes

  explicit Grid(const Piece& p) {
    const int dims = p.view.dims() - 2;
    box.fill({0, 1});
    const auto put = [&](std::size_t slot, int d) {
      box[slot] = p.box[d];
      stride[slot] = p.view.strides[d];
    };
    put(0, 0);
    put(4, dims + 1);
    for (int d = 0; d < dims; ++d) {
      const auto slot = static_cast<std::size_t>(3 - dims + d);
      put(slot + 1, d + 1);
      domain[slot] = p.global[d + 1];
    }
  }

  std::int64_t channels() const { return box[4].size(); }
  /// Element offset of a pixel.
  std::int64_t at(std::int64_t n, std::int64_t i0, std::int64_t i1, std::int64_t i2) const {
    return (n - box[0].lo) * stride[0] + (i0 - box[1].lo) * stride[1] +
           (i1 - box[2].lo) * stride[2] + (i2 - box[3].lo) * stride[3];
  }
  /// f(n, i0, i1) for every row of pixels, on threads; `work` operations per pixel and channel.
  template <class F>
  void for_each_row(double work, const F& f) const {
    const std::int64_t rows = box[0].size() * box[1].size() * box[2].size();
    const std::int64_t row = std::max<std::int64_t>(1, box[3].size() * channels());
    constexpr std::int64_t kTile = 16384;
    const std::int64_t per_tile = std::max<std::int64_t>(1, kTile / row);
    const std::int64_t tiles = (rows + per_tile - 1) / per_tile;
    for_each_tile(
        tiles, tile_threads(tiles, work * static_cast<double>(rows * row)), [&](std::int64_t tile) {
          for (std::int64_t r = tile * per_tile; r < std::min(rows, (tile + 1) * per_tile); ++r)
            f(box[0].lo + r / box[2].size() / box[1].size(),
              box[1].lo + r / box[2].size() % box[1].size(), box[2].lo + r % box[2].size());
        });
  }
};

/// Checks pieces [N, d..., C] with `dims` domain dimensions (0: 1 to 3, those of the first) that
/// agree in samples and channels of `out`: the batch and channels of `in` must hold those of `out`.
void check_pixels(
    const char* op, int dims, const Piece& in, const Piece& out, bool same_dtype = true);

}  // namespace tessera::kernels::cpu
