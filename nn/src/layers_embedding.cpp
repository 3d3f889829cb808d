#include <fmt/format.h>

#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/layers.hpp>

namespace tessera::nn {

Embedding::Embedding(std::int64_t rows, std::int64_t features, const Mesh& mesh, DType dtype) {
  if (rows <= 0 || features <= 0) {
    throw UsageError(
        str("Embedding: ", rows, " rows of ", features, " features (both must be positive)."));
  }
  weight = Parameter({rows, features}, init::normal(0.0, 1.0), mesh, dtype);
}

void Embedding::fields(Fields& f) { f("weight", weight); }

Tensor Embedding::forward(const Tensor& index) const {
  Shape shape = index.shape();
  shape.push_back(weight.shape()[1]);
  const Tensor rows = gather(weight(), index.dims() == 1 ? index : reshape(index, {-1}));
  return index.dims() == 1 ? rows : reshape(rows, shape);
}

std::string Embedding::describe() const {
  return fmt::format("Embedding {} x {}", weight.shape()[0], weight.shape()[1]);
}

}  // namespace tessera::nn
