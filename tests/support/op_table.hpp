#pragma once

#include "support/op_test.hpp"

/// The table of docs/ops.md: every op over layouts, meshes, sizes and types.
///
/// OP_TABLE("conv") { return conv_case({2, n, 4, 3}, ...); } makes the case for `n` elements in the
/// dimensions that are split. The name is that of the public function. ctest runs the tables of a
/// file on 1 to 8 ranks; each row is one rank's result (itself checked against the reference)
/// compared with that on a mesh, with first and, in fp64, second derivatives for random cotangents.
/// Every pair of values of two columns occurs in ci, in fp64 also every layout on every mesh with
/// nothing and with fewer elements than ranks; the deep run takes all rows.
namespace tessera::test {

/// What a table says beside its cases.
struct TableOptions {
  /// Numbers of elements that the op must refuse with a ShapeError; null: none.
  std::function<bool(std::int64_t n)> refuses = {};
  /// Relative to the largest value of the tensor (at least OpCase::terms): fp64, fp32, bf16.
  double tolerance[3] = {1e-12, 2e-5, 2e-2};
  /// Types that the op works in, in this order.
  bool types[3] = {true, true, true};
  /// Whether inputs may be cut in different places (false: rows that are named on the same rank).
  bool apart = true;
};

/// All rows that this run draws; the text of the failures. Every process must call.
std::string check_table(const std::string& op,
                        const std::function<OpCase(std::int64_t n)>& make,
                        const TableOptions& options = {});

}  // namespace tessera::test

#define TESSERA_OP_TABLE(function, op, ...)                                         \
  static tessera::test::OpCase function(std::int64_t n);                            \
  TEST_CASE("table of " op, "[table]") {                                            \
    tessera::test::report(tessera::test::check_table(op, function, ##__VA_ARGS__)); \
  }                                                                                 \
  static tessera::test::OpCase function([[maybe_unused]] std::int64_t n)
/// OP_TABLE("op") { return OpCase{...}; } or OP_TABLE("op", TableOptions{...}) { ... }
#define OP_TABLE(...) TESSERA_OP_TABLE(INTERNAL_CATCH_UNIQUE_NAME(tessera_op_table_), __VA_ARGS__)
