#include "support/op_test.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <tessera/autograd/autograd.hpp>
#include <tessera/core/hash.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>

namespace tessera::test {

namespace {

constexpr int kReplicate = -1;
constexpr int kPartial = -2;

DenseArray make_values(const InputSpec& spec, std::uint64_t seed) {
  if (spec.absent) {
    DenseArray none;
    none.absent = true;
    return none;
  }
  DenseArray a = spec.values ? spec.values(spec.shape, seed) : random_array(spec.shape, seed);
  if (a.shape != spec.shape)
    throw ShapeError(str("input made with shape ", a.shape, " instead of ", spec.shape));
  return a;
}

}  // namespace

bool InputSpec::cuts(int dim) const {
  for (const std::int64_t d : cuttable) {
    if (d == -1 || d == dim) return true;
  }
  return false;
}

InputSpec uniform(const Shape& shape, double lo, double hi) {
  InputSpec spec{.shape = shape};
  spec.values = [lo, hi](const Shape& s, std::uint64_t seed) {
    return random_array(s, seed, lo, hi);
  };
  return spec;
}

InputSpec away_from(const Shape& shape,
                    const std::vector<double>& points,
                    double gap,
                    double range) {
  InputSpec spec{.shape = shape};
  spec.values = [=](const Shape& s, std::uint64_t seed) {
    DenseArray a = random_array(s, seed, -range, range);
    Rng rng(seed);
    const auto near = [&](double v) {
      return std::any_of(points.begin(), points.end(),
                         [&](double p) { return std::abs(v - p) < gap; });
    };
    for (double& v : a.values) {
      while (near(v)) v = rng.real(-range, range);
    }
    return a;
  };
  return spec;
}

namespace {

std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (std::int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(rng.integer(0, i))]);
  }
  return order;
}

}  // namespace

InputSpec distinct(const Shape& shape) {
  InputSpec spec{.shape = shape};
  spec.values = [](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    const std::vector<std::int64_t> order = shuffled(a.size(), seed);
    for (std::size_t i = 0; i < order.size(); ++i) {
      a.values[i] = -1.0 + 2.0 * static_cast<double>(order[i]) / static_cast<double>(order.size());
    }
    return a;
  };
  return spec;
}

InputSpec integers(const Shape& shape, std::int64_t lo, std::int64_t hi, DType dtype) {
  InputSpec spec{.shape = shape, .dtype = dtype, .differentiable = false};
  spec.values = [lo, hi](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    Rng rng(seed);
    for (double& v : a.values) v = static_cast<double>(rng.integer(lo, hi));
    return a;
  };
  return spec;
}

InputSpec permutation(std::int64_t n, DType dtype) {
  InputSpec spec{.shape = Shape{n}, .dtype = dtype, .differentiable = false};
  spec.values = [](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    const std::vector<std::int64_t> order = shuffled(s[0], seed);
    for (std::size_t i = 0; i < order.size(); ++i) a.values[i] = static_cast<double>(order[i]);
    return a;
  };
  return spec;
}

InputSpec flags(const Shape& shape, double probability) {
  InputSpec spec{.shape = shape, .dtype = DType::kBool, .differentiable = false};
  spec.values = [probability](const Shape& s, std::uint64_t seed) {
    DenseArray a(s);
    Rng rng(seed);
    for (double& v : a.values) v = rng.coin(probability) ? 1.0 : 0.0;
    return a;
  };
  return spec;
}

InputSpec given(const DenseArray& values, DType dtype) {
  InputSpec spec{.shape = values.shape, .dtype = dtype, .differentiable = is_floating(dtype)};
  spec.values = [values](const Shape&, std::uint64_t) { return values; };
  return spec;
}

InputSpec absent() {
  InputSpec spec;
  spec.absent = true;
  spec.differentiable = false;
  return spec;
}

InputSpec constant(InputSpec spec) {
  spec.differentiable = false;
  return spec;
}

namespace {

bool wants_gradient(const InputSpec& spec) { return spec.differentiable && spec.floating(); }

std::vector<DenseArray> make_inputs(const OpCase& c) {
  std::vector<DenseArray> inputs;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    inputs.push_back(make_values(c.inputs[i], c.seed * 1000003 + i));
  }
  return inputs;
}

/// Random cotangents of the outputs, and of the gradients.
DenseArray cotangent(const OpCase& c, std::uint64_t purpose, std::size_t i, const Shape& shape) {
  return random_array(shape, (c.seed * 1000003 + i) * 31 + purpose);
}
constexpr std::uint64_t kOfOutput = 11;
constexpr std::uint64_t kOfGradient = 12;

/// Values, first gradients and second gradients of a case on one mesh.
struct Results {
  std::vector<Tensor> outputs;
  /// Of <outputs, cotangents> with respect to the differentiable inputs, in order.
  std::vector<Tensor> first;
  /// Of <first, cotangents> with respect to the same inputs, then to the cotangents of the floating
  /// outputs; undefined where the first do not depend on it.
  std::vector<Tensor> second;
  std::vector<Tensor> leaves;
  std::vector<Tensor> cotangents;
};

using MakeTensor = std::function<Tensor(std::size_t input, const DenseArray& values, DType dtype)>;
/// A cotangent of a tensor that has this layout.
using MakeCotangent =
    std::function<Tensor(const DenseArray& values, const Layout& of, DType dtype)>;

Results evaluate(const OpCase& c,
                 const std::vector<DenseArray>& values,
                 DType dtype,
                 const MakeTensor& make,
                 const MakeCotangent& make_cotangent,
                 bool second) {
  Results r;
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const InputSpec& spec = c.inputs[i];
    if (spec.absent) {
      inputs.emplace_back();
      continue;
    }
    Tensor x = make(i, values[i], spec.floating() ? dtype : spec.dtype);
    if (c.first && wants_gradient(spec)) {
      x = require_grad(x);
      r.leaves.push_back(x);
    }
    inputs.push_back(x);
  }
  r.outputs = c.f(inputs);
  if (!c.first || r.leaves.empty()) return r;

  std::vector<Tensor> floating;
  for (std::size_t j = 0; j < r.outputs.size(); ++j) {
    const Tensor& y = r.outputs[j];
    if (!is_floating(y.dtype())) continue;
    floating.push_back(y);
    const Tensor t = make_cotangent(cotangent(c, kOfOutput, j, y.shape()), y.layout(), y.dtype());
    r.cotangents.push_back(second ? require_grad(t) : t);
  }
  r.first = grad(floating, r.leaves, {.create_graph = second}, r.cotangents);
  if (!second) return r;

  std::vector<Tensor> sources;
  std::vector<Tensor> directions;
  for (std::size_t i = 0; i < r.first.size(); ++i) {
    const Tensor& g = r.first[i];
    if (!requires_grad(g)) continue;
    sources.push_back(g);
    directions.push_back(
        make_cotangent(cotangent(c, kOfGradient, i, g.shape()), g.layout(), g.dtype()));
  }
  std::vector<Tensor> wanted = r.leaves;
  wanted.insert(wanted.end(), r.cotangents.begin(), r.cotangents.end());
  r.second = grad(sources, wanted, {.allow_unused = true}, directions);
  return r;
}

Results evaluate_on_self(const OpCase& c,
                         const std::vector<DenseArray>& values,
                         DType dtype = DType::kFloat64,
                         bool second = false) {
  return evaluate(
      c, values, dtype, [](std::size_t, const DenseArray& a, DType t) { return to_self(a, t); },
      [](const DenseArray& a, const Layout&, DType t) { return to_self(a, t); }, second);
}

/// Runs a check; an exception becomes its failure.
template <class F>
std::string guarded(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    return str(what, ": threw '", e.what(), "'\n");
  }
}

/// What the differences move along: one array per differentiable input, then one per cotangent.
struct Point {
  std::vector<DenseArray> inputs;      // all inputs of the case
  std::vector<DenseArray> cotangents;  // of the floating outputs
};

/// Arrays of a point that derivatives are taken to.
std::vector<DenseArray*> variables(const OpCase& c, Point& p, bool with_cotangents) {
  std::vector<DenseArray*> v;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (wants_gradient(c.inputs[i])) v.push_back(&p.inputs[i]);
  }
  if (with_cotangents) {
    for (DenseArray& a : p.cotangents) v.push_back(&a);
  }
  return v;
}

/// Compares `gradient` (one per variable) with five-point differences of `value` along random
/// directions and along single elements.
std::string compare_differences(const std::string& what,
                                const OpCase& c,
                                const Point& at,
                                bool with_cotangents,
                                const std::vector<DenseArray>& gradient,
                                const std::function<double(const Point&, double* terms)>& value) {
  std::string failure;
  Point moved = at;
  const std::vector<DenseArray*> vars = variables(c, moved, with_cotangents);
  Point origin = at;
  const std::vector<DenseArray*> base = variables(c, origin, with_cotangents);
  const auto test = [&](const std::string& along, const std::vector<DenseArray>& direction) {
    double slope = 0.0;
    double terms = 0.0;
    for (std::size_t v = 0; v < vars.size(); ++v) {
      for (std::size_t e = 0; e < gradient[v].values.size(); ++e) {
        const double product = gradient[v].values[e] * direction[v].values[e];
        slope += product;
        terms += std::abs(product);
      }
    }
    double value_terms = 0.0;
    const auto value_at = [&](double t) {
      for (std::size_t v = 0; v < vars.size(); ++v) {
        for (std::size_t e = 0; e < direction[v].values.size(); ++e) {
          vars[v]->values[e] = base[v]->values[e] + t * direction[v].values[e];
        }
      }
      return value(moved, &value_terms);
    };
    const double h = c.step;
    const double difference =
        (8.0 * (value_at(h) - value_at(-h)) - (value_at(2.0 * h) - value_at(-2.0 * h))) /
        (12.0 * h);
    const double allowed = c.difference_tolerance * terms + 2e-13 / h * value_terms + 1e-12;
    if (!(std::abs(difference - slope) <= allowed)) {
      failure += str(what, " along ", along, ": ", slope, " but differences give ", difference,
                     " (allowed ", allowed, ")\n");
    }
  };

  std::vector<DenseArray> direction;
  for (const DenseArray* v : vars) direction.emplace_back(v->shape);
  for (std::uint64_t trial = 0; trial < 2; ++trial) {
    for (std::size_t v = 0; v < vars.size(); ++v) {
      direction[v] = random_array(vars[v]->shape, c.seed * 77 + trial * 1009 + v);
    }
    test(str("random direction ", trial), direction);
  }
  Rng rng(c.seed + 5);
  for (std::size_t v = 0; v < vars.size(); ++v) {
    for (DenseArray& d : direction) std::fill(d.values.begin(), d.values.end(), 0.0);
    const std::int64_t n = vars[v]->size();
    for (std::int64_t k = 0; k < std::min<std::int64_t>(3, n); ++k) {
      const std::int64_t element = k == 0 ? 0 : k == 1 ? n - 1 : rng.integer(0, n - 1);
      direction[v].values[static_cast<std::size_t>(element)] = 1.0;
      test(str("element ", element, " of variable ", v), direction);
      direction[v].values[static_cast<std::size_t>(element)] = 0.0;
    }
  }
  return failure;
}

std::vector<DenseArray> dense_cotangents(const OpCase& c, const std::vector<Tensor>& outputs) {
  std::vector<DenseArray> result;
  for (std::size_t j = 0; j < outputs.size(); ++j) {
    if (is_floating(outputs[j].dtype()))
      result.push_back(cotangent(c, kOfOutput, j, outputs[j].shape()));
  }
  return result;
}

std::vector<DenseArray> dense_all(const std::vector<Tensor>& tensors,
                                  const std::vector<Shape>& shapes) {
  std::vector<DenseArray> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    result.push_back(tensors[i].defined() ? to_dense(tensors[i]) : DenseArray(shapes[i]));
  }
  return result;
}

std::vector<Shape> variable_shapes(const Results& r) {
  std::vector<Shape> shapes;
  for (const Tensor& x : r.leaves) shapes.push_back(x.shape());
  for (const Tensor& x : r.cotangents) shapes.push_back(x.shape());
  return shapes;
}

void add_product(const DenseArray& a, const DenseArray& b, double* sum, double* terms) {
  for (std::size_t e = 0; e < a.values.size(); ++e) {
    *sum += a.values[e] * b.values[e];
    *terms += std::abs(a.values[e] * b.values[e]);
  }
}

}  // namespace

std::string check_value(const OpCase& c) {
  if (!c.reference) return {};
  return guarded("value", [&] {
    const std::vector<DenseArray> inputs = make_inputs(c);
    OpCase plain = c;
    plain.first = false;
    const std::vector<Tensor> outputs = evaluate_on_self(plain, inputs).outputs;
    const std::vector<DenseArray> expected = c.reference(inputs);
    if (outputs.size() != expected.size()) {
      return str("value: ", outputs.size(), " outputs, the reference has ", expected.size(), "\n");
    }
    std::string failure;
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      failure += compare(str("output ", j, " against the reference"), outputs[j], expected[j],
                         c.tolerance, c.terms);
    }
    return failure;
  });
}

std::string check_first_derivatives(const OpCase& c) {
  return guarded("first derivatives", [&]() -> std::string {
    const std::vector<DenseArray> inputs = make_inputs(c);
    const Results r = evaluate_on_self(c, inputs);
    if (r.leaves.empty()) return {};
    const Point at{inputs, dense_cotangents(c, r.outputs)};
    OpCase plain = c;
    plain.first = false;
    return compare_differences(
        "first derivative", c, at, false, dense_all(r.first, variable_shapes(r)),
        [&](const Point& p, double* terms) {
          const std::vector<Tensor> outputs = evaluate_on_self(plain, p.inputs).outputs;
          double sum = 0.0;
          *terms = 0.0;
          std::size_t next = 0;
          for (const Tensor& y : outputs) {
            if (!is_floating(y.dtype())) continue;
            add_product(to_dense(y), p.cotangents[next++], &sum, terms);
          }
          return sum;
        });
  });
}

std::string check_second_derivatives(const OpCase& c) {
  return guarded("second derivatives", [&]() -> std::string {
    const std::vector<DenseArray> inputs = make_inputs(c);
    const Results r = evaluate_on_self(c, inputs, DType::kFloat64, true);
    if (r.leaves.empty()) return {};
    const Point at{inputs, dense_cotangents(c, r.outputs)};
    return compare_differences(
        "second derivative", c, at, true, dense_all(r.second, variable_shapes(r)),
        [&](const Point& p, double* terms) {
          std::size_t next = 0;
          const Results moved = evaluate(
              c, p.inputs, DType::kFloat64,
              [](std::size_t, const DenseArray& a, DType t) { return to_self(a, t); },
              [&](const DenseArray&, const Layout&, DType t) {
                return to_self(p.cotangents[next++], t);
              },
              false);
          double sum = 0.0;
          *terms = 0.0;
          for (std::size_t i = 0; i < moved.first.size(); ++i) {
            const DenseArray g = to_dense(moved.first[i]);
            add_product(g, cotangent(c, kOfGradient, i, g.shape), &sum, terms);
          }
          return sum;
        });
  });
}

std::string check_low_precision(const OpCase& c) {
  std::string failure;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const double tolerance = dtype == DType::kFloat32 ? c.fp32_tolerance : c.bf16_tolerance;
    if (tolerance <= 0.0) continue;
    failure += guarded(name(dtype), [&] {
      std::string text;
      std::vector<DenseArray> inputs = make_inputs(c);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (c.inputs[i].floating()) inputs[i] = rounded_to(inputs[i], dtype);
      }
      const MakeTensor make = [](std::size_t, const DenseArray& a, DType t) {
        return to_self(a, t);
      };
      // The same, rounded cotangents in both.
      const MakeCotangent make_cotangent = [dtype](const DenseArray& a, const Layout&, DType t) {
        return to_self(rounded_to(a, dtype), t);
      };
      const Results low = evaluate(c, inputs, dtype, make, make_cotangent, false);
      const Results high = evaluate(c, inputs, DType::kFloat64, make, make_cotangent, false);
      for (std::size_t j = 0; j < low.outputs.size(); ++j) {
        text += compare(str(name(dtype), " output ", j), low.outputs[j], to_dense(high.outputs[j]),
                        tolerance, c.terms);
      }
      for (std::size_t i = 0; i < low.first.size(); ++i) {
        if (low.first[i].dtype() != dtype) {
          text += str(name(dtype), " gradient ", i, ": is ", name(low.first[i].dtype()), "\n");
        }
        text += compare(str(name(dtype), " gradient ", i), low.first[i], to_dense(high.first[i]),
                        tolerance, c.terms);
      }
      return text;
    });
  }
  return failure;
}

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
  for (const Layout& l : layouts) {
    if (!l.defined()) continue;
    mesh = l.mesh();
    cut.add(l.hash());
  }
  Rng rng(cut.value());

  std::string failure;
  std::string thrown;
  Verdict mine;
  std::vector<Tensor> seen;
  Results r;
  try {
    r = evaluate(
        c, one.inputs, DType::kFloat64,
        [&](std::size_t i, const DenseArray& a, DType t) { return to_tensor(a, layouts[i], t); },
        [&](const DenseArray& a, const Layout& of, DType t) {
          // Cotangents come in any layout; mostly in the one that the engine asks for.
          return to_tensor(a, rng.coin(0.7) ? of.dual() : draw_layout(mesh, of.shape(), rng), t);
        },
        c.second);
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
      const bool exact = c.exact && y.layout().partial_axes() == 0;
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
    if (mine.thrown == 2 || (!must_throw && !may_throw)) failure += str("threw '", thrown, "'\n");
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
    const std::vector<DenseArray> cotangents = dense_cotangents(part, r.outputs);
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
  return any_process(!failure.empty()) && failure.empty()
             ? "adjoint identity: failed on another process\n"
             : failure;
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

std::string check_cuts(const OpCase& c) {
  OneRank one;
  const std::string failure = guarded("one rank", [&] {
    one = one_rank(c);
    return std::string();
  });
  if (any_process(!failure.empty()))
    return failure.empty() ? "one rank: failed on another process\n" : failure;

  std::string text;
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
        // The first few say enough; a broken op would print thousands.
        if (std::count(text.begin(), text.end(), '\n') > 12) return text;
      }
    }
  }
  return text;
}

std::string check_op(const OpCase& c) {
  std::string failure;
  if (process().count == 1) {
    failure += check_value(c);
    if (failure.empty() && c.first) failure += check_first_derivatives(c);
    if (failure.empty() && c.first && c.second) failure += check_second_derivatives(c);
    if (failure.empty()) failure += check_low_precision(c);
  }
  if (failure.empty()) failure += check_cuts(c);
  return failure;
}

std::vector<Mesh> test_meshes() {
  const auto mesh = [](std::initializer_list<int> sizes) {
    std::vector<MeshAxis> axes;
    const char* const names[] = {"a", "b", "c"};
    for (const int size : sizes) axes.push_back({names[axes.size()], size});
    return Mesh::world(axes);
  };
  const int n = process().count;
  std::vector<Mesh> meshes = {mesh({n})};
  if (n == 1) meshes.push_back(mesh({1, 1}));
  if (n == 4) meshes.push_back(mesh({2, 2}));
  if (n == 6) meshes.push_back(mesh({2, 3}));
  if (n == 8) {
    meshes.push_back(mesh({2, 4}));
    meshes.push_back(mesh({2, 2, 2}));
  }
  return meshes;
}

Layout draw_layout(
    const Mesh& mesh, const Shape& shape, const std::vector<int>& dims, int variant, Rng& rng) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  AxisMask partial = 0;
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] == kPartial) {
      partial |= AxisMask{1} << axis;
    } else if (dims[axis] != kReplicate) {
      splits[static_cast<std::size_t>(dims[axis])].axes.push_back(static_cast<int>(axis));
    }
  }
  for (int d = 0; d < shape.size(); ++d) {
    DimSplit& split = splits[static_cast<std::size_t>(d)];
    if (split.axes.empty()) continue;
    int parts = 1;
    for (const int axis : split.axes) parts *= mesh.axis_size(axis);
    if (variant == 0) {
      split.bounds = balanced_bounds(shape[d], parts);
      continue;
    }
    split.bounds = {0, shape[d]};
    for (int p = 1; p < parts; ++p) split.bounds.push_back(rng.integer(0, shape[d]));
    std::sort(split.bounds.begin(), split.bounds.end());
  }
  return Layout::make(mesh, shape, std::move(splits), partial);
}

Layout draw_layout(const Mesh& mesh, const Shape& shape, Rng& rng) {
  std::vector<int> dims;
  for (int a = 0; a < mesh.axis_count(); ++a) {
    dims.push_back(static_cast<int>(rng.integer(-1, shape.size() - 1)));
  }
  return draw_layout(mesh, shape, dims, static_cast<int>(rng.integer(0, 1)), rng);
}

std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("TESSERA_TEST_SEED");
    const std::uint64_t mine = text ? std::strtoull(text, nullptr, 10) : std::random_device()();
    return from_process_0(mine);
  }();
  return seed;
}

int draw_count(int ci) {
  const char* text = std::getenv("TESSERA_TEST_DRAWS");
  return text ? std::atoi(text) : ci;
}

void random_cases(int draws, const std::function<std::string(Rng& rng)>& check) {
  Rng seeds(run_seed());
  if (process().rank == 0)
    std::cout << "TESSERA_TEST_SEED=" << run_seed() << " (" << draws << " draws)" << std::endl;
  for (int draw = 0; draw < draws; ++draw) {
    Rng rng = seeds.fork();
    const std::string failure = check(rng);
    if (!failure.empty()) {
      report(str("draw ", draw, " of TESSERA_TEST_SEED=", run_seed(), ":\n", failure));
      return;
    }
  }
}

Traffic traffic_of(const std::function<void()>& f) {
  const parallel::CommCounters before = parallel::comm_stats().total();
  f();
  const parallel::CommCounters after = parallel::comm_stats().total();
  std::int64_t sent[2] = {after.bytes - before.bytes, after.messages - before.messages};
  parallel::all_reduce(parallel::Group::world(), sent, 2, DType::kInt64, ReduceOp::kSum,
                       {"test", {}, {}})
      .wait();
  return {sent[0], sent[1]};
}

void expect_traffic(std::int64_t bytes, std::int64_t messages, const std::function<void()>& f) {
  const Traffic sent = traffic_of(f);
  CHECK(sent.bytes == bytes);
  CHECK(sent.messages == messages);
}

void report(const std::string& failure) {
  if (!failure.empty())
    FAIL_CHECK(failure);
  else
    SUCCEED();
}

}  // namespace tessera::test
