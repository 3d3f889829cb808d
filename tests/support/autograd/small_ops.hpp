#pragma once

#include <cmath>
#include <tessera/autograd/op.hpp>

#include "support/op_test.hpp"

/// The smallest ops of each kind, registered from outside the library, to plant faults in.
namespace tessera::test {

/// y = f(x), element by element, on dense parts.
template <class F>
void each_element(const LocalCall& call, F f) {
  const View in = call.in[0].view;
  const View out = call.out[0].view;
  for_each_index(Box::whole(in.shape), [&](const Index& i) {
    std::int64_t from = 0;
    std::int64_t to = 0;
    for (int d = 0; d < i.size(); ++d) {
      from += i[d] * in.strides[d];
      to += i[d] * out.strides[d];
    }
    store_double(out.data, out.dtype, to, f(load_as_double(in.data, in.dtype, from)));
  });
}

/// y = x^3, x [n, m]: nonlinear, no communication.
extern const OpDef cube_op;
void cube_signatures(const Problem& problem, const AxisGroup& group, std::vector<Signature>& legal);
Tensor cube(const Tensor& x, const OpDef& op = cube_op);
OpCase cube_case(const OpDef& op);

/// y[j] = sum_i x[i, j]: a pending sum where i is split.
extern const OpDef column_sum_op;
void column_sum_signatures(const Problem& problem,
                           const AxisGroup& group,
                           std::vector<Signature>& legal);
OpCase column_sum_case(const OpDef& op);

/// s[t] = sum_i g[i] x[i - 1 + t], t = 0, 1, 2: the gradient of a stencil's weights. The work is an
/// input, and the boxes of it are added up.
extern const OpDef tap_sums_op;
void tap_sums_local(const LocalCall& call);
OpCase tap_sums_case(const OpDef& op);

/// A loss: (mean of x^2)^2.
OpCase mean_square_case();

}  // namespace tessera::test
