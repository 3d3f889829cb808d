#pragma once

#include <cstdint>
#include <span>
#include <tessera/core/edge.hpp>
#include <tessera/core/view.hpp>

namespace tessera::data {

/// Ways to refine a field without learning, the baselines of super-resolution.
enum class Upsampling : std::uint8_t {
  kLinear,  ///< bilinear in 2-D
  kCubic,   ///< Keys' kernel with a = -0.75, "bicubic" in 2-D (R. Keys, 1981; the a that PyTorch
            ///< uses)
};
const char* name(Upsampling method);

/// Refines `coarse` by `factor` in every dimension into `fine` (any number of dimensions, floating
/// types, computed in fp64): point i lies at (i + 0.5) / factor - 0.5 on the coarse grid. `edges`
/// gives the rule beyond the border for each dimension. Throws ShapeError when the shapes do not
/// fit.
void upsample(Upsampling method,
              const View& coarse,
              const View& fine,
              std::int64_t factor,
              std::span<const EdgeRule> edges);

/// Coarse points beyond each side that `upsample` looks at.
std::int64_t upsample_reach(Upsampling method);

/// coarse = mean of each block of factor^d points of `fine`, ignoring NaN; NaN where a block has no
/// other.
void block_mean(const View& fine, const View& coarse, std::int64_t factor);

}  // namespace tessera::data
