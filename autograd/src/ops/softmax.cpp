// Over whole channels: one pass over each row, which keeps the result alone. Over other dimensions,
// or split ones: small ops, whose maxima and sums are reduced.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/softmax.hpp>
#include <tessera/kernels/softmax.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

void check_floating(const char* op, const Tensor& x) {
  if (!is_floating(x.dtype()))
    throw DTypeError(
        str(op, ": element type ", name(x.dtype()), " is not floating. Cast it first."));
}

/// x less its largest element, which changes no result and so counts as a constant.
Tensor below_zero(const char* op, const Tensor& x, const Dims& dims) {
  check_floating(op, x);
  const Tensor whole = reduced(x);
  if (whole.shape().product() == 0) return whole;  // nothing has no largest element
  return whole - amax(whole.detach(), dims, true);
}

void infer_rows(const Problem& problem, std::vector<OutputMeta>& out) {
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

template <int kInputs>
void row_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  for (int d = 0; d + 1 < problem.shape(0).size(); ++d) {
    for (int driver = 0; driver < kInputs; ++driver) {
      legal.push_back({.in = std::vector<Role>(kInputs, shard_role(d)),
                       .out = {shard_role(d)},
                       .driver = driver,
                       .bounds = {}});
    }
  }
}

Tensor rows_grad(const Tensor& y, const Tensor& g);

/// (y, g) -> y (g - sum g y): linear in g, and symmetric there.
const OpDef rows_grad_op = {
    .name = "softmax_grad",
    .infer = infer_rows,
    .signatures = row_signatures<2>,
    .local =
        [](const LocalCall& call) {
          kernels::softmax_grad(call.in[0].view, call.in[1].view, call.out[0].view);
        },
    .vjp =
        [](VjpContext& context) {
          const Tensor y = context.input(0);
          const Tensor g = context.input(1);
          const Tensor c = context.grad();
          if (context.needs(0)) {
            context.set(0, c * (g - sum(g * y, {-1}, true)) - g * sum(c * y, {-1}, true));
          }
          if (context.needs(1)) context.set(1, rows_grad(y, c));
        },
    .saved_inputs = 0b11};

Tensor rows_grad(const Tensor& y, const Tensor& g) { return call<NoArgs>(rows_grad_op, {y, g}); }

const OpDef rows_op = {
    .name = "softmax",
    .infer = infer_rows,
    .signatures = row_signatures<1>,
    .local = [](const LocalCall& call) { kernels::softmax(call.in[0].view, call.out[0].view); },
    .vjp =
        [](VjpContext& context) { context.set(0, rows_grad(context.output(0), context.grad())); },
    .saved_outputs = 0b1};

}  // namespace

Tensor softmax(const Tensor& x, const Dims& dims) {
  const int last = x.dims() - 1;
  if (last >= 0 && dims.size() == 1 && wrap_dim("softmax", dims[0], x.dims()) == last &&
      !x.layout().is_split(last)) {
    check_floating("softmax", x);
    return call<NoArgs>(rows_op, {x});
  }
  const Tensor e = exp(below_zero("softmax", x, dims));
  return e / sum(e, dims, true);
}

Tensor log_softmax(const Tensor& x, const Dims& dims) {
  const Tensor shifted = below_zero("log_softmax", x, dims);
  return shifted - log(sum(exp(shifted), dims, true));
}

}  // namespace tessera
