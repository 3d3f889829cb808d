// What is checked on Mesh::self(): value, derivatives, low precision.
#include <algorithm>
#include <cmath>

#include "support/autograd/evaluate.hpp"

namespace tessera::test {

namespace {

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
    const Point at{inputs, output_cotangents(c, r.outputs)};
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
    const Point at{inputs, output_cotangents(c, r.outputs)};
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

}  // namespace tessera::test
