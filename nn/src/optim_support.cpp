#include "optim_support.hpp"

#include <tessera/parallel/communicator.hpp>

namespace tessera::optim {

void reduce_numbers(std::span<double> numbers,
                    const std::vector<nn::Parameter>& parameters,
                    ReduceOp op) {
  const Mesh& mesh = parameters[0].whole_mesh();
  if (mesh.size() == 1) return;
  parallel::all_reduce(parallel::Group::of(mesh, mesh.all_axes()), numbers.data(),
                       static_cast<std::int64_t>(numbers.size()), DType::kFloat64, op,
                       {.op = "optimizer"})
      .wait();
}

}  // namespace tessera::optim
