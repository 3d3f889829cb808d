#pragma once

#include <span>
#include <tessera/core/layout.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::atomistic {

/// Combines numbers of the ranks between which `layout` is split, in place: the same bits on all.
inline void all_reduce(const Layout& layout,
                       std::span<double> values,
                       ReduceOp op = ReduceOp::kSum) {
  const auto group = parallel::Group::of(layout.mesh(), layout.split_axes());
  parallel::all_reduce(group, values.data(), static_cast<std::int64_t>(values.size()),
                       DType::kFloat64, op, {"atoms", {}, {}})
      .wait();
}

}  // namespace tessera::atomistic
