#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <tessera/core/tensor.hpp>
#include <vector>

#include "support/dense.hpp"

/// One case per op: OP_TEST("conv, stride 2") { return OpCase{...}; } in a file whose first line is
/// `// ranks: 1 2 3 4`.
///
/// On one rank, in double: value against `reference`, first and second derivatives against
/// differences, then fp32 and bf16 against double. On every number of ranks, over 1-D to 3-D meshes
/// of all of them, every cut of `inputs` with balanced, uneven and empty parts: value, first and
/// second derivatives and layouts against one rank, equal bits on replicas, and the adjoint
/// identity. Cotangents are random.
namespace tessera::test {

/// How one input is made; values depend on the seed and the global element only.
struct InputSpec {
  Shape shape = {};
  /// Floating inputs are fp64 in the main pass and the dtype of the pass in the others.
  DType dtype = DType::kFloat64;
  bool differentiable = true;
  /// All values, from a seed; null: uniform on [-1, 1).
  std::function<DenseArray(const Shape&, std::uint64_t seed)> values = {};
  /// Dimensions that the cuts may split; the default is all.
  Dims cuttable = Dims{-1};
  /// Whether the cuts also give the input as a pending sum.
  bool partial = true;
  bool absent = false;

  bool floating() const { return !absent && is_floating(dtype); }
  bool cuts(int dim) const;
};

/// Uniform on [lo, hi).
InputSpec uniform(const Shape& shape, double lo = -1.0, double hi = 1.0);
/// Uniform, at least `gap` away from each of `points` (kinks: 0 for abs).
InputSpec away_from(const Shape& shape,
                    const std::vector<double>& points,
                    double gap = 0.02,
                    double range = 2.0);
/// A random order of evenly spaced values on [-1, 1): no ties (maxima).
InputSpec distinct(const Shape& shape);
/// Integers lo..hi, both included; not differentiable.
InputSpec integers(const Shape& shape,
                   std::int64_t lo,
                   std::int64_t hi,
                   DType dtype = DType::kInt64);
/// A random permutation of 0..n-1, shape [n].
InputSpec permutation(std::int64_t n, DType dtype = DType::kInt64);
/// True with this probability.
InputSpec flags(const Shape& shape, double probability = 0.5);
/// These values.
InputSpec given(const DenseArray& values, DType dtype = DType::kFloat64);
/// An optional input that is not there.
InputSpec absent();
/// The same input without a gradient.
InputSpec constant(InputSpec spec);

using TensorFunction = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;
using DenseFunction = std::function<std::vector<DenseArray>(const std::vector<DenseArray>&)>;

/// What is tested and how.
struct OpCase {
  std::vector<InputSpec> inputs = {};
  /// Calls the public op; inputs are undefined where absent. All meshes occur: take the mesh from
  /// an input.
  TensorFunction f = {};
  /// The same in plain loops; null only where there is nothing to compare with.
  DenseFunction reference = {};

  /// Whether f must refuse these layouts (undefined for absent inputs) with a LayoutError, on all
  /// ranks alike; null: none. Gradients of what f has accepted never throw.
  std::function<bool(const std::vector<Layout>&)> unsupported = {};
  /// Cuts that may throw LayoutError or work, where the boundaries drawn decide it; null: none.
  std::function<bool(const std::vector<Layout>&)> may_throw = {};
  /// Sets of inputs in which f is jointly linear (no constant term): {{0, 2}, {1, 2}} for w * x +
  /// b.
  std::vector<std::vector<int>> linear = {};

  /// Relative to the largest value of the tensor (but at least `terms`).
  double tolerance = 1e-11;
  /// Size of the terms that sums are made of, where results are much smaller.
  double terms = 0.1;
  /// Values on every mesh have the bits of one rank (elementwise and window ops).
  bool exact = false;
  /// Differences against first and second derivatives; second = false where f is not twice
  /// differentiable.
  bool first = true;
  bool second = true;
  double difference_tolerance = 1e-6;
  double step = 1e-3;
  /// The floating passes beside fp64; 0 leaves one out.
  double fp32_tolerance = 2e-5;
  double bf16_tolerance = 4e-2;

  /// Cuts per mesh beyond one for each dimension of each input alone.
  int random_cuts = 12;
  /// Boundaries tried per cut.
  int variants = 2;
  /// False: on a 1-D mesh, too, only `random_cuts` cuts (random geometry, where draws are many).
  bool all_cuts = true;
  std::uint64_t seed = 1;
};

/// Everything said above; the text of the failures, empty when all is well, and empty on all
/// processes or on none. Every process of the job must call.
std::string check_op(const OpCase& c);

/// The parts of check_op: on Mesh::self() (needs one process) ...
std::string check_value(const OpCase& c);
std::string check_first_derivatives(const OpCase& c);
std::string check_second_derivatives(const OpCase& c);
std::string check_low_precision(const OpCase& c);
/// ... and over all processes.
std::string check_cuts(const OpCase& c);
/// One cut: a layout per input.
std::string check_layouts(const OpCase& c, const std::vector<Layout>& layouts);

/// The meshes of all processes that cases run on: 4 and 2x2 for 4, 8, 2x4 and 2x2x2 for 8, ...
std::vector<Mesh> test_meshes();
/// What an axis does to a tensor, beside splitting a dimension of it.
inline constexpr int kAxisReplicates = -1;
inline constexpr int kAxisPending = -2;
/// A layout of `shape` that splits dimension dims[a] over axis a (or one of the two above), at the
/// boundaries that `bounds` gives for a dimension and the axes that split it, outermost first.
using DrawBounds = std::function<Bounds(int dim, const std::vector<int>& axes, int parts)>;
Layout layout_of(const Mesh& mesh,
                 const Shape& shape,
                 const std::vector<int>& dims,
                 const DrawBounds& bounds);
/// The same. Boundaries: balanced for variant 0, random (often with empty parts) otherwise.
Layout draw_layout(
    const Mesh& mesh, const Shape& shape, const std::vector<int>& dims, int variant, Rng& rng);
/// Any layout without pending sums.
Layout draw_layout(const Mesh& mesh, const Shape& shape, Rng& rng);

/// The seed of this run: TESSERA_TEST_SEED, else a fresh one, the same on all processes; printed by
/// random_cases.
std::uint64_t run_seed();
/// Draws of random geometry: TESSERA_TEST_DRAWS, else `ci` (the deep runs set it to 500); a quarter
/// of that on more than 4 processes.
int draw_count(int ci = 20);
/// Calls `check(rng)` for each draw and reports its failures with the seed that repeats it.
void random_cases(int draws, const std::function<std::string(Rng& rng)>& check);

/// What all processes together sent while f ran.
struct Traffic {
  std::int64_t bytes = 0;
  std::int64_t messages = 0;
};
Traffic traffic_of(const std::function<void()>& f);
/// Fails unless f sends exactly this.
void expect_traffic(std::int64_t bytes, std::int64_t messages, const std::function<void()>& f);
/// Fails, on all processes alike, with the text unless it is empty; any_process says whether
/// another one has a text.
void report(const std::string& failure);

}  // namespace tessera::test

#define TESSERA_OP_TEST(function, title)                                           \
  static tessera::test::OpCase function();                                         \
  TEST_CASE(title) { tessera::test::report(tessera::test::check_op(function())); } \
  static tessera::test::OpCase function()
/// OP_TEST("title") { return OpCase{...}; }
#define OP_TEST(title) TESSERA_OP_TEST(INTERNAL_CATCH_UNIQUE_NAME(tessera_op_test_), title)

#define TESSERA_RANDOM_OP_TEST(function, title)                                            \
  static tessera::test::OpCase function(tessera::test::Rng& rng);                          \
  TEST_CASE(title) {                                                                       \
    tessera::test::random_cases(tessera::test::draw_count(), [](tessera::test::Rng& rng) { \
      tessera::test::OpCase c = function(rng);                                             \
      c.seed = rng.bits();                                                                 \
      c.all_cuts = false;                                                                  \
      c.random_cuts = 4;                                                                   \
      c.variants = 1;                                                                      \
      return tessera::test::check_op(c);                                                   \
    });                                                                                    \
  }                                                                                        \
  static tessera::test::OpCase function([[maybe_unused]] tessera::test::Rng& rng)
/// RANDOM_OP_TEST("title") { ...draw sizes from `rng`...; return OpCase{...}; }: 20 draws in ci,
/// 500 in deep.
#define RANDOM_OP_TEST(title) \
  TESSERA_RANDOM_OP_TEST(INTERNAL_CATCH_UNIQUE_NAME(tessera_op_test_), title)
