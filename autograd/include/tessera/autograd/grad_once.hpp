#pragma once

#include <tessera/autograd/autograd.hpp>

namespace tessera {

/// grad() through a graph that is not needed again: frees what it saved as it is used, as
/// backward() does, so that the walk adds little to the peak of memory. A second use of the graph
/// throws UsageError.
std::vector<Tensor> grad_once(const std::vector<Tensor>& outputs,
                              const std::vector<Tensor>& inputs,
                              const std::vector<Tensor>& grad_outputs = {});

}  // namespace tessera
