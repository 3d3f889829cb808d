// Truth values element by element. `all` and `any` are reductions: reduce.cpp.

#include <cmath>
#include <limits>
#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

using kernels::LogicalKind;

void check_bool(const char* op, const Problem& problem) {
  for (const DType dtype : problem.dtypes) {
    if (dtype != DType::kBool)
      throw DTypeError(
          str(op, ": element type ", name(dtype), " is not bool. Compare it with something."));
  }
}

template <LogicalKind kind>
constexpr const char* op_name() {
  return kind == LogicalKind::kAnd  ? "logical_and"
         : kind == LogicalKind::kOr ? "logical_or"
                                    : "logical_xor";
}

template <LogicalKind kind>
const OpDef& logical_op() {
  static const OpDef op = {
      .name = op_name<kind>(),
      .infer =
          [](const Problem& problem, std::vector<OutputMeta>& out) {
            check_bool(op_name<kind>(), problem);
            out.push_back({broadcast_shape(op_name<kind>(), problem.shape(0), problem.shape(1)),
                           DType::kBool});
          },
      .signatures = [](const Problem& problem, const AxisGroup&,
                       std::vector<Signature>& legal) { broadcast_signatures(problem, legal); },
      .local =
          [](const LocalCall& call) {
            const View& y = call.out[0].view;
            kernels::logical(kind, kernels::broadcast_to(call.in[0].view, y.shape),
                             kernels::broadcast_to(call.in[1].view, y.shape), y);
          }};
  return op;
}

const OpDef not_op = {
    .name = "logical_not",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          check_bool("logical_not", problem);
          out.push_back({problem.shape(0), DType::kBool});
        },
    .signatures = [](const Problem& problem,
                     const AxisGroup&,
                     std::vector<Signature>& legal) { broadcast_signatures(problem, legal); },
    .local =
        [](const LocalCall& call) { kernels::logical_not(call.in[0].view, call.out[0].view); }};

/// `value` as a tensor that compares with x.
Tensor number(const char* op, const Tensor& x, double value) {
  if (!is_floating(x.dtype()) && value != std::trunc(value)) {
    throw DTypeError(str(op, ": ", value, " is no ", name(x.dtype()),
                         " (nothing is converted silently). Cast x to a floating type."));
  }
  return Tensor::scalar(x.mesh(), value, x.dtype());
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Tensor logical_and(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(logical_op<LogicalKind::kAnd>(), {a, b});
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(logical_op<LogicalKind::kOr>(), {a, b});
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return call<NoArgs>(logical_op<LogicalKind::kXor>(), {a, b});
}
Tensor logical_not(const Tensor& x) { return call<NoArgs>(not_op, {x}); }

Tensor equal(const Tensor& x, double value) { return equal(x, number("equal", x, value)); }
Tensor not_equal(const Tensor& x, double value) {
  return not_equal(x, number("not_equal", x, value));
}
Tensor less(const Tensor& x, double value) { return less(x, number("less", x, value)); }
Tensor less_equal(const Tensor& x, double value) {
  return less_equal(x, number("less_equal", x, value));
}
Tensor greater(const Tensor& x, double value) { return greater(x, number("greater", x, value)); }
Tensor greater_equal(const Tensor& x, double value) {
  return greater_equal(x, number("greater_equal", x, value));
}

// A NaN is the one value that differs from itself.
Tensor isnan(const Tensor& x) { return not_equal(x, x); }
Tensor isinf(const Tensor& x) {
  return is_floating(x.dtype()) ? equal(abs(x.detach()), kInfinity) : not_equal(x, x);
}
Tensor isfinite(const Tensor& x) {
  return is_floating(x.dtype()) ? less(abs(x.detach()), kInfinity) : equal(x, x);
}

}  // namespace tessera
