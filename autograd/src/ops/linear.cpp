// Matrix products. `linear` and `outer_sum` differentiate into each other, and so does `matmul`
// into itself:
//   linear:    y[l, o] = sum_i x[l, i] w[o, i] (+ bias[o])     or, transposed, y[l, i] = sum_o x[l,
//   o] w[o, i] outer_sum: c[m, n] = sum_l a[l, m] b[l, n]                 (l: all leading
//   dimensions)
// A split contracted dimension makes the result a pending sum.

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/gemm.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

void check_floating(const char* op, DType dtype) {
  if (!is_floating(dtype))
    throw DTypeError(str(op, ": element type ", name(dtype), " is not floating. Cast it first."));
}

/// Floating-point operations when each element of `side` takes part in `each` products.
double products(const Piece& side, std::int64_t each) {
  return 2.0 * static_cast<double>(side.view.size() * each);
}

// ---- linear ----

struct LinearArgs {
  std::int64_t transposed;
};

void infer_linear(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& x = problem.shape(0);
  const Shape& w = problem.shape(1);
  const bool transposed = problem.as<LinearArgs>().transposed != 0;
  check_floating("linear", common_dtype("linear", problem));
  if (w.size() != 2 || x.size() < 1 || x.back() != w[transposed ? 0 : 1]) {
    throw ShapeError(str("linear: input ", x, " and weight ", w,
                         " do not fit (the last dimension of the input must be the ",
                         transposed ? "first" : "second", " of the weight [out, in])."));
  }
  Shape result = x;
  result.back() = w[transposed ? 1 : 0];
  if (problem.in[2].defined() && !(problem.shape(2) == Shape{result.back()})) {
    throw ShapeError(
        str("linear: bias ", problem.shape(2), " does not fit the ", result.back(), " outputs."));
  }
  out.push_back({result, problem.dtypes[0]});
}

void linear_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const int last = problem.shape(0).size() - 1;
  const bool transposed = problem.as<LinearArgs>().transposed != 0;
  const int w_out = transposed ? 1 : 0;
  const int w_in = transposed ? 0 : 1;
  const bool has_bias = problem.in[2].defined();
  if (!has_bias) {
    partial_signature(problem, 0b001, legal);
    partial_signature(problem, 0b010, legal);
  }
  for (int d = 0; d < last; ++d) {
    legal.push_back({.in = {shard_role(d), replicate_role(), replicate_role()},
                     .out = {shard_role(d)},
                     .bounds = {}});
  }
  legal.push_back(
      {.in = {replicate_role(), shard_role(w_out), has_bias ? shard_role(0) : replicate_role()},
       .out = {shard_role(last)},
       .driver = 1,
       .bounds = {}});
  if (has_bias) return;
  for (const int driver : {0, 1}) {
    legal.push_back({.in = {shard_role(last), shard_role(w_in), replicate_role()},
                     .out = {partial_role()},
                     .driver = driver,
                     .bounds = {}});
  }
}

void linear_local(const LocalCall& call) {
  const View& x = call.in[0].view;
  const View& y = call.out[0].view;
  const View w =
      call.as<LinearArgs>().transposed ? call.in[1].view : kernels::transposed(call.in[1].view);
  const View& bias = call.in[2].view;
  // [..., K] as [..., 1, K] would be a row at a time; the second to last dimension is the row of
  // the product.
  if (x.dims() == 1) {
    const auto row = [](const View& v) {
      return View{v.data, v.dtype, {1, v.shape[0]}, {v.shape[0], v.strides[0]}};
    };
    kernels::gemm(1.0, row(x), w, 0.0, row(y), bias);
    return;
  }
  Shape w_shape = x.shape;
  w_shape[x.dims() - 2] = w.shape[0];
  w_shape[x.dims() - 1] = w.shape[1];
  kernels::gemm(1.0, x, kernels::broadcast_to(w, w_shape), 0.0, y, bias);
}

extern const OpDef linear_op;
extern const OpDef outer_sum_op;

Tensor linear_product(const Tensor& x, const Tensor& w, bool transposed) {
  return call(linear_op, {x, w, Tensor()}, LinearArgs{transposed});
}
Tensor outer_sum(const Tensor& a, const Tensor& b) { return call<NoArgs>(outer_sum_op, {a, b}); }

void linear_vjp(VjpContext& context) {
  const bool transposed = context.as<LinearArgs>().transposed != 0;
  const Tensor g = context.grad();
  if (context.needs(0)) context.set(0, linear_product(g, context.input(1), !transposed));
  if (context.needs(1)) {
    const Tensor x = context.input(0);
    context.set(1, transposed ? outer_sum(x, g) : outer_sum(g, x));
  }
  if (context.input_layout(2).defined() && context.needs(2))
    context.set(2, sum_to(g, context.input_layout(2).shape()));
}

const OpDef linear_op = {.name = "linear",
                         .infer = infer_linear,
                         .signatures = linear_signatures,
                         .local = linear_local,
                         .vjp = linear_vjp,
                         .saved_inputs = 0b011,
                         .cost = [](const LocalCall& call) {
                           return products(call.out[0], call.in[0].view.shape.back());
                         }};

// ---- outer_sum ----

void infer_outer_sum(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& a = problem.shape(0);
  const Shape& b = problem.shape(1);
  bool fits = a.size() == b.size() && a.size() >= 1;
  for (int d = 0; fits && d + 1 < a.size(); ++d) fits = a[d] == b[d];
  if (!fits)
    throw ShapeError(str("outer_sum: ", a, " and ", b, " differ in their leading dimensions."));
  check_floating("outer_sum", common_dtype("outer_sum", problem));
  out.push_back({{a.back(), b.back()}, problem.dtypes[0]});
}

void outer_sum_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const int last = problem.shape(0).size() - 1;
  partial_signature(problem, 0b01, legal);
  partial_signature(problem, 0b10, legal);
  for (int d = 0; d < last; ++d) {
    for (const int driver : {0, 1}) {
      legal.push_back({.in = {shard_role(d), shard_role(d)},
                       .out = {partial_role()},
                       .driver = driver,
                       .bounds = {}});
    }
  }
  legal.push_back(
      {.in = {shard_role(last), replicate_role()}, .out = {shard_role(0)}, .bounds = {}});
  legal.push_back({.in = {replicate_role(), shard_role(last)},
                   .out = {shard_role(1)},
                   .driver = 1,
                   .bounds = {}});
}

const OpDef outer_sum_op = {
    .name = "outer_sum",
    .infer = infer_outer_sum,
    .signatures = outer_sum_signatures,
    .local =
        [](const LocalCall& call) {
          kernels::outer_sum(1.0, call.in[0].view, call.in[1].view, 0.0, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          const Tensor g = context.grad();
          if (context.needs(0)) context.set(0, linear_product(context.input(1), g, false));
          if (context.needs(1)) context.set(1, linear_product(context.input(0), g, true));
        },
    .saved_inputs = 0b11,
    .cost =
        [](const LocalCall& call) { return products(call.in[0], call.in[1].view.shape.back()); }};

// ---- matmul ----

struct MatmulArgs {
  std::int64_t transpose_a;
  std::int64_t transpose_b;
};

/// Dimensions of a factor: rows and columns of the product it takes part in, after transposition.
struct Factor {
  int rows, columns;
  Factor(int dims, bool transposed) : rows(dims - 2), columns(dims - 1) {
    if (transposed) std::swap(rows, columns);
  }
};

void infer_matmul(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<MatmulArgs>();
  const Shape& a = problem.shape(0);
  const Shape& b = problem.shape(1);
  check_floating("matmul", common_dtype("matmul", problem));
  if (a.size() < 2 || b.size() < 2 || (b.size() != 2 && b.size() != a.size())) {
    throw ShapeError(str(
        "matmul: ", a, " and ", b,
        " are not [..., M, K] and [..., K, N] with equal leading dimensions (or a second factor "
        "of two dimensions). Reshape them."));
  }
  const Factor fa(a.size(), args.transpose_a != 0);
  const Factor fb(b.size(), args.transpose_b != 0);
  bool fits = a[fa.columns] == b[fb.rows];
  for (int d = 0; b.size() > 2 && d < a.size() - 2; ++d) fits &= a[d] == b[d];
  if (!fits) {
    throw ShapeError(str("matmul: ", a, args.transpose_a ? " transposed" : "", " and ", b,
                         args.transpose_b ? " transposed" : "", " do not fit (contracted sizes ",
                         a[fa.columns], " and ", b[fb.rows], ")."));
  }
  Shape result = a;
  result[a.size() - 2] = a[fa.rows];
  result[a.size() - 1] = b[fb.columns];
  out.push_back({result, problem.dtypes[0]});
}

void matmul_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const auto& args = problem.as<MatmulArgs>();
  const int dims = problem.shape(0).size();
  const int b_dims = problem.shape(1).size();
  const Factor fa(dims, args.transpose_a != 0);
  const Factor fb(b_dims, args.transpose_b != 0);
  partial_signature(problem, 0b01, legal);
  partial_signature(problem, 0b10, legal);
  for (int d = 0; d < dims - 2; ++d) {
    const Role b = b_dims > 2 ? shard_role(d) : replicate_role();
    legal.push_back({.in = {shard_role(d), b}, .out = {shard_role(d)}, .bounds = {}});
    if (b_dims > 2)
      legal.push_back(
          {.in = {shard_role(d), b}, .out = {shard_role(d)}, .driver = 1, .bounds = {}});
  }
  legal.push_back(
      {.in = {shard_role(fa.rows), replicate_role()}, .out = {shard_role(dims - 2)}, .bounds = {}});
  legal.push_back({.in = {replicate_role(), shard_role(fb.columns)},
                   .out = {shard_role(dims - 1)},
                   .driver = 1,
                   .bounds = {}});
  for (const int driver : {0, 1}) {
    legal.push_back({.in = {shard_role(fa.columns), shard_role(fb.rows)},
                     .out = {partial_role()},
                     .driver = driver,
                     .bounds = {}});
  }
}

void matmul_local(const LocalCall& call) {
  const auto& args = call.as<MatmulArgs>();
  const View a = args.transpose_a ? kernels::transposed(call.in[0].view) : call.in[0].view;
  View b = args.transpose_b ? kernels::transposed(call.in[1].view) : call.in[1].view;
  if (b.dims() < a.dims()) {
    Shape shape = a.shape;
    shape[a.dims() - 2] = b.shape[0];
    shape[a.dims() - 1] = b.shape[1];
    b = kernels::broadcast_to(b, shape);
  }
  kernels::gemm(1.0, a, b, 0.0, call.out[0].view);
}

Tensor swap_last(const Tensor& x) {
  Dims order;
  for (int d = 0; d < x.dims(); ++d) order.push_back(d);
  std::swap(order[x.dims() - 2], order[x.dims() - 1]);
  return permute(x, order);
}

void matmul_vjp(VjpContext& context) {
  const auto& args = context.as<MatmulArgs>();
  const bool ta = args.transpose_a != 0;
  const bool tb = args.transpose_b != 0;
  const Tensor g = context.grad();
  const bool shared = context.input_layout(1).dims() < context.input_layout(0).dims();
  if (context.needs(0)) {
    const Tensor b = context.input(1);
    if (!ta) {
      context.set(0, matmul(g, b, false, !tb));
    } else {
      context.set(0, shared ? swap_last(matmul(g, b, false, !tb)) : matmul(b, g, tb, true));
    }
  }
  if (context.needs(1)) {
    const Tensor a = ta && shared ? swap_last(context.input(0)) : context.input(0);
    if (shared) {
      context.set(1, tb ? outer_sum(g, a) : outer_sum(a, g));
    } else {
      context.set(1, tb ? matmul(g, a, true, ta) : matmul(a, g, !ta, false));
    }
  }
}

const OpDef matmul_op = {.name = "matmul",
                         .infer = infer_matmul,
                         .signatures = matmul_signatures,
                         .local = matmul_local,
                         .vjp = matmul_vjp,
                         .saved_inputs = 0b11,
                         .cost = [](const LocalCall& call) {
                           const View& a = call.in[0].view;
                           const Factor f(a.dims(), call.as<MatmulArgs>().transpose_a != 0);
                           return products(call.out[0], a.shape[f.columns]);
                         }};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  // A bias is added once, not once per part of a pending sum.
  const int last = x.dims() - 1;
  const bool pending = x.layout().partial_axes() != 0 || (last >= 0 && x.layout().is_split(last)) ||
                       (w.dims() == 2 && w.layout().is_split(1)) || w.layout().partial_axes() != 0;
  if (bias.defined() && pending) return linear_product(x, w, false) + bias;
  return call(linear_op, {x, w, bias}, LinearArgs{0});
}

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  return call(matmul_op, {a, b}, MatmulArgs{transpose_a, transpose_b});
}

}  // namespace tessera
