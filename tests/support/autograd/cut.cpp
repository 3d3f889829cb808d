// One cut of a case over all processes, against one rank.
#include "support/autograd/cut.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::test {

namespace {

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

}  // namespace

std::string describe(const std::vector<Layout>& layouts) {
  std::string text;
  for (const Layout& l : layouts)
    text += l.defined() ? str(text.empty() ? "" : ", ", l.str()) : str(", none");
  for (const Layout& l : layouts) {
    if (l.defined()) return str("mesh ", l.mesh().str(), ", inputs ", text);
  }
  return text;
}

OneRank one_rank(const OpCase& c, DType dtype) {
  OneRank o;
  o.dtype = dtype;
  o.inputs = make_inputs(c);
  for (std::size_t i = 0; i < o.inputs.size(); ++i) {
    if (c.inputs[i].floating()) o.inputs[i] = rounded_to(o.inputs[i], dtype);
  }
  const Results r = evaluate(
      c, o.inputs, DType::kFloat64,
      [](std::size_t, const DenseArray& a, DType t) { return to_self(a, t); },
      [&](const DenseArray& a, const Layout&, DType t) { return to_self(rounded_to(a, dtype), t); },
      c.second);
  for (const Tensor& t : r.outputs) o.outputs.push_back(to_dense(t));
  OpCase plain = c;
  plain.first = false;
  for (const Tensor& t : evaluate_on_self(plain, o.inputs, dtype).outputs) {
    o.types.push_back(t.dtype());
  }
  const std::vector<Shape> shapes = variable_shapes(r);
  o.first = dense_all(r.first, shapes);
  o.second = dense_all(r.second, shapes);
  return o;
}

std::string check_cut(const OpCase& c,
                      const OneRank& one,
                      const std::vector<Layout>& layouts,
                      bool* accepted) {
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
        c, one.inputs, one.dtype,
        [&](std::size_t i, const DenseArray& a, DType t) { return to_tensor(a, layouts[i], t); },
        [&](const DenseArray& a, const Layout& of, DType t) {
          // Cotangents come in any layout; mostly in the one that the engine asks for.
          return to_tensor(rounded_to(a, one.dtype),
                           rng.coin(0.7) ? of.dual() : draw_layout(mesh, of.shape(), rng), t);
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
      if (y.dtype() != one.types[j]) {
        failure +=
            str("output ", j, ": ", name(y.dtype()), " instead of ", name(one.types[j]), "\n");
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
  if (accepted != nullptr) *accepted = mine.thrown == 0;
  if (!any) return {};
  if (failure.empty()) failure = "failed on another process\n";
  return str("on ", describe(layouts), ":\n", failure);
}

}  // namespace tessera::test
