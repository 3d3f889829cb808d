#include <cublas_v2.h>

#include <tessera/kernels/elementwise.hpp>

#include "device.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

void check_blas(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(str("gemm: cuBLAS says '", cublasGetStatusString(status),
                          "'. Look at the first error of this process."));
  }
}

cublasHandle_t handle() {
  static cublasHandle_t instance = [] {
    cublasHandle_t h = nullptr;
    check_blas(cublasCreate(&h));
    return h;
  }();
  check_blas(cublasSetStream(instance, stream()));
  return instance;
}

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kFloat64   ? CUDA_R_64F
         : dtype == DType::kFloat32 ? CUDA_R_32F
                                    : CUDA_R_16BF;
}

/// A matrix that cuBLAS takes: dense rows (or, transposed, dense columns) with a leading dimension.
struct Panel {
  const View* view;
  bool transposed;
  std::int64_t ld;
  bool fits;

  explicit Panel(const View& v) : view(&v) {
    const int d = v.dims();
    const std::int64_t rows = v.shape[d - 2], columns = v.shape[d - 1];
    const std::int64_t row = v.strides[d - 2], column = v.strides[d - 1];
    if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
      transposed = false;
      ld = std::max(row, columns);
      fits = true;
    } else {
      transposed = true;
      ld = std::max(column, rows);
      fits = (row == 1 || rows == 1) && (column >= rows || columns == 1);
    }
    if (rows == 1 && !transposed) ld = std::max<std::int64_t>(columns, 1);
  }
};

void product(double alpha, const View& a, const View& b, double beta, const View& c) {
  const int d = c.dims();
  const Panel pa(a), pb(b), pc(c);
  const auto batch_view = [&](const View& v) {
    View batch = v;
    batch.shape.resize(d - 2);
    batch.strides.resize(d - 2);
    return batch;
  };
  const View batches[] = {batch_view(c), batch_view(a), batch_view(b)};
  const View* const pointers[] = {&batches[0], &batches[1], &batches[2]};
  const LoopNest nest = make_loop_nest("gemm", pointers, false);
  const int last = nest.dims - 1;
  const std::int64_t inner = nest.size[last];
  const auto bytes = static_cast<std::int64_t>(size_of(c.dtype));
  const auto m = static_cast<int>(c.shape[d - 2]), n = static_cast<int>(c.shape[d - 1]);
  const auto k = static_cast<int>(a.shape[d - 1]);
  const float alpha_f = static_cast<float>(alpha), beta_f = static_cast<float>(beta);
  const bool wide = c.dtype == DType::kFloat64;
  const void* const alpha_p = wide ? static_cast<const void*>(&alpha) : &alpha_f;
  const void* const beta_p = wide ? static_cast<const void*>(&beta) : &beta_f;
  const cudaDataType_t type = data_type(c.dtype);
  for (std::int64_t i = 0; i < nest.total; i += inner) {
    const auto at = [&](const View& v, int operand) {
      return v.as<char>() + nest_offset(nest, operand, i) * bytes;
    };
    // Rows first here, columns first there: C^T = B^T A^T.
    check_blas(cublasGemmStridedBatchedEx(
        handle(), pb.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
        pa.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, alpha_p, at(b, 2), type,
        static_cast<int>(pb.ld), nest.stride[2][last], at(a, 1), type, static_cast<int>(pa.ld),
        nest.stride[1][last], beta_p, at(c, 0), type, static_cast<int>(pc.ld), nest.stride[0][last],
        static_cast<int>(inner), wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT));
  }
}

/// A dense copy of a view in scratch memory.
struct Dense {
  Scratch<char> memory;
  View view;
  explicit Dense(const View& v)
      : memory(v.size() * static_cast<std::int64_t>(size_of(v.dtype))),
        view(View::dense(memory.get(), v.dtype, v.shape, v.device)) {}
};

}  // namespace

void gemm(double alpha, const View& a, const View& b, double beta, const View& c) {
  if (!Panel(a).fits) {
    const Dense dense(a);
    kernels::copy(a, dense.view);
    return gemm(alpha, dense.view, b, beta, c);
  }
  if (!Panel(b).fits) {
    const Dense dense(b);
    kernels::copy(b, dense.view);
    return gemm(alpha, a, dense.view, beta, c);
  }
  if (!Panel(c).fits || Panel(c).transposed) {
    const Dense dense(c);
    if (beta != 0.0) kernels::copy(c, dense.view);
    product(alpha, a, b, beta, dense.view);
    return kernels::copy(dense.view, c);
  }
  product(alpha, a, b, beta, c);
}

}  // namespace tessera::kernels::cuda
