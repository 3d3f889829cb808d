#include "broadcast.hpp"

namespace tessera {

void broadcast_signatures(const Problem& problem, std::vector<Signature>& legal) {
  const Shape& out = problem.out[0].shape;
  const int inputs = static_cast<int>(problem.in.size());
  for (int d = 0; d < out.size(); ++d) {
    std::vector<Role> roles(problem.in.size());
    // An operand that is stretched along d is smaller than the result by at least out[d]: gathering
    // it is cheaper than moving the others.
    std::uint32_t stretched = 0;
    for (int i = 0; i < inputs; ++i) {
      if (!problem.in[static_cast<std::size_t>(i)].defined()) continue;
      const int dim = d - (out.size() - problem.shape(i).size());
      if (dim >= 0 && problem.shape(i)[dim] == out[d]) {
        roles[static_cast<std::size_t>(i)] = shard_role(dim);
      } else {
        stretched |= 1u << i;
      }
    }
    for (int i = 0; i < inputs; ++i) {
      if (roles[static_cast<std::size_t>(i)].kind != Role::kShard) continue;
      legal.push_back({.in = roles,
                       .out = std::vector<Role>(problem.out.size(), shard_role(d)),
                       .driver = i,
                       .may_gather = stretched});
    }
  }
}

void partial_signature(const Problem& problem,
                       std::uint32_t partial_inputs,
                       std::vector<Signature>& legal) {
  std::vector<Role> roles(problem.in.size());
  for (std::size_t i = 0; i < roles.size(); ++i)
    if (partial_inputs >> i & 1u) roles[i] = partial_role();
  for (int i = 0; i < static_cast<int>(roles.size()); ++i) {
    if (!(partial_inputs >> i & 1u)) continue;
    legal.push_back({.in = roles, .out = {partial_role()}, .driver = i, .bounds = {}});
  }
}

DType common_dtype(const char* op, const Problem& problem) {
  DType dtype = DType::kFloat32;
  bool first = true;
  for (std::size_t i = 0; i < problem.in.size(); ++i) {
    if (!problem.in[i].defined()) continue;
    if (!first && problem.dtypes[i] != dtype) {
      throw DTypeError(str(op, ": element types ", name(dtype), " and ", name(problem.dtypes[i]),
                           " are mixed (nothing is converted silently). Use cast()."));
    }
    dtype = problem.dtypes[i];
    first = false;
  }
  return dtype;
}

DType norm_dtype(const char* op, const Problem& problem) {
  const DType dtype = problem.dtypes[0];
  if (!is_floating(dtype))
    throw DTypeError(str(op, ": element type ", name(dtype), " is not floating. Cast it first."));
  bool exact = dtype == DType::kBFloat16;
  for (const std::size_t i : {1u, 2u})
    exact &= !problem.in[i].defined() || problem.dtypes[i] == DType::kFloat32;
  return exact ? dtype : common_dtype(op, problem);
}

}  // namespace tessera
