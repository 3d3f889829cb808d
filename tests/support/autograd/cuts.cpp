// What is checked over all processes: every cut against one rank.
#include <algorithm>
#include <bit>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/parallel/communicator.hpp>

#include "support/autograd/evaluate.hpp"

namespace tessera::test {

namespace {

constexpr int kReplicate = -1;
constexpr int kPartial = -2;

/// What each process says about a cut; all must agree.
struct Verdict {
  static constexpr std::size_t kTensors = 28;
  std::uint64_t failed = 0;
  std::uint64_t thrown = 0;  // 0: nothing, 1: LayoutError, 2: another error
  std::uint64_t text = 0;
  std::uint64_t layouts = 0;
  std::uint64_t bits[kTensors] = {};
};

std::uint64_t bits_of(const Tensor& t) {
  Hasher hasher;
  const View view = t.local();
  for_each_index(Box::whole(view.shape), [&](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < i.size(); ++d) offset += i[d] * view.strides[d];
    // A sum that yields -0 on one replica and +0 on another would be a difference, too.
    hasher.add(std::bit_cast<std::uint64_t>(load_as_double(view.data, view.dtype, offset)));
  });
  return hasher.value();
}

std::string describe(const std::vector<Layout>& layouts) {
  std::string text;
  for (const Layout& l : layouts)
    text += l.defined() ? str(text.empty() ? "" : ", ", l.str()) : str(", none");
  for (const Layout& l : layouts) {
    if (l.defined()) return str("mesh ", l.mesh().str(), ", inputs ", text);
  }
  return text;
}

/// Results of one rank, computed once for all cuts.
struct OneRank {
  std::vector<DenseArray> inputs;
  Results tensors;
  std::vector<DenseArray> outputs;
  std::vector<DenseArray> first;
  std::vector<DenseArray> second;
};

OneRank one_rank(const OpCase& c) {
  OneRank o;
  o.inputs = make_inputs(c);
  o.tensors = evaluate_on_self(c, o.inputs, DType::kFloat64, c.second);
  for (const Tensor& t : o.tensors.outputs) o.outputs.push_back(to_dense(t));
  const std::vector<Shape> shapes = variable_shapes(o.tensors);
  o.first = dense_all(o.tensors.first, shapes);
  o.second = dense_all(o.tensors.second, shapes);
  return o;
}

std::string check_cut(const OpCase& c, const OneRank& one, const std::vector<Layout>& layouts) {
  const bool must_throw = c.unsupported && c.unsupported(layouts);
  const bool may_throw = c.may_throw && c.may_throw(layouts);
  Mesh mesh;
  Hasher cut;
  bool pending = false;  // pieces of a sum add up to rounding only
  for (const Layout& l : layouts) {
    if (!l.defined()) continue;
    pending = pending || l.partial_axes() != 0;
    mesh = l.mesh();
    cut.add(l.hash());
  }
  Rng rng(cut.value());

  std::string failure;
  std::string thrown;
  Verdict mine;
  std::vector<Tensor> seen;
  Results r;
  bool have_outputs = false;
  try {
    r = evaluate(
        c, one.inputs, DType::kFloat64,
        [&](std::size_t i, const DenseArray& a, DType t) { return to_tensor(a, layouts[i], t); },
        [&](const DenseArray& a, const Layout& of, DType t) {
          // Cotangents come in any layout; mostly in the one that the engine asks for.
          return to_tensor(a, rng.coin(0.7) ? of.dual() : draw_layout(mesh, of.shape(), rng), t);
        },
        c.second, &have_outputs);
    Hasher hasher;
    const auto check = [&](const std::string& what, const Tensor& t, const DenseArray& expected,
                           double tolerance) {
      if (!t.defined()) {
        if (expected.largest() != 0.0) failure += str(what, ": undefined\n");
        hasher.add(0);
        return;
      }
      hasher.add(t.layout().hash());
      if (!(t.mesh() == mesh)) failure += str(what, ": lies on mesh ", t.mesh().str(), "\n");
      failure += compare(what, t, expected, tolerance, c.terms);
      if (seen.size() < Verdict::kTensors) seen.push_back(t);
    };
    for (std::size_t j = 0; j < r.outputs.size(); ++j) {
      const Tensor& y = r.outputs[j];
      if (y.dtype() != one.tensors.outputs[j].dtype()) {
        failure += str("output ", j, ": ", name(y.dtype()), " instead of ",
                       name(one.tensors.outputs[j].dtype()), "\n");
      }
      const bool exact = c.exact && !pending && y.layout().partial_axes() == 0;
      check(str("output ", j), y, one.outputs[j], exact ? 0.0 : c.tolerance);
    }
    for (std::size_t i = 0; i < r.first.size(); ++i) {
      check(str("first gradient ", i), r.first[i], one.first[i], c.tolerance);
      if (r.first[i].layout() != r.leaves[i].layout().dual()) {
        failure += str("first gradient ", i, ": layout ", r.first[i].layout().str(),
                       " is not the dual of ", r.leaves[i].layout().str(), "\n");
      }
    }
    for (std::size_t i = 0; i < r.second.size(); ++i) {
      check(str("second gradient ", i), r.second[i], one.second[i], c.tolerance);
    }
    mine.layouts = hasher.value();
  } catch (const LayoutError& e) {
    mine.thrown = 1;
    thrown = e.what();
  } catch (const std::exception& e) {
    mine.thrown = 2;
    thrown = e.what();
  }

  if (mine.thrown != 0) {
    mine.text = 0;
    for (const char ch : thrown) mine.text = mine.text * 131 + static_cast<unsigned char>(ch);
    // What has a value has gradients: only the op itself may refuse its layouts.
    const bool refused = mine.thrown == 1 && !have_outputs && (must_throw || may_throw);
    if (!refused) failure += str(have_outputs ? "gradients threw '" : "threw '", thrown, "'\n");
  } else {
    if (must_throw) failure += "should throw LayoutError, but works\n";
    for (std::size_t k = 0; k < seen.size(); ++k) mine.bits[k] = bits_of(seen[k]);
  }
  mine.failed = failure.empty() ? 0 : 1;

  // Agree: one gather, whatever has happened above.
  const auto world = parallel::Group::world();
  std::vector<Verdict> all(static_cast<std::size_t>(world.size()));
  parallel::all_gather(world, &mine, all.data(), sizeof mine, {"test", {}, {}}).wait();
  bool any = false;
  for (std::size_t p = 0; p < all.size(); ++p) {
    const Verdict& v = all[p];
    if (v.thrown != all[0].thrown || v.text != all[0].text) {
      any = true;
      failure +=
          str("process ", p, v.thrown ? " threw" : " did not throw", ", process 0 ",
              all[0].thrown == 0 ? "did not" : "threw (another text?)", "; here: '", thrown, "'\n");
    } else if (v.layouts != all[0].layouts) {
      any = true;
      failure += str("result layouts of process ", p, " are not those of process 0\n");
    }
    any = any || v.failed != 0;
  }
  if (mine.thrown == 0) {
    for (std::size_t k = 0; k < seen.size(); ++k) {
      const Layout& layout = seen[k].layout();
      if (layout.partial_axes() != 0) continue;
      for (int a = 0; a < mesh.size(); ++a) {
        for (int b = a + 1; b < mesh.size(); ++b) {
          if (layout.owned(a) != layout.owned(b)) continue;
          if (all[static_cast<std::size_t>(mesh.process_of(a))].bits[k] !=
              all[static_cast<std::size_t>(mesh.process_of(b))].bits[k]) {
            any = true;
            failure += str("tensor ", k,
                           " (outputs, first, second gradients in a row): replicas on ranks ", a,
                           " and ", b, " differ in bits\n");
          }
        }
      }
    }
  }
  if (!any) return {};
  if (failure.empty()) failure = "failed on another process\n";
  return str("on ", describe(layouts), ":\n", failure);
}

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

/// For each input, what each mesh axis does: a dimension, kReplicate or kPartial.
using Cut = std::vector<std::vector<int>>;

/// Every choice that one axis may take for one input, replication left out.
std::vector<int> roles_of(const InputSpec& spec) {
  std::vector<int> roles;
  if (spec.absent) return roles;
  for (int d = 0; d < spec.shape.size(); ++d) {
    if (spec.cuts(d)) roles.push_back(d);
  }
  if (spec.partial && spec.floating()) roles.push_back(kPartial);
  return roles;
}

std::vector<Cut> cuts_of(const OpCase& c, const Mesh& mesh, Rng& rng) {
  const auto axes = static_cast<std::size_t>(mesh.axis_count());
  const Cut whole(c.inputs.size(), std::vector<int>(axes, kReplicate));
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
