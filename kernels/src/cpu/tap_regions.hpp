#pragma once

#include <array>
#include <cstdint>
#include <tessera/core/view.hpp>
#include <vector>

namespace tessera::kernels::cpu {

inline constexpr int kPixelDims = 4;  ///< batch and up to three domain dimensions
using PixelDims = std::array<std::int64_t, kPixelDims>;

/// A window in one domain dimension: an output reads kernel taps of the input.
struct TapAxis {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t pad = 0;
  std::int64_t dilation = 1;
};

/// Pixels of an input and an output that are walked together, as rows along the last dimension;
/// element offsets.
struct PixelBox {
  PixelDims extent{1, 1, 1, 1};
  PixelDims in_step{};
  PixelDims out_step{};
  std::int64_t in_base = 0;
  std::int64_t out_base = 0;

  std::int64_t row() const { return extent[kPixelDims - 1]; }
  std::int64_t rows() const { return extent[0] * extent[1] * extent[2]; }
  /// Offsets of row `r` relative to the bases.
  std::int64_t in_row(std::int64_t r) const { return row_offset(r, in_step); }
  std::int64_t out_row(std::int64_t r) const { return row_offset(r, out_step); }
  std::int64_t row_in_step() const { return in_step[kPixelDims - 1]; }
  std::int64_t row_out_step() const { return out_step[kPixelDims - 1]; }
  /// Moves the dimension that makes the best rows to the end. With `merge`, dimensions that strides
  /// allow to walk as one are merged first; the order of the pixels then depends on the strides.
  void arrange(bool merge);

 private:
  std::int64_t row_offset(std::int64_t r, const PixelDims& step) const {
    const std::int64_t i2 = r % extent[2], q = r / extent[2];
    return i2 * step[2] + q % extent[1] * step[1] + q / extent[1] * step[0];
  }
};

/// A box of outputs that all see the same taps at the same distances: pixel p reads
/// `in_base + sum p_d * in_step_d + tap_in[t]` and writes `out_base + sum p_d * out_step_d`.
struct TapRegion : PixelBox {
  std::vector<std::int64_t> tap_in;
  std::vector<std::int64_t> tap;  ///< linear index of the tap in the kernel, ascending
};

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

/// Whether out position o reads in position `o * stride - pad + t * dilation` (a convolution), or
/// every j with `j * stride - pad + t * dilation = o` (its adjoint).
enum class TapDirection { kForward, kAdjoint };

/// Cuts the box of `out` into regions. Taps that lie outside the box of `in` are left out, so
/// regions with few or no taps occur at the borders. Both pieces are [N, d..., C]; `in` must hold
/// all samples of `out`. The longest useful dimension of a region becomes its row (the last one);
/// neighbouring dimensions are merged where strides allow.
std::vector<TapRegion> tap_regions(const std::vector<TapAxis>& axes,
                                   TapDirection direction,
                                   const Piece& in,
                                   const Piece& out,
                                   bool merge);

/// A run of pixels [first, last) of rows [row_begin, row_end) of one region.
struct RegionTile {
  std::int32_t region = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Cuts regions into tiles of about `pixels` pixels.
std::vector<RegionTile> region_tiles(const std::vector<TapRegion>& regions, std::int64_t pixels);

}  // namespace tessera::kernels::cpu
