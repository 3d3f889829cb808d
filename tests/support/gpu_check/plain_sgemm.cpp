// oneDNN's product where oneDNN is not: the CPU's side of scripts/gpu_check.
#include <dnnl.h>

dnnl_status_t dnnl_sgemm(char transposed_a,
                         char transposed_b,
                         dnnl_dim_t m,
                         dnnl_dim_t n,
                         dnnl_dim_t k,
                         float alpha,
                         const float* a,
                         dnnl_dim_t lda,
                         const float* b,
                         dnnl_dim_t ldb,
                         float beta,
                         float* c,
                         dnnl_dim_t ldc) {
  for (dnnl_dim_t i = 0; i < m; ++i) {
    for (dnnl_dim_t j = 0; j < n; ++j) {
      double sum = 0.0;
      for (dnnl_dim_t l = 0; l < k; ++l) {
        const float left = transposed_a == 'T' ? a[l * lda + i] : a[i * lda + l];
        const float right = transposed_b == 'T' ? b[j * ldb + l] : b[l * ldb + j];
        sum += static_cast<double>(left) * static_cast<double>(right);
      }
      float& out = c[i * ldc + j];
      out =
          static_cast<float>(alpha * sum + (beta != 0.0f ? static_cast<double>(beta * out) : 0.0));
    }
  }
  return dnnl_success;
}
