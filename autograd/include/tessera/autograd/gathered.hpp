#pragma once

#include <tessera/autograd/autograd.hpp>

namespace tessera {

/// redistribute() for what is cheap to keep as it is and dear to keep as it is read, the weights of
/// a fully sharded model: nothing that reads the result keeps it for the gradient. Backward moves
/// `x` again when an op asks for the value, the next older one ahead of use. Where `ready` is
/// defined it holds the values in `layout` already, and nothing moves now.
Tensor redistribute_again(const Tensor& x, const Layout& layout, const Tensor& ready = {});

/// redistribute() whose values exist: records that `ready` is `x` in the layout of `ready`.
Tensor redistributed(const Tensor& x, const Tensor& ready);

}  // namespace tessera
