#pragma once

#include <algorithm>

#include "support/op_test.hpp"

namespace tessera::test {

/// Operands of one shape may be split along one dimension over different axes: an error with
/// advice.
inline bool disagree(const std::vector<Layout>& layouts) {
  for (const Layout& a : layouts)
    for (const Layout& b : layouts)
      for (int d = 0; d < std::min(a.dims(), b.dims()); ++d)
        if (a.is_split(d) && b.split_axes() != 0 && a.axes_of(d) != b.axes_of(d)) return true;
  return false;
}

/// A weight that every rank has whole.
inline InputSpec whole(InputSpec spec) {
  spec = constant(std::move(spec));
  spec.cuttable = Dims{};
  spec.partial = false;
  return spec;
}

inline Mesh line() { return Mesh::world({{"x", process().count}}); }

}  // namespace tessera::test
