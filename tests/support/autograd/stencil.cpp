#include "support/autograd/stencil.hpp"

namespace tessera::test {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? (a + b - 1) / b : -(-a / b);
}
std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/// Element of a piece at a global (or virtual) index; 0 where it is absent.
double read(const Piece& piece, const Index& i) {
  std::int64_t offset = 0;
  for (int d = 0; d < i.size(); ++d) {
    if (i[d] < piece.box.lo[d] || i[d] >= piece.box.hi[d]) return 0.0;
    offset += (i[d] - piece.box.lo[d]) * piece.view.strides[d];
  }
  return load_as_double(piece.view.data, piece.view.dtype, offset);
}

void write(const Piece& piece, const Index& i, double value) {
  std::int64_t offset = 0;
  for (int d = 0; d < i.size(); ++d) offset += (i[d] - piece.box.lo[d]) * piece.view.strides[d];
  store_double(piece.view.data, piece.view.dtype, offset, value);
}

Bounds divided(const Bounds& driver, std::int64_t stride) {
  Bounds bounds;
  for (const std::int64_t b : driver) bounds.push_back(ceil_div(b, stride));
  return bounds;
}

void grad_infer(const Problem& problem, std::vector<OutputMeta>& out) {
  out.push_back({problem.like.shape(), problem.dtypes[0]});
}

void grad_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const std::int64_t stride = problem.as<StencilArgs>().stride;
  legal.push_back({.in = {partial_role()}, .out = {partial_role()}});
  for (int d = 0; d < 3; ++d) {
    const Role in = d == 0 ? shard_role(0) : window_role(d);
    legal.push_back({.in = {in},
                     .out = {shard_role(d)},
                     .driver = Signature::kLike,
                     .bounds = [d, stride](int t, const Bounds& b) {
                       return t == 0 && d > 0 ? divided(b, stride) : b;
                     }});
  }
}

void grad_local(const LocalCall& call) {
  const std::int64_t s = call.as<StencilArgs>().stride;
  for_each_index(call.out[0].box, [&](const Index& i) {
    double sum = 0.0;
    for (std::int64_t a = ceil_div(i[1] - 1, s); a <= floor_div(i[1] + 1, s); ++a)
      for (std::int64_t b = ceil_div(i[2] - 1, s); b <= floor_div(i[2] + 1, s); ++b)
        sum += stencil_weight(i[1] + 1 - s * a, i[2] + 1 - s * b) * read(call.in[0], {i[0], a, b});
    write(call.out[0], i, sum);
  });
}

void grad_vjp(VjpContext& context) {
  context.set(0, stencil(context.grad(), context.as<StencilArgs>()));
}

}  // namespace

double stencil_weight(std::int64_t k, std::int64_t l) {
  constexpr double kWeights[3][3] = {{0.3, -1.1, 0.7}, {1.9, 0.4, -0.6}, {-0.2, 0.9, 1.3}};
  return kWeights[k][l];
}

void stencil_infer(const Problem& problem, std::vector<OutputMeta>& out) {
  if (problem.shape(0).size() != 3) {
    throw ShapeError(str("stencil: input ", problem.shape(0), " is not [N, H, W]. Reshape it."));
  }
  Shape shape = problem.shape(0);
  for (int d = 1; d < 3; ++d) shape[d] = ceil_div(shape[d], problem.as<StencilArgs>().stride);
  out.push_back({shape, problem.dtypes[0]});
}

void stencil_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const std::int64_t stride = problem.as<StencilArgs>().stride;
  legal.push_back({.in = {partial_role()}, .out = {partial_role()}});
  legal.push_back({.in = {shard_role(0)}, .out = {shard_role(0)}});
  for (int d = 1; d < 3; ++d) {
    legal.push_back(
        {.in = {window_role(d)},
         .out = {shard_role(d)},
         .bounds = [stride](int t, const Bounds& b) { return t == 0 ? b : divided(b, stride); }});
  }
}

void stencil_windows(const Problem& problem, std::vector<Window>& windows) {
  const StencilArgs args = problem.as<StencilArgs>();
  for (int d = 1; d < 3; ++d) {
    windows.push_back({.input = 0,
                       .in_dim = d,
                       .work_dim = d,
                       .need =
                           [s = args.stride](Interval y) {
                             return Interval{s * y.lo - 1, s * (y.hi - 1) + 2};
                           },
                       .edge = static_cast<EdgeRule>(args.edge)});
  }
}

void stencil_local(const LocalCall& call) {
  const std::int64_t s = call.as<StencilArgs>().stride;
  for_each_index(call.out[0].box, [&](const Index& i) {
    double sum = 0.0;
    for (std::int64_t k = 0; k < 3; ++k)
      for (std::int64_t l = 0; l < 3; ++l)
        sum += stencil_weight(k, l) * read(call.in[0], {i[0], s * i[1] - 1 + k, s * i[2] - 1 + l});
    write(call.out[0], i, sum);
  });
}

void stencil_set_gradient(VjpContext& context, const OpDef& grad_op) {
  context.set(0, call(grad_op, {context.grad()}, context.as<StencilArgs>(), NoArgs{},
                      context.input_layout(0).dual()));
}

void stencil_vjp(VjpContext& context) { stencil_set_gradient(context, stencil_grad_op); }

void stencil_grad_windows(const Problem& problem, std::vector<Window>& windows) {
  for (int d = 1; d < 3; ++d) {
    windows.push_back({.input = 0,
                       .in_dim = d,
                       .work_dim = d,
                       .need = [s = problem.as<StencilArgs>().stride](Interval x) {
                         return Interval{ceil_div(x.lo - 1, s), floor_div(x.hi, s) + 1};
                       }});
  }
}

void stencil_grad_folds(const Problem& problem, std::vector<Fold>& folds) {
  const auto edge = static_cast<EdgeRule>(problem.as<StencilArgs>().edge);
  if (edge == EdgeRule::kZero) return;
  for (int d = 1; d < 3; ++d)
    folds.push_back({.output = 0, .dim = d, .lo = 1, .hi = 1, .edge = edge});
}

const OpDef stencil_op = {.name = "stencil",
                          .infer = stencil_infer,
                          .signatures = stencil_signatures,
                          .windows = stencil_windows,
                          .local = stencil_local,
                          .vjp = stencil_vjp};
const OpDef stencil_grad_op = {.name = "stencil_grad",
                               .infer = grad_infer,
                               .signatures = grad_signatures,
                               .windows = stencil_grad_windows,
                               .folds = stencil_grad_folds,
                               .local = grad_local,
                               .vjp = grad_vjp};

Tensor stencil(const Tensor& x, const StencilArgs& args, const OpDef& op) {
  return call(op, {x}, args);
}

DenseArray stencil_reference(const DenseArray& x, const StencilArgs& args) {
  const std::int64_t s = args.stride;
  const Shape n = x.shape;
  DenseArray y(Shape{n[0], (n[1] + s - 1) / s, (n[2] + s - 1) / s});
  for_each(y.shape, [&](const Index& i) {
    for (std::int64_t k = 0; k < 3; ++k) {
      for (std::int64_t l = 0; l < 3; ++l) {
        const auto edge = static_cast<EdgeRule>(args.edge);
        const std::int64_t a = map_edge(edge, s * i[1] - 1 + k, n[1]);
        const std::int64_t b = map_edge(edge, s * i[2] - 1 + l, n[2]);
        if (a >= 0 && b >= 0) y[i] += stencil_weight(k, l) * x(i[0], a, b);
      }
    }
  });
  return y;
}

OpCase stencil_case(const StencilArgs& args, const OpDef& op) {
  return {.inputs = {uniform({2, 7, 6})},
          .f = [args, &op](const std::vector<Tensor>& in) -> std::vector<Tensor> {
            return {stencil(in[0], args, op)};
          },
          .reference = [args](const std::vector<DenseArray>& in) -> std::vector<DenseArray> {
            return {stencil_reference(in[0], args)};
          },
          .linear = {{0}},
          .exact = true};
}

}  // namespace tessera::test
