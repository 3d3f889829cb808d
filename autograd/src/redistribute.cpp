#include <tessera/parallel/redistribute.hpp>

#include "tape.hpp"
#include "verbose.hpp"

namespace tessera {

namespace {

/// The identity on global values, and so its gradient is the gradient itself: the tape brings it to
/// the layout of x.
void redistribute_vjp(VjpContext& context) { context.set(0, context.grad(0)); }

const OpDef redistribute_op = {
    .name = "redistribute", .vjp = redistribute_vjp, .linear_view = true};

Tensor recorded(const Tensor& x, Tensor y) {
  const NoArgs none;
  Outputs outputs;
  outputs.push_back(std::move(y));
  record(redistribute_op, std::span(&x, 1), {&none, sizeof none, &none, sizeof none}, outputs);
  return outputs[0];
}

}  // namespace

Tensor recorded_alias(const Tensor& x) { return recorded(x, x.detach()); }

Tensor redistribute(const Tensor& x, const Layout& layout) {
  if (x.layout() == layout) return x;
  if (!(x.shape() == layout.shape()) || !(x.mesh() == layout.mesh())) {
    throw LayoutError(str("redistribute: ", x.layout(), " on mesh ", x.mesh().str(),
                          " cannot become ", layout, " on mesh ", layout.mesh().str(),
                          ". Shape and mesh must be the same."));
  }
  verbose_redistribution("redistribute", x.layout(), layout);
  Tensor y = parallel::redistribute(x, layout);
  // A free redistribution may hand back a tensor that shares the object; the tape needs one of its
  // own.
  return recorded(x, y.id() == x.id() ? y.detach() : std::move(y));
}

Tensor replicate(const Tensor& x) {
  return redistribute(x, Layout::replicated(x.mesh(), x.shape()));
}
Tensor reduced(const Tensor& x) { return redistribute(x, x.layout().dual()); }

}  // namespace tessera
