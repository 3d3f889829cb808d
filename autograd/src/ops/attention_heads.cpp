#include "attention_heads.hpp"

#include <tessera/autograd/autograd.hpp>

namespace tessera {

Tensor beside_result(const Tensor& x, const Layout& result, int leading) {
  const Shape& shape = x.shape();
  const int heads = shape.size() - 2;
  const int result_heads = result.dims() - 2;
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  for (int d = 0; d < leading; ++d) splits[static_cast<std::size_t>(d)] = result.split(d);
  DimSplit by_head = result.split(result_heads);
  const std::int64_t ratio = result.shape()[result_heads] / shape[heads];
  bool whole = shape[heads] == 1;
  for (std::int64_t& b : by_head.bounds) {
    whole |= b % ratio != 0;
    b /= ratio;
  }
  if (!whole) splits[static_cast<std::size_t>(heads)] = by_head;
  return redistribute(x, Layout::make(x.mesh(), shape, std::move(splits)));
}

}  // namespace tessera
