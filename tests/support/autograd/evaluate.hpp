#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "support/op_test.hpp"

/// One evaluation of a case: values, first and second gradients, on any mesh.
namespace tessera::test {

bool wants_gradient(const InputSpec& spec);
std::vector<DenseArray> make_inputs(const OpCase& c);

/// Random cotangents of the outputs, and of the gradients.
DenseArray cotangent(const OpCase& c, std::uint64_t purpose, std::size_t i, const Shape& shape);
inline constexpr std::uint64_t kOfOutput = 11;
inline constexpr std::uint64_t kOfGradient = 12;
/// Those of the floating outputs.
std::vector<DenseArray> output_cotangents(const OpCase& c, const std::vector<Tensor>& outputs);

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
                 bool second,
                 bool* have_outputs = nullptr);
Results evaluate_on_self(const OpCase& c,
                         const std::vector<DenseArray>& values,
                         DType dtype = DType::kFloat64,
                         bool second = false);

/// Shapes of the leaves, then of the cotangents: what second gradients are taken to.
std::vector<Shape> variable_shapes(const Results& r);
/// Whole values, zeros where undefined.
std::vector<DenseArray> dense_all(const std::vector<Tensor>& tensors,
                                  const std::vector<Shape>& shapes);
/// sum += <a, b>, terms += sum |a b|
void add_product(const DenseArray& a, const DenseArray& b, double* sum, double* terms);

/// Runs a check; an exception becomes its failure.
template <class F>
std::string guarded(const std::string& what, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    return str(what, ": threw '", e.what(), "'\n");
  }
}

}  // namespace tessera::test
