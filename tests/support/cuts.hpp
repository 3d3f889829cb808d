#pragma once

#include <tessera/core/layout.hpp>
#include <vector>

/// How the inputs of a case are cut, for OpCase::may_throw.
namespace tessera::test {

/// Whether inputs split one dimension over different axes, or one axis splits different dimensions:
/// that may need a decision which the user has to take.
inline bool disagree(const std::vector<Layout>& layouts) {
  for (const Layout& a : layouts)
    for (const Layout& b : layouts)
      for (int i = 0; i < a.dims(); ++i)
        for (int j = 0; j < b.dims(); ++j) {
          const AxisMask p = a.axes_of(i), q = b.axes_of(j);
          if (p != 0 && q != 0 && (i == j ? p != q : (p & q) != 0)) return true;
        }
  return false;
}

/// Whether more than one input is split.
inline bool several_split(const std::vector<Layout>& layouts) {
  int split = 0;
  for (const Layout& l : layouts) split += l.defined() && l.split_axes() != 0 ? 1 : 0;
  return split > 1;
}

}  // namespace tessera::test
