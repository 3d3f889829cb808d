#include "support/autograd/small_ops.hpp"

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

namespace tessera::test {

namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<DenseArray>;

void same_shape(const Problem& problem, std::vector<OutputMeta>& out) {
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

}  // namespace

void cube_signatures(const Problem&, const AxisGroup&, std::vector<Signature>& legal) {
  for (int d = 0; d < 2; ++d) legal.push_back({.in = {shard_role(d)}, .out = {shard_role(d)}});
}

const OpDef cube_op = {
    .name = "cube",
    .infer = same_shape,
    .signatures = cube_signatures,
    .local = [](const LocalCall& call) { each_element(call, [](double x) { return x * x * x; }); },
    .vjp = [](VjpContext& c) { c.set(0, square(c.input(0)) * c.grad() * 3.0); },
    .saved_inputs = 1};

Tensor cube(const Tensor& x, const OpDef& op) { return call<NoArgs>(op, {x}); }

OpCase cube_case(const OpDef& op) {
  return {.inputs = {uniform({5, 6})},
          .f = [&op](const Tensors& in) -> Tensors { return {cube(in[0], op)}; },
          .exact = true};
}

void column_sum_signatures(const Problem&, const AxisGroup&, std::vector<Signature>& legal) {
  legal.push_back({.in = {partial_role()}, .out = {partial_role()}});
  legal.push_back({.in = {shard_role(0)}, .out = {partial_role()}});
  legal.push_back({.in = {shard_role(1)}, .out = {shard_role(0)}});
}

const OpDef column_sum_op = {
    .name = "column_sum",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({{problem.shape(0)[1]}, problem.dtypes[0]});
        },
    .signatures = column_sum_signatures,
    .local =
        [](const LocalCall& call) {
          const View x = call.in[0].view;
          const View y = call.out[0].view;
          for (std::int64_t j = 0; j < x.shape[1]; ++j) {
            double s = 0.0;
            for (std::int64_t i = 0; i < x.shape[0]; ++i)
              s += load_as_double(x.data, x.dtype, i * x.strides[0] + j * x.strides[1]);
            store_double(y.data, y.dtype, j * y.strides[0], s);
          }
        },
    .vjp = [](VjpContext& c) { c.set(0, expand(c.grad(), c.input_layout(0))); }};

OpCase column_sum_case(const OpDef& op) {
  return {.inputs = {uniform({5, 6})},
          .f = [&op](const Tensors& in) -> Tensors { return {call<NoArgs>(op, {in[0]})}; },
          .linear = {{0}}};
}

void tap_sums_local(const LocalCall& call) {
  const Piece& g = call.in[0];
  const Piece& x = call.in[1];
  const View s = call.out[0].view;
  for (std::int64_t t = 0; t < 3; ++t) {
    double sum = call.accumulate ? load_as_double(s.data, s.dtype, t) : 0.0;
    for (std::int64_t i = g.box.lo[0]; i < g.box.hi[0]; ++i) {
      const std::int64_t j = i - 1 + t;
      if (j < x.box.lo[0] || j >= x.box.hi[0]) continue;
      sum += load_as_double(g.view.data, g.view.dtype, (i - g.box.lo[0]) * g.view.strides[0]) *
             load_as_double(x.view.data, x.view.dtype, (j - x.box.lo[0]) * x.view.strides[0]);
    }
    store_double(s.data, s.dtype, t, sum);
  }
}

const OpDef tap_sums_op = {
    .name = "tap_sums",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          out.push_back({{3}, problem.dtypes[0]});
        },
    .signatures =
        [](const Problem&, const AxisGroup&, std::vector<Signature>& legal) {
          for (const int driver : {0, 1}) {
            legal.push_back(
                {.in = {shard_role(0), window_role(0)}, .out = {partial_role()}, .driver = driver});
          }
        },
    .windows =
        [](const Problem&, std::vector<Window>& windows) {
          windows.push_back({.input = 1, .in_dim = 0, .work_dim = 0, .need = [](Interval g) {
                               return Interval{g.lo - 1, g.hi + 1};
                             }});
        },
    .work = 0,
    .local = tap_sums_local};

OpCase tap_sums_case(const OpDef& op) {
  return {.inputs = {constant(uniform({23})), constant(uniform({23}))},
          .f = [&op](const Tensors& in) -> Tensors {
            return {call<NoArgs>(op, {in[0], in[1]})};
          },
          .may_throw = [](const std::vector<Layout>& in) { return in[0].mesh().axis_count() > 1; }};
}

OpCase mean_square_case() {
  return {.inputs = {uniform({5, 6})},
          .f = [](const Tensors& in) -> Tensors { return {square(mean(square(in[0])))}; }};
}

}  // namespace tessera::test
