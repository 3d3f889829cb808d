#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <tessera/autograd/op.hpp>
#include <tessera/core/tensor.hpp>
#include <tessera/core/threads.hpp>
#include <vector>

/// Explicit steps on periodic grids as ops: the output at a point is computed from the input at the
/// point and its neighbours (corners included).
namespace tessera::solvers {

/// One row of points along the last domain dimension.
template <class T>
struct Row {
  const T* in = nullptr;  ///< the first point's channels
  T* out = nullptr;
  std::int64_t points = 0;
  std::array<std::int64_t, 3> step{};   ///< elements of `in` between neighbours along z, y, x
  std::array<std::int64_t, 3> first{};  ///< global z, y, x of the first point
};

/// Calls f(row) for each row of the output's box. Domain dimensions that are missing count as one
/// point along z (and y). Channels lie densely, so that a point of `in` or `out` follows the next.
template <class T, class F>
void for_each_row(const LocalCall& call, F&& f) {
  const Piece& x = call.in[0];
  const Piece& y = call.out[0];
  if (y.box.empty()) return;
  const int domain = y.box.dims() - 2;
  struct Dim {
    std::int64_t size = 1;
    std::int64_t lo = 0;
    std::int64_t offset = 0;  // of y's first point in x
    std::int64_t in = 0;
    std::int64_t out = 0;
  };
  std::array<Dim, 4> dims;  // samples, z, y, x
  for (int d = 0; d <= domain; ++d) {
    const std::size_t to = d == 0 ? 0 : static_cast<std::size_t>(3 - domain + d);
    dims[to] = {y.view.shape[d], y.box.lo[d], y.box.lo[d] - x.box.lo[d], x.view.strides[d],
                y.view.strides[d]};
  }
  const T* in = x.view.as<T>();
  for (const Dim& d : dims) in += d.offset * d.in;
  T* const out = y.view.as<T>();
  const std::int64_t rows = dims[0].size * dims[1].size * dims[2].size;
  const int threads = rows * dims[3].size < 4096 ? 1 : thread_count();
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t j = r % dims[2].size;
    const std::int64_t k = r / dims[2].size % dims[1].size;
    const std::int64_t n = r / dims[2].size / dims[1].size;
    f(Row<T>{in + n * dims[0].in + k * dims[1].in + j * dims[2].in,
             out + n * dims[0].out + k * dims[1].out + j * dims[2].out,
             dims[3].size,
             {dims[1].in, dims[2].in, dims[3].in},
             {dims[1].lo + k, dims[2].lo + j, dims[3].lo}});
  }
}

/// Calls f<D, T>() for the call's number of domain dimensions and element type.
template <class F>
void visit_step(const LocalCall& call, F&& f) {
  const auto with = [&]<class T>() {
    switch (call.out[0].box.dims() - 2) {
      case 1:
        return f.template operator()<1, T>();
      case 2:
        return f.template operator()<2, T>();
      default:
        return f.template operator()<3, T>();
    }
  };
  if (call.out[0].view.dtype == DType::kFloat64) {
    with.template operator()<double>();
  } else {
    with.template operator()<float>();
  }
}

/// Samples and domain dimensions may be split, channels not.
void step_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal);
/// One point on each side of each domain dimension, circular.
void step_windows(const Problem& problem, std::vector<Window>& windows);
/// f32 or f64, [N, domain..., C].
void step_infer(const Problem& problem, std::vector<OutputMeta>& out);

/// A tensor whose channels at each point are set by f(sample, {z, y, x}, channels).
Tensor fill_points(const Layout& layout,
                   DType dtype,
                   const std::function<void(
                       std::int64_t, const std::array<std::int64_t, 3>&, std::vector<double>&)>& f);

/// `layout` with another number of channels; throws ShapeError unless it has 1 to 3 domain
/// dimensions of at least one point, and LayoutError where channels are split.
Layout with_channels(const char* what, const Layout& layout, std::int64_t channels);

/// `count` numbers in [0, 1) of sample `sample`; the same on every rank.
std::vector<double> uniform_numbers(std::uint64_t seed, std::int64_t sample, std::int64_t count);

}  // namespace tessera::solvers
