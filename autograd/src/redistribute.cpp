#include <tessera/autograd/gathered.hpp>
#include <tessera/parallel/redistribute.hpp>

#include "gathers.hpp"
#include "tape.hpp"
#include "verbose.hpp"

namespace tessera {

namespace {

/// The identity on global values, and so its gradient is the gradient itself: the tape brings it to
/// the layout of x.
void redistribute_vjp(VjpContext& context) { context.set(0, context.grad(0)); }

const OpDef redistribute_op = {
    .name = "redistribute", .vjp = redistribute_vjp, .linear_view = true};

Tensor recorded(const Tensor& x, Tensor y, const OpDef& op = redistribute_op) {
  const NoArgs none;
  Outputs outputs;
  outputs.push_back(std::move(y));
  record(op, std::span(&x, 1), {&none, sizeof none, &none, sizeof none}, outputs);
  return outputs[0];
}

void check_redistribution(const Tensor& x, const Layout& layout) {
  if (!(x.shape() == layout.shape()) || !(x.mesh() == layout.mesh())) {
    throw LayoutError(str("redistribute: ", x.layout(), " on mesh ", x.mesh().str(),
                          " cannot become ", layout, " on mesh ", layout.mesh().str(),
                          ". Shape and mesh must be the same."));
  }
}

}  // namespace

const OpDef redistribute_again_op = {.name = "redistribute",
                                     .vjp = redistribute_vjp,
                                     .recompute =
                                         [](const VjpContext& context) {
                                           return redistribute(context.input(0),
                                                               context.output_layout(0));
                                         },
                                     .saved_inputs = 0b1,
                                     .linear_view = true};

bool is_redistribution(const OpDef& op) {
  return &op == &redistribute_op || &op == &redistribute_again_op;
}

Tensor recorded_alias(const Tensor& x) { return recorded(x, x.detach()); }

Tensor redistribute(const Tensor& x, const Layout& layout) {
  if (x.layout() == layout) return x;
  check_redistribution(x, layout);
  verbose_redistribution("redistribute", x.layout(), layout);
  Tensor y = parallel::redistribute(x, layout);
  // A free redistribution may hand back a tensor that shares the object; the tape needs one of its
  // own.
  return recorded(x, y.id() == x.id() ? y.detach() : std::move(y));
}

Tensor redistribute_again(const Tensor& x, const Layout& layout, const Tensor& ready) {
  if (x.layout() == layout) return x;
  check_redistribution(x, layout);
  verbose_redistribution("parameter", x.layout(), layout);
  Tensor y = ready.defined() ? ready : parallel::redistribute(x, layout, "parameter");
  return recorded(x, y.detach(), redistribute_again_op);
}

Tensor redistributed(const Tensor& x, const Tensor& ready) { return recorded(x, ready.detach()); }

Tensor replicate(const Tensor& x) {
  return redistribute(x, Layout::replicated(x.mesh(), x.shape()));
}
Tensor reduced(const Tensor& x) { return redistribute(x, x.layout().dual()); }

}  // namespace tessera
