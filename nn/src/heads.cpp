#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/heads.hpp>

namespace tessera::nn {

Tensor split_heads(const Tensor& x, std::int64_t heads) {
  Shape shape = x.shape();
  shape.back() = heads;
  shape.push_back(x.size(-1) / heads);
  return reshape(x, shape);
}

Tensor join_heads(const Tensor& x) {
  Shape shape = x.shape();
  const std::int64_t channels = shape.back();
  shape.resize(shape.size() - 1);
  shape.back() *= channels;
  return reshape(x, shape);
}

}  // namespace tessera::nn
