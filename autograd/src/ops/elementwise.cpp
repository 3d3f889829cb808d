// y[i] = f(a[i], b[i], ...) with broadcasting. Any dimension may be split; linear ops pass a
// pending sum on. Gradients of stretched operands are summed back by sum_to().

#include <array>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

using kernels::BinaryKind;
using kernels::CompareKind;
using kernels::UnaryKind;

/// The input as the local output sees it: stretched by stride 0.
View stretched(const LocalCall& call, int input) {
  return kernels::broadcast_to(call.in[static_cast<std::size_t>(input)].view,
                               call.out[0].view.shape);
}

Shape joint_shape(const char* op, const Problem& problem) {
  Shape shape = problem.shape(0);
  for (int i = 1; i < static_cast<int>(problem.in.size()); ++i)
    shape = broadcast_shape(op, shape, problem.shape(i));
  return shape;
}

// ---- two operands ----

void check_floating(const char* op, DType dtype) {
  if (!is_floating(dtype)) {
    throw DTypeError(str(op, ": element type ", name(dtype), " is not floating. Cast it first."));
  }
}

template <BinaryKind kind>
void infer_binary(const Problem& problem, std::vector<OutputMeta>& out) {
  const char* op = kernels::name(kind);
  const DType dtype = common_dtype(op, problem);
  if (kind == BinaryKind::kDiv || kind == BinaryKind::kPow || kind == BinaryKind::kAtan2)
    check_floating(op, dtype);
  out.push_back({joint_shape(op, problem), dtype});
}

template <BinaryKind kind>
void binary_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  if (kind == BinaryKind::kAdd || kind == BinaryKind::kSub) partial_signature(problem, 0b11, legal);
  if (kind == BinaryKind::kMul) partial_signature(problem, 0b10, legal);
  if (kind == BinaryKind::kMul || kind == BinaryKind::kDiv) partial_signature(problem, 0b01, legal);
  broadcast_signatures(problem, legal);
}

template <BinaryKind kind>
void binary_local(const LocalCall& call) {
  kernels::binary(kind, stretched(call, 0), stretched(call, 1), call.out[0].view);
}

template <BinaryKind kind>
void binary_vjp(VjpContext& context) {
  const Tensor g = context.grad();
  const auto set = [&](int i, const Tensor& full) {
    context.set(i, sum_to(full, context.input_layout(i).shape()));
  };
  if constexpr (kind == BinaryKind::kAdd || kind == BinaryKind::kSub) {
    if (context.needs(0)) set(0, g);
    if (context.needs(1))
      context.set(1, affine(sum_to(g, context.input_layout(1).shape()),
                            kind == BinaryKind::kAdd ? 1.0 : -1.0));
  } else {
    const Tensor a = context.input(0);
    const Tensor b = context.input(1);
    if constexpr (kind == BinaryKind::kMul) {
      if (context.needs(0)) set(0, g * b);
      if (context.needs(1)) set(1, g * a);
    } else if constexpr (kind == BinaryKind::kDiv) {
      if (context.needs(0)) set(0, g / b);
      if (context.needs(1)) set(1, -(g * a / square(b)));
    } else if constexpr (kind == BinaryKind::kPow) {
      if (context.needs(0)) set(0, g * b * pow(a, b - 1.0));
      if (context.needs(1)) {
        // a^b log(a) is 0 at a = 0 for b > 0, where log(a) alone is infinite.
        const Tensor positive = greater(a, Tensor::scalar(a.mesh(), 0.0, a.dtype()));
        const Tensor safe = where(positive, a, Tensor::scalar(a.mesh(), 1.0, a.dtype()));
        set(1, g * pow(a, b) * log(safe));
      }
    } else if constexpr (kind == BinaryKind::kMaximum || kind == BinaryKind::kMinimum) {
      // Equal operands share the gradient.
      const Tensor wins = kind == BinaryKind::kMaximum ? greater(a, b) : less(a, b);
      const Tensor share = cast(wins, g.dtype()) + cast(equal(a, b), g.dtype()) * 0.5;
      if (context.needs(0)) set(0, g * share);
      if (context.needs(1)) set(1, g * affine(share, -1.0, 1.0));
    } else if constexpr (kind == BinaryKind::kAtan2) {
      const Tensor scaled = g / (square(a) + square(b));
      if (context.needs(0)) set(0, scaled * b);
      if (context.needs(1)) set(1, -(scaled * a));
    }
  }
}

template <BinaryKind kind>
const OpDef& binary_op() {
  static const OpDef op = {
      .name = kernels::name(kind),
      .infer = infer_binary<kind>,
      .signatures = binary_signatures<kind>,
      .local = binary_local<kind>,
      .vjp = binary_vjp<kind>,
      .saved_inputs = kind == BinaryKind::kAdd || kind == BinaryKind::kSub ? 0u : 0b11u};
  return op;
}

// ---- comparisons ----

template <CompareKind kind>
const OpDef& compare_op() {
  static const OpDef op = {
      .name = kernels::name(kind),
      .infer =
          [](const Problem& problem, std::vector<OutputMeta>& out) {
            common_dtype(kernels::name(kind), problem);
            out.push_back({joint_shape(kernels::name(kind), problem), DType::kBool});
          },
      .signatures = [](const Problem& problem, const AxisGroup&,
                       std::vector<Signature>& legal) { broadcast_signatures(problem, legal); },
      .local =
          [](const LocalCall& call) {
            kernels::compare(kind, stretched(call, 0), stretched(call, 1), call.out[0].view);
          }};
  return op;
}

// ---- where ----

void infer_where(const Problem& problem, std::vector<OutputMeta>& out) {
  if (problem.dtypes[0] != DType::kBool) {
    throw DTypeError(str("where: the condition is ", name(problem.dtypes[0]),
                         ", not bool. Compare it with something."));
  }
  if (problem.dtypes[1] != problem.dtypes[2]) {
    throw DTypeError(str("where: element types ", name(problem.dtypes[1]), " and ",
                         name(problem.dtypes[2]), " are mixed. Use cast()."));
  }
  out.push_back({joint_shape("where", problem), problem.dtypes[1]});
}

void where_vjp(VjpContext& context) {
  const Tensor condition = context.input(0);
  const Tensor g = context.grad();
  const Tensor zero = Tensor::scalar(g.mesh(), 0.0, g.dtype());
  if (context.needs(1))
    context.set(1, sum_to(where(condition, g, zero), context.input_layout(1).shape()));
  if (context.needs(2))
    context.set(2, sum_to(where(condition, zero, g), context.input_layout(2).shape()));
}

const OpDef where_op = {
    .name = "where",
    .infer = infer_where,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b110, legal);
          broadcast_signatures(problem, legal);
        },
    .local =
        [](const LocalCall& call) {
          kernels::where(stretched(call, 0), stretched(call, 1), stretched(call, 2),
                         call.out[0].view);
        },
    .vjp = where_vjp,
    .saved_inputs = 0b001};

// ---- alpha x + beta ----

struct AffineArgs {
  std::int64_t shifts;  // whether beta is not 0: only then is a pending sum taken first
};
struct AffineScalars {
  double alpha;
  double beta;
};

void affine_vjp(VjpContext& context) {
  context.set(0, affine(context.grad(), context.dynamic_as<AffineScalars>().alpha));
}

const OpDef affine_op = {
    .name = "affine",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({problem.shape(0), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          if (!problem.as<AffineArgs>().shifts) partial_signature(problem, 0b1, legal);
          broadcast_signatures(problem, legal);
        },
    .local =
        [](const LocalCall& call) {
          const auto& scalars = call.dynamic_as<AffineScalars>();
          kernels::affine(scalars.alpha, call.in[0].view, scalars.beta, call.out[0].view);
        },
    .vjp = affine_vjp};

// ---- clamp ----

struct ClampLimits {
  double low;
  double high;
};

extern const OpDef clamp_grad_op;

const OpDef clamp_op = {
    .name = "clamp",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({problem.shape(0), problem.dtypes[0]});
        },
    .signatures = [](const Problem& problem,
                     const AxisGroup&,
                     std::vector<Signature>& legal) { broadcast_signatures(problem, legal); },
    .local =
        [](const LocalCall& call) {
          const auto& limits = call.dynamic_as<ClampLimits>();
          kernels::clamp(call.in[0].view, limits.low, limits.high, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, call(clamp_grad_op, {context.grad(), context.input(0)}, NoArgs{},
                              context.dynamic_as<ClampLimits>()));
        },
    .saved_inputs = 0b1};

/// g where x lies between the limits: linear in g, piecewise constant in x.
const OpDef clamp_grad_op = {
    .name = "clamp_grad",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({problem.shape(0), problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b01, legal);
          broadcast_signatures(problem, legal);
        },
    .local =
        [](const LocalCall& call) {
          const auto& limits = call.dynamic_as<ClampLimits>();
          kernels::clamp_grad(call.in[0].view, call.in[1].view, limits.low, limits.high,
                              call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          if (context.needs(0)) {
            context.set(0, call(clamp_grad_op, {context.grad(), context.input(1)}, NoArgs{},
                                context.dynamic_as<ClampLimits>()));
          }
          if (context.needs(1)) context.set(1, affine(context.grad(), 0.0));
        },
    .saved_inputs = 0b10};

// ---- one operand: f and its derivatives are one family, closed under differentiation ----

struct UnaryArgs {
  std::int64_t kind;
  std::int64_t order;
};
struct UnaryScalars {
  double alpha;
};

UnaryKind kind_of(const UnaryArgs& args) { return static_cast<UnaryKind>(args.kind); }

void infer_unary(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<UnaryArgs>();
  check_floating(kernels::name(kind_of(args)), common_dtype(kernels::name(kind_of(args)), problem));
  if (args.order > kernels::kMaxUnaryOrder) {
    throw NotSupported(str(kernels::name(kind_of(args)), ": derivative ", args.order,
                           " is not available (at most ", kernels::kMaxUnaryOrder,
                           "). Write the function in smaller ops."));
  }
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

Tensor mul_unary(const Tensor& g, const Tensor& x, UnaryArgs args, UnaryScalars scalars);
const OpDef& unary_op(UnaryKind kind);

const OpDef unary_record = {
    .name = "unary",
    .infer = infer_unary,
    .signatures = [](const Problem& problem,
                     const AxisGroup&,
                     std::vector<Signature>& legal) { broadcast_signatures(problem, legal); },
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<UnaryArgs>();
          kernels::unary(kind_of(args), static_cast<int>(args.order),
                         call.dynamic_as<UnaryScalars>().alpha, call.in[0].view, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          const auto& args = context.as<UnaryArgs>();
          context.set(0, mul_unary(context.grad(), context.input(0), {args.kind, args.order + 1},
                                   context.dynamic_as<UnaryScalars>()));
        },
    .saved_inputs = 0b1};

Tensor unary_recompute(const VjpContext& context) {
  return call(unary_op(kind_of(context.as<UnaryArgs>())), {context.input(0)},
              context.as<UnaryArgs>(), context.dynamic_as<UnaryScalars>());
}

/// One record per function, so that reports name it. Activations are computed again in backward.
const OpDef& unary_op(UnaryKind kind) {
  static const auto ops = [] {
    std::array<OpDef, static_cast<std::size_t>(UnaryKind::kRound) + 1> all;
    for (std::size_t k = 0; k < all.size(); ++k) {
      all[k] = unary_record;
      all[k].name = kernels::name(static_cast<UnaryKind>(k));
    }
    for (const UnaryKind activation : {UnaryKind::kRelu, UnaryKind::kLeakyRelu, UnaryKind::kElu,
                                       UnaryKind::kSilu, UnaryKind::kGelu, UnaryKind::kGeluTanh})
      all[static_cast<std::size_t>(activation)].recompute = unary_recompute;
    return all;
  }();
  return ops[static_cast<std::size_t>(kind)];
}

Tensor mul_unary_recompute(const VjpContext& context) {
  return mul_unary(context.input(0), context.input(1), context.as<UnaryArgs>(),
                   context.dynamic_as<UnaryScalars>());
}

/// g f^(order)(x); computed again where it is part of a gradient that is differentiated.
const OpDef mul_unary_op = {
    .name = "unary_grad",
    .infer = infer_unary,
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b01, legal);
          broadcast_signatures(problem, legal);
        },
    .local =
        [](const LocalCall& call) {
          const auto& args = call.as<UnaryArgs>();
          kernels::mul_unary(kind_of(args), static_cast<int>(args.order),
                             call.dynamic_as<UnaryScalars>().alpha, call.in[0].view,
                             call.in[1].view, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          const auto& args = context.as<UnaryArgs>();
          const auto& scalars = context.dynamic_as<UnaryScalars>();
          const Tensor h = context.grad();
          if (context.needs(0)) context.set(0, mul_unary(h, context.input(1), args, scalars));
          if (context.needs(1)) {
            context.set(1, mul_unary(h * context.input(0), context.input(1),
                                     {args.kind, args.order + 1}, scalars));
          }
        },
    .recompute = mul_unary_recompute,
    .saved_inputs = 0b11};

Tensor mul_unary(const Tensor& g, const Tensor& x, UnaryArgs args, UnaryScalars scalars) {
  return call(mul_unary_op, {g, x}, args, scalars);
}

Tensor unary(UnaryKind kind, const Tensor& x, double alpha = 0.0) {
  return call(unary_op(kind), {x}, UnaryArgs{static_cast<std::int64_t>(kind), 0},
              UnaryScalars{alpha});
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kAdd>(), {a, b});
}
Tensor sub(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kSub>(), {a, b});
}
Tensor mul(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kMul>(), {a, b});
}
Tensor div(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kDiv>(), {a, b});
}
Tensor pow(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kPow>(), {a, b});
}
Tensor maximum(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kMaximum>(), {a, b});
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(binary_op<BinaryKind::kMinimum>(), {a, b});
}
Tensor atan2(const Tensor& y, const Tensor& x) {
  return call<NoArgs>(binary_op<BinaryKind::kAtan2>(), {y, x});
}

Tensor affine(const Tensor& x, double alpha, double beta) {
  return call(affine_op, {x}, AffineArgs{beta != 0.0}, AffineScalars{alpha, beta});
}
Tensor clamp(const Tensor& x, double low, double high) {
  if (!(low <= high))
    throw UsageError(str("clamp: limits ", low, " and ", high, " are not in order. Swap them."));
  return call(clamp_op, {x}, NoArgs{}, ClampLimits{low, high});
}
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call<NoArgs>(where_op, {condition, a, b});
}

Tensor equal(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(compare_op<CompareKind::kEq>(), {a, b});
}
Tensor not_equal(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(compare_op<CompareKind::kNe>(), {a, b});
}
Tensor less(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(compare_op<CompareKind::kLt>(), {a, b});
}
Tensor less_equal(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(compare_op<CompareKind::kLe>(), {a, b});
}
Tensor greater(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(compare_op<CompareKind::kGt>(), {a, b});
}
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(compare_op<CompareKind::kGe>(), {a, b});
}

Tensor pow(const Tensor& x, double exponent) { return unary(UnaryKind::kPower, x, exponent); }
Tensor abs(const Tensor& x) { return unary(UnaryKind::kAbs, x); }
Tensor exp(const Tensor& x) { return unary(UnaryKind::kExp, x); }
Tensor expm1(const Tensor& x) { return unary(UnaryKind::kExpm1, x); }
Tensor log(const Tensor& x) { return unary(UnaryKind::kLog, x); }
Tensor log1p(const Tensor& x) { return unary(UnaryKind::kLog1p, x); }
Tensor sqrt(const Tensor& x) { return unary(UnaryKind::kSqrt, x); }
Tensor rsqrt(const Tensor& x) { return unary(UnaryKind::kRsqrt, x); }
Tensor square(const Tensor& x) { return unary(UnaryKind::kSquare, x); }
Tensor reciprocal(const Tensor& x) { return unary(UnaryKind::kReciprocal, x); }
Tensor sin(const Tensor& x) { return unary(UnaryKind::kSin, x); }
Tensor cos(const Tensor& x) { return unary(UnaryKind::kCos, x); }
Tensor erf(const Tensor& x) { return unary(UnaryKind::kErf, x); }
Tensor sign(const Tensor& x) { return unary(UnaryKind::kSign, x); }
Tensor floor(const Tensor& x) { return unary(UnaryKind::kFloor, x); }
Tensor ceil(const Tensor& x) { return unary(UnaryKind::kCeil, x); }
Tensor round(const Tensor& x) { return unary(UnaryKind::kRound, x); }
Tensor relu(const Tensor& x) { return unary(UnaryKind::kRelu, x); }
Tensor leaky_relu(const Tensor& x, double slope) { return unary(UnaryKind::kLeakyRelu, x, slope); }
Tensor elu(const Tensor& x, double alpha) { return unary(UnaryKind::kElu, x, alpha); }
Tensor sigmoid(const Tensor& x) { return unary(UnaryKind::kSigmoid, x); }
Tensor tanh(const Tensor& x) { return unary(UnaryKind::kTanh, x); }
Tensor silu(const Tensor& x) { return unary(UnaryKind::kSilu, x); }
Tensor gelu(const Tensor& x, bool tanh_approximation) {
  return unary(tanh_approximation ? UnaryKind::kGeluTanh : UnaryKind::kGelu, x);
}
Tensor softplus(const Tensor& x) { return unary(UnaryKind::kSoftplus, x); }

}  // namespace tessera
