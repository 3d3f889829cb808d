// Resampling of the domain of x [N, d..., C], and its adjoint. Positions and weights follow from
// global sizes; what a part of the output reads is an interval of x.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/interpolate.hpp>
#include <tessera/kernels/interpolate.hpp>

#include "broadcast.hpp"
#include "domain.hpp"

namespace tessera {

namespace {

struct InterpolateArgs {
  Dims size;  // domain of the result
  std::int64_t mode;
  std::int64_t align_corners;

  kernels::InterpolateGeometry geometry() const {
    return {static_cast<kernels::InterpolateMode>(mode), align_corners != 0};
  }
};

void infer_interpolate(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<InterpolateArgs>();
  Shape shape = problem.shape(0);
  for (int d = 0; d < args.size.size(); ++d) shape[d + 1] = args.size[d];
  out.push_back({shape, problem.dtypes[0]});
}

/// Linear: pending sums pass. Boundaries are those of `like` where there is one, else in
/// proportion.
void interpolate_signatures(const Problem& problem,
                            const AxisGroup&,
                            std::vector<Signature>& legal) {
  const auto& args = problem.as<InterpolateArgs>();
  const int last = args.size.size() + 1;
  partial_signature(problem, 0b1, legal);
  for (const int d : {0, last})
    legal.push_back({.in = {shard_role(d)}, .out = {shard_role(d)}, .bounds = {}});
  for (int d = 1; d < last; ++d) {
    if (problem.like.defined()) {
      legal.push_back({.in = {window_role(d)},
                       .out = {shard_role(d)},
                       .driver = Signature::kLike,
                       .bounds = {}});
    }
    legal.push_back(
        {.in = {window_role(d)},
         .out = {shard_role(d)},
         .bounds = [n = problem.shape(0)[d], m = args.size[d - 1]](int, const Bounds& b) {
           return mapped_bounds(
               b, m, [n, m](std::int64_t i) { return n == 0 ? 0 : (2 * i * m + n) / (2 * n); });
         }});
  }
}

Tensor resample(const Tensor& x, const InterpolateArgs& args, const Layout& like);
Tensor resample_grad(const Tensor& g, const InterpolateArgs& args, const Layout& like);

const OpDef interpolate_op = {
    .name = "interpolate",
    .infer = infer_interpolate,
    .signatures = interpolate_signatures,
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<InterpolateArgs>();
          for (int d = 0; d < args.size.size(); ++d) {
            windows.push_back({0, d + 1, d + 1,
                               [g = args.geometry(), n = problem.shape(0)[d + 1], m = args.size[d]](
                                   Interval j) { return kernels::interpolate_need(g, n, m, j); },
                               EdgeRule::kZero});
          }
        },
    .local =
        [](const LocalCall& call) {
          kernels::interpolate_forward(call.as<InterpolateArgs>().geometry(), call.in[0],
                                       call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& x = context.input_layout(0);
          context.set(
              0, resample_grad(context.grad(), with_size(context.as<InterpolateArgs>(), x.shape()),
                               x.dual()));
        }};

const OpDef interpolate_grad_op = {
    .name = "interpolate_grad",
    .infer = infer_interpolate,
    .signatures = interpolate_signatures,
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<InterpolateArgs>();
          for (int d = 0; d < args.size.size(); ++d) {
            windows.push_back(
                {0, d + 1, d + 1,
                 [g = args.geometry(), n = args.size[d], m = problem.shape(0)[d + 1]](Interval i) {
                   return kernels::interpolate_adjoint_need(g, n, m, i);
                 },
                 EdgeRule::kZero});
          }
        },
    .local =
        [](const LocalCall& call) {
          kernels::interpolate_input_grad(call.as<InterpolateArgs>().geometry(), call.in[0],
                                          call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          const Layout& g = context.input_layout(0);
          context.set(0, resample(context.grad(),
                                  with_size(context.as<InterpolateArgs>(), g.shape()), g.dual()));
        }};

Tensor resample(const Tensor& x, const InterpolateArgs& args, const Layout& like) {
  return call(interpolate_op, {x}, args, NoArgs{}, like);
}
Tensor resample_grad(const Tensor& g, const InterpolateArgs& args, const Layout& like) {
  return call(interpolate_grad_op, {g}, args, NoArgs{}, like);
}

}  // namespace

Tensor interpolate(const Tensor& x, const Dims& size, const InterpolateOptions& options) {
  const int dims = domain_dims("interpolate", x.shape());
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str("interpolate: element type ", name(x.dtype()), " is not floating. Cast it first."));
  const Dims full = per_dim("interpolate", "size", size, dims, 0, 1);
  for (int d = 0; d < dims; ++d) {
    if (x.shape()[d + 1] < 1)
      throw ShapeError(str("interpolate: domain dimension ", d, " of ", x.shape(), " is empty."));
    if (options.like.defined() &&
        (options.like.dims() != x.dims() || options.like.shape()[d + 1] != full[d])) {
      throw ShapeError(str("interpolate: layout ", options.like,
                           " of `like` does not have the domain ", full,
                           ". Pass the layout of a tensor of that size."));
    }
  }
  return resample(x, {full, static_cast<std::int64_t>(options.mode), options.align_corners},
                  options.like.defined() ? options.like.dual() : Layout());
}

}  // namespace tessera
