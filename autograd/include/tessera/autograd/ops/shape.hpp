#pragma once

#include <tessera/core/edge.hpp>
#include <tessera/core/tensor.hpp>
#include <vector>

namespace tessera {

/// Adds `lo[d]` and `hi[d]` elements around every dimension d of x (all dimensions listed; negative
/// values crop). What is added holds `value` (kZero) or follows `edge`. Boundaries move along with
/// the elements.
Tensor pad(const Tensor& x,
           const Dims& lo,
           const Dims& hi,
           EdgeRule edge = EdgeRule::kZero,
           double value = 0.0);
/// x[start, stop) with `step` >= 1 along `dim`; also along a split dimension (the parts become
/// uneven).
Tensor slice(
    const Tensor& x, int dim, std::int64_t start, std::int64_t stop, std::int64_t step = 1);
/// Cuts `dim` into pieces of the given sizes.
std::vector<Tensor> split(const Tensor& x, const Dims& sizes, int dim);
/// Joins along `dim`. Along a split dimension the boundaries of the result are the sums of those of
/// the parts.
Tensor concat(const std::vector<Tensor>& parts, int dim);
/// Reorders dimensions; a view.
Tensor permute(const Tensor& x, const Dims& order);
/// Another shape of the same elements in row-major order (-1: infer). Legal where no element moves
/// between ranks: of flattened dimensions only the outermost that is not 1 may be split; a split
/// dimension divides only where every boundary is a multiple of the inner size. Throws LayoutError
/// otherwise.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Stretches dimensions of size 1, adding leading ones as needed.
Tensor expand(const Tensor& x, const Shape& shape);
/// The same, and the stretched dimensions are split as in `like`.
Tensor expand(const Tensor& x, const Layout& like);
/// Another element type.
Tensor cast(const Tensor& x, DType dtype);
/// The same of a tensor that outlives the graph anyway, a parameter: backward casts it again
/// instead of keeping the result.
Tensor cast_again(const Tensor& x, DType dtype);
/// [N, d..., r^dims C] -> [N, r d..., C], the channel index running over (offsets..., C) row-major;
/// and back.
Tensor pixel_shuffle(const Tensor& x, std::int64_t factor);
Tensor pixel_unshuffle(const Tensor& x, std::int64_t factor);

}  // namespace tessera
