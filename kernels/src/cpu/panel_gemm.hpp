#pragma once

#include <tessera/core/dtype.hpp>

namespace tessera::kernels::cpu {

/// A matrix in memory of any floating type; strides in elements.
struct Matrix {
  char* data;
  DType dtype;
  std::int64_t row;
  std::int64_t column;

  char* at(std::int64_t r, std::int64_t c) const {
    return data + (r * row + c * column) * static_cast<std::int64_t>(size_of(dtype));
  }
  Matrix block(std::int64_t r, std::int64_t c) const { return {at(r, c), dtype, row, column}; }
  Matrix transposed() const { return {data, dtype, column, row}; }
};

/// Whether panel_gemm() is made for a product of this size.
bool panel_gemm_fits(std::int64_t m, std::int64_t n, std::int64_t k);

/// C[m, n] (+)= A[m, k] B[k, n] (+ bias[n]) in fp32, rounded once where C is narrower. Each element
/// is a chain of multiply-adds over slices of k, which are added in order: its bits depend on its
/// row, its column and k alone.
///
/// B is packed into panels that fit the second cache, A is read in place where its rows run on.
/// `accumulate` adds to C, then there is no bias.
void panel_gemm(std::int64_t m,
                std::int64_t n,
                std::int64_t k,
                const Matrix& a,
                const Matrix& b,
                const float* bias,
                bool accumulate,
                const Matrix& c);

}  // namespace tessera::kernels::cpu
