// What is checked over all processes: every cut against one rank.
#include <algorithm>
#include <cmath>

#include "support/autograd/cut.hpp"

namespace tessera::test {

namespace {

/// <f(x), c> against <x, f'(c)>.
std::string check_adjoint(const OpCase& c, const OneRank& one, const std::vector<Layout>& layouts) {
  std::string failure;
  for (const std::vector<int>& set : c.linear) {
    OpCase part = c;
    for (std::size_t i = 0; i < part.inputs.size(); ++i) {
      part.inputs[i].differentiable =
          std::find(set.begin(), set.end(), static_cast<int>(i)) != set.end();
    }
    const Results r = evaluate(
        part, one.inputs, DType::kFloat64,
        [&](std::size_t i, const DenseArray& a, DType t) { return to_tensor(a, layouts[i], t); },
        [&](const DenseArray& a, const Layout& of, DType t) { return to_tensor(a, of.dual(), t); },
        false);
    double left = 0.0;
    double right = 0.0;
    double terms = 0.0;
    double ignored = 0.0;
    const std::vector<DenseArray> cotangents = output_cotangents(part, r.outputs);
    std::size_t next = 0;
    for (const Tensor& y : r.outputs) {
      if (is_floating(y.dtype())) add_product(to_dense(y), cotangents[next++], &left, &terms);
    }
    std::size_t leaf = 0;
    for (std::size_t i = 0; i < part.inputs.size(); ++i) {
      if (wants_gradient(part.inputs[i]))
        add_product(one.inputs[i], to_dense(r.first[leaf++]), &right, &ignored);
    }
    if (!(std::abs(left - right) <= 1e-12 * std::max(terms + ignored, c.terms))) {
      failure += str("adjoint identity: <Ax, y> = ", left, " but <x, A'y> = ", right, " on ",
                     describe(layouts), "\n");
    }
  }
  return agreed(failure);
}

/// For each input, what each mesh axis does: a dimension, kAxisReplicates or kAxisPending.
using Cut = std::vector<std::vector<int>>;

/// Every choice that one axis may take for one input, replication left out.
std::vector<int> roles_of(const InputSpec& spec) {
  std::vector<int> roles;
  if (spec.absent) return roles;
  for (int d = 0; d < spec.shape.size(); ++d) {
    if (spec.cuts(d)) roles.push_back(d);
  }
  if (spec.partial && spec.floating()) roles.push_back(kAxisPending);
  return roles;
}

std::vector<Cut> cuts_of(const OpCase& c, const Mesh& mesh, Rng& rng) {
  const auto axes = static_cast<std::size_t>(mesh.axis_count());
  const Cut whole(c.inputs.size(), std::vector<int>(axes, kAxisReplicates));
  std::vector<Cut> cuts;
  if (axes == 0) return {whole};
  if (axes == 1 && c.all_cuts) {
    cuts.push_back(whole);
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      for (const int role : roles_of(c.inputs[i])) {
        cuts.push_back(whole);
        cuts.back()[i][0] = role;
      }
    }
  }
  if (axes > 1) {
    // Domain decomposition proper: the axes split dimensions of the first input in order, all but
    // the batch, then from it.
    for (int first = 1; first >= 0; --first) {
      Cut cut = whole;
      bool fits = !c.inputs.empty() && !c.inputs[0].absent;
      for (std::size_t a = 0; a < axes; ++a) {
        const int dim = first + static_cast<int>(a);
        fits = fits && dim < c.inputs[0].shape.size() && c.inputs[0].cuts(dim);
        cut[0][a] = dim;
      }
      if (fits) cuts.push_back(cut);
    }
  }
  for (int k = 0; k < c.random_cuts; ++k) {
    Cut cut = whole;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      const std::vector<int> roles = roles_of(c.inputs[i]);
      for (std::size_t a = 0; a < axes && !roles.empty(); ++a) {
        if (rng.coin(i == 0 ? 0.8 : 0.5)) cut[i][a] = rng.choice(roles);
      }
    }
    if (std::find(cuts.begin(), cuts.end(), cut) == cuts.end()) cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace

std::string check_layouts(const OpCase& c, const std::vector<Layout>& layouts) {
  return check_cut(c, one_rank(c), layouts);
}

std::string check_cuts(const OpCase& full) {
  OpCase c = full;
  if (process().count > 4) {
    // Many processes share few cores here; the smaller numbers of ranks do the broad search.
    c.variants = 1;
    c.random_cuts = std::min(c.random_cuts, 6);
  }
  OneRank one;
  const std::string failure = guarded("one rank", [&] {
    one = one_rank(c);
    return std::string();
  });
  if (const std::string all = agreed(failure); !all.empty()) return all;

  std::string text;
  int failed = 0;
  Rng rng(c.seed * 7 + 3);
  for (const Mesh& mesh : test_meshes()) {
    for (const Cut& cut : cuts_of(c, mesh, rng)) {
      for (int variant = 0; variant < c.variants; ++variant) {
        std::vector<Layout> layouts;
        for (std::size_t i = 0; i < c.inputs.size(); ++i) {
          layouts.push_back(
              c.inputs[i].absent
                  ? Layout()
                  : draw_layout(mesh, c.inputs[i].shape, cut[i],
                                c.variants == 1 ? static_cast<int>(rng.integer(0, 1)) : variant,
                                rng));
        }
        std::string here = check_cut(c, one, layouts);
        const bool throws =
            (c.unsupported && c.unsupported(layouts)) || (c.may_throw && c.may_throw(layouts));
        if (here.empty() && c.first && !throws) here = check_adjoint(c, one, layouts);
        text += here;
        // The first few say enough; a broken op would print thousands. The texts differ by process,
        // the number of failed cuts does not.
        failed += here.empty() ? 0 : 1;
        if (failed == 4) return text;
      }
    }
  }
  return text;
}

}  // namespace tessera::test
