// Eigen must not start threads of its own: its blocking depends on their number.
#define EIGEN_DONT_PARALLELIZE

#include <dnnl.h>

// g++ 12 takes the undefined operands of AVX-512 intrinsics for uninitialised variables.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <Eigen/Core>
#pragma GCC diagnostic pop
#include <algorithm>
#include <memory>
#include <tessera/core/denormals.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/gemm.hpp>
#include <vector>

#include "cpu/panel_gemm.hpp"
#include "device.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

constexpr std::int64_t kRowBlock = 256;
constexpr std::int64_t kColumnBlock = 1024;
constexpr std::int64_t kBlockWork = 4 << 20;
constexpr std::int64_t kMaxPartial = 4 << 20;  // elements of all partial sums over k
constexpr std::int64_t kMinDepth = 1024;       // and the least depth of one

using cpu::Matrix;

/// What the libraries take: one stride is 1, the other reaches over it.
template <class T>
struct Panel {
  const T* data;
  std::int64_t ld;
  bool transposed;
};

template <class T>
class Scratch {
 public:
  T* get(std::int64_t n) {
    if (n > size_) {
      memory_ = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(n));
      size_ = n;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<T[]> memory_;
  std::int64_t size_ = 0;
};

template <class T>
void load_matrix(const Matrix& m, std::int64_t rows, std::int64_t columns, T* dst) {
  for (std::int64_t r = 0; r < rows; ++r)
    load(m.at(r, 0), m.dtype, m.column, columns, dst + r * columns);
}

template <class T>
void store_matrix(const T* src, std::int64_t rows, std::int64_t columns, const Matrix& m) {
  for (std::int64_t r = 0; r < rows; ++r)
    store(src + r * columns, columns, m.at(r, 0), m.dtype, m.column);
}

template <class T>
Panel<T> panel(const Matrix& m, std::int64_t rows, std::int64_t columns, Scratch<T>& scratch) {
  if (m.dtype == dtype_of<T>) {
    const auto* data = reinterpret_cast<const T*>(m.data);
    if (columns == 1 && m.row >= 1) return {data, m.row, false};
    if (m.column == 1 && (m.row >= columns || rows == 1))
      return {data, std::max(m.row, columns), false};
    if (m.row == 1 && (m.column >= rows || columns == 1))
      return {data, std::max(m.column, rows), true};
  }
  T* const dense = scratch.get(rows * columns);
  load_matrix(m, rows, columns, dense);
  return {dense, columns, false};
}

void product(std::int64_t m,
             std::int64_t n,
             std::int64_t k,
             float alpha,
             Panel<float> a,
             Panel<float> b,
             float beta,
             float* c,
             std::int64_t ldc) {
  dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha, a.data, a.ld,
             b.data, b.ld, beta, c, ldc);
}

template <int kOrder>
auto map_panel(Panel<double> p, std::int64_t rows, std::int64_t columns) {
  using Dense = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, kOrder>;
  return Eigen::Map<const Dense, 0, Eigen::OuterStride<>>(p.data, rows, columns,
                                                          Eigen::OuterStride<>(p.ld));
}

/// Eigen computes small products and inner products by dot products that start at an aligned
/// address: their rounding would depend on where the matrices lie.
void plain_product(std::int64_t m,
                   std::int64_t n,
                   std::int64_t k,
                   double alpha,
                   Panel<double> a,
                   Panel<double> b,
                   double* c,
                   std::int64_t ldc) {
  const std::int64_t a_row = a.transposed ? 1 : a.ld, a_column = a.transposed ? a.ld : 1;
  const std::int64_t b_row = b.transposed ? 1 : b.ld, b_column = b.transposed ? b.ld : 1;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double lanes[kLanes] = {};
      for (std::int64_t l = 0; l < k; ++l)
        lanes[l % kLanes] += a.data[i * a_row + l * a_column] * b.data[l * b_row + j * b_column];
      double sum = 0.0;
      for (const double lane : lanes) sum += lane;
      c[i * ldc + j] += alpha * sum;
    }
  }
}

void product(std::int64_t m,
             std::int64_t n,
             std::int64_t k,
             double alpha,
             Panel<double> a,
             Panel<double> b,
             double beta,
             double* c,
             std::int64_t ldc) {
  using Dense = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Dense, 0, Eigen::OuterStride<>> out(c, m, n, Eigen::OuterStride<>(ldc));
  if (beta == 0.0) {
    out.setZero();
  } else if (beta != 1.0) {
    out *= beta;
  }
  if (m + n + k < EIGEN_GEMM_TO_COEFFBASED_THRESHOLD || m * n == 1)
    return plain_product(m, n, k, alpha, a, b, c, ldc);
  const auto add = [&](const auto& left, const auto& right) {
    out.noalias() += alpha * (left * right);
  };
  const auto with_left = [&](const auto& left) {
    if (b.transposed) {
      add(left, map_panel<Eigen::ColMajor>(b, k, n));
    } else {
      add(left, map_panel<Eigen::RowMajor>(b, k, n));
    }
  };
  if (a.transposed) {
    with_left(map_panel<Eigen::ColMajor>(a, m, k));
  } else {
    with_left(map_panel<Eigen::RowMajor>(a, m, k));
  }
}

/// C[m, n] = alpha A B + beta C on the calling thread.
template <class T>
void block_product(std::int64_t m,
                   std::int64_t n,
                   std::int64_t k,
                   double alpha,
                   const Matrix& a,
                   const Matrix& b,
                   double beta,
                   const Matrix& c) {
  thread_local Scratch<T> scratch_a, scratch_b, scratch_c;
  if (c.dtype == dtype_of<T> && c.row == 1 && c.column >= m && c.column != 1)
    return block_product<T>(n, m, k, alpha, b.transposed(), a.transposed(), beta, c.transposed());
  const Panel<T> left = panel<T>(a, m, k, scratch_a);
  const Panel<T> right = panel<T>(b, k, n, scratch_b);
  const bool direct = c.dtype == dtype_of<T> && (c.column == 1 || n == 1) && (c.row >= n || m == 1);
  T* out = reinterpret_cast<T*>(c.data);
  std::int64_t ld = std::max(c.row, n);
  if (!direct) {
    out = scratch_c.get(m * n);
    ld = n;
    if (beta != 0.0) load_matrix(c, m, n, out);
  }
  product(m, n, k, static_cast<T>(alpha), left, right, static_cast<T>(beta), out, ld);
  if (!direct) store_matrix(out, m, n, c);
}

/// The libraries below take this thread alone.
class SingleThread {
 public:
  SingleThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~SingleThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  SingleThread(const SingleThread&) = delete;

 private:
  int before_;
};

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Problem {
  std::int64_t m, n, k;
  Matrix a, b, c;
  // Batch dimensions, outermost first, with the strides of a, b, c.
  int batch_dims = 0;
  std::int64_t batch = 1;
  std::int64_t size[kMaxDims] = {};
  std::int64_t stride[3][kMaxDims] = {};

  Matrix matrix(int which, std::int64_t index) const {
    Matrix m0 = which == 0 ? a : which == 1 ? b : c;
    std::int64_t offset = 0;
    for (int d = batch_dims - 1; d >= 0; --d) {
      offset += index % size[d] * stride[which][d];
      index /= size[d];
    }
    m0.data += offset * static_cast<std::int64_t>(size_of(m0.dtype));
    return m0;
  }
};

/// Leading dimensions over which B repeats and whose rows follow each other become rows.
void merge_rows(Problem& p) {
  while (p.batch_dims > 0) {
    const int d = p.batch_dims - 1;
    const bool joins =
        p.stride[1][d] == 0 &&
        (p.m == 1 || (p.stride[0][d] == p.a.row * p.m && p.stride[2][d] == p.c.row * p.m));
    if (!joins) return;
    if (p.m == 1) {
      p.a.row = p.stride[0][d];
      p.c.row = p.stride[2][d];
    }
    p.m *= p.size[d];
    p.batch /= p.size[d];
    --p.batch_dims;
  }
}

template <class T>
void run(const Problem& p, double alpha, double beta) {
  const std::int64_t column_block =
      p.n <= kColumnBlock ? p.n : ceil_div(ceil_div(p.n, ceil_div(p.n, kColumnBlock)), 64) * 64;
  const std::int64_t row_block =
      std::max(kRowBlock, ceil_div(kBlockWork / (column_block * p.k), 64) * 64);
  const std::int64_t row_blocks = ceil_div(p.m, row_block);
  const std::int64_t column_blocks = ceil_div(p.n, column_block);
  const std::int64_t blocks = p.batch * row_blocks * column_blocks;
  const std::int64_t elements = p.batch * p.m * p.n;

  // Few outputs, long sums (gradients of weights): partial sums over slices of k.
  std::int64_t slices = 1;
  if (blocks < 8 && elements <= kMaxPartial / 2)
    slices = std::min({ceil_div(p.k, kMinDepth), std::int64_t{64}, kMaxPartial / elements});
  const std::int64_t depth = ceil_div(p.k, slices);
  slices = ceil_div(p.k, depth);

  const auto block = [&](std::int64_t i, std::int64_t k0, std::int64_t k1, double scale,
                         double keep, T* partial) {
    const SingleThread guard;
    const Denormals flushed(true);
    const std::int64_t batch = i / (row_blocks * column_blocks);
    const std::int64_t r0 = i / column_blocks % row_blocks * row_block;
    const std::int64_t c0 = i % column_blocks * column_block;
    const std::int64_t rows = std::min(row_block, p.m - r0);
    const std::int64_t columns = std::min(column_block, p.n - c0);
    Matrix c = p.matrix(2, batch);
    if (partial != nullptr)
      c = {reinterpret_cast<char*>(partial + batch * p.m * p.n), dtype_of<T>, p.n, 1};
    block_product<T>(rows, columns, k1 - k0, scale, p.matrix(0, batch).block(r0, k0),
                     p.matrix(1, batch).block(k0, c0), keep, c.block(r0, c0));
  };

  if (slices == 1) {
    const auto whole = [&](std::int64_t i) { block(i, 0, p.k, alpha, beta, nullptr); };
    if (elements * p.k < kBlockWork / 16) {
      for (std::int64_t i = 0; i < blocks; ++i) whole(i);
    } else {
      parallel_for(blocks, whole);
    }
    return;
  }
  const auto partial =
      std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(slices * elements));
  parallel_for(slices * blocks, [&](std::int64_t i) {
    const std::int64_t s = i / blocks;
    block(i % blocks, s * depth, std::min(p.k, (s + 1) * depth), 1.0, 0.0,
          partial.get() + s * elements);
  });
  parallel_chunks(p.batch * p.m, p.n * slices, [&](std::int64_t begin, std::int64_t end) {
    std::vector<T> sum(static_cast<std::size_t>(p.n));
    std::vector<T> old(static_cast<std::size_t>(p.n));
    const T a = static_cast<T>(alpha);
    const T b = static_cast<T>(beta);
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill(sum.begin(), sum.end(), T(0));
      for (std::int64_t s = 0; s < slices; ++s) {
        const T* const part = partial.get() + s * elements + row * p.n;
        for (std::int64_t j = 0; j < p.n; ++j) sum[static_cast<std::size_t>(j)] += part[j];
      }
      const Matrix c = p.matrix(2, row / p.m).block(row % p.m, 0);
      if (beta != 0.0) load(c.data, c.dtype, c.column, p.n, old.data());
      for (std::int64_t j = 0; j < p.n; ++j) {
        const auto u = static_cast<std::size_t>(j);
        sum[u] = beta != 0.0 ? a * sum[u] + b * old[u] : a * sum[u];
      }
      store(sum.data(), p.n, c.data, c.dtype, c.column);
    }
  });
}

void check_types(const char* op, const View& a, const View& b, const View& c) {
  if (!is_floating(c.dtype) || a.dtype != c.dtype || b.dtype != c.dtype) {
    throw DTypeError(str(op, ": element types ", name(a.dtype), ", ", name(b.dtype), " -> ",
                         name(c.dtype), " (one floating type is needed). Cast first."));
  }
}

/// Drops dimensions of size 1 and joins neighbours; false when a size is 0.
bool make_batch(Problem& p, const View& a, const View& b, const View& c) {
  const View* const views[] = {&a, &b, &c};
  for (int d = 0; d < c.dims() - 2; ++d) {
    const std::int64_t n = c.shape[d];
    if (n == 0) return false;
    if (n == 1) continue;
    bool joins = p.batch_dims > 0;
    for (int v = 0; joins && v < 3; ++v)
      joins = p.stride[v][p.batch_dims - 1] == views[v]->strides[d] * n;
    if (!joins) {
      p.size[p.batch_dims++] = 1;
    }
    p.size[p.batch_dims - 1] *= n;
    for (int v = 0; v < 3; ++v) p.stride[v][p.batch_dims - 1] = views[v]->strides[d];
    p.batch *= n;
  }
  return true;
}

/// f(index) for every index of the shape; once for a shape without dimensions.
template <class F>
void for_each_outer(const Shape& shape, F&& f) {
  Index index = Index::filled(shape.size(), 0);
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    f(index);
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) index[d] = 0;
  }
}

void scale(double beta, const View& c) {
  if (beta == 0.0) {
    fill(c, 0.0);
  } else if (beta != 1.0) {
    affine(beta, c, 0.0, c);
  }
}

/// Runs the product where panels are the best way; the one for large fp32 and bf16 matrices.
bool large_product(const Problem& p, double alpha, double beta, const View& bias) {
  const bool simple = alpha == 1.0 && (beta == 0.0 || beta == 1.0);
  if (!simple || p.batch != 1 || p.c.dtype == DType::kFloat64) return false;
  if (!cpu::panel_gemm_fits(p.m, p.n, p.k)) return false;
  if (p.c.column != 1 && p.c.row == 1 && bias.data == nullptr) {
    cpu::panel_gemm(p.n, p.m, p.k, p.b.transposed(), p.a.transposed(), nullptr, beta != 0.0,
                    p.c.transposed());
    return true;
  }
  std::vector<float> start;
  if (bias.data != nullptr) {
    start.resize(static_cast<std::size_t>(p.n));
    load(bias.data, bias.dtype, bias.strides[0], p.n, start.data());
  }
  cpu::panel_gemm(p.m, p.n, p.k, p.a, p.b, start.empty() ? nullptr : start.data(), beta != 0.0,
                  p.c);
  return true;
}

}  // namespace

void gemm(
    double alpha, const View& a, const View& b, double beta, const View& c, const View& bias) {
  check_types("gemm", a, b, c);
  const int d = c.dims();
  bool fits = d >= 2 && a.dims() == d && b.dims() == d;
  for (int i = 0; fits && i < d - 2; ++i)
    fits = a.shape[i] == c.shape[i] && b.shape[i] == c.shape[i];
  if (!fits || a.shape[d - 2] != c.shape[d - 2] || b.shape[d - 1] != c.shape[d - 1] ||
      a.shape[d - 1] != b.shape[d - 2]) {
    throw ShapeError(str("gemm: ", a.shape, " times ", b.shape, " does not give ", c.shape,
                         ". Needed are [..., M, K], [..., K, N], [..., M, N]."));
  }
  const auto matrix = [&](const View& v) {
    return Matrix{v.as<char>(), v.dtype, v.strides[d - 2], v.strides[d - 1]};
  };
  Problem p{c.shape[d - 2], c.shape[d - 1], a.shape[d - 1], matrix(a), matrix(b), matrix(c)};
  if (bias.data != nullptr &&
      (beta != 0.0 || bias.dtype != c.dtype || !(bias.shape == Shape{c.shape[d - 1]}))) {
    throw ShapeError(str("gemm: bias ", bias.shape, " ", name(bias.dtype), " does not fit ",
                         c.shape, " ", name(c.dtype), " with beta ", beta,
                         ". Needed is one value per column, and beta 0."));
  }
  if (c.empty()) return;
  const auto start_with_bias = [&] {
    if (bias.data == nullptr) return;
    copy(broadcast_to(bias, c.shape), c);
    beta = 1.0;
  };
  if (p.k == 0 || on_cuda(c)) {
    start_with_bias();
    return p.k == 0 ? scale(beta, c) : cuda::gemm(alpha, a, b, beta, c);
  }
  make_batch(p, a, b, c);
  merge_rows(p);
  if (large_product(p, alpha, beta, bias)) return;
  start_with_bias();
  if (c.dtype == DType::kFloat64) {
    run<double>(p, alpha, beta);
  } else {
    run<float>(p, alpha, beta);
  }
}

void outer_sum(double alpha, const View& a, const View& b, double beta, const View& c) {
  check_types("outer_sum", a, b, c);
  const int lead = a.dims() - 1;
  bool fits = lead >= 0 && b.dims() == a.dims() && c.dims() == 2;
  for (int i = 0; fits && i < lead; ++i) fits = a.shape[i] == b.shape[i];
  if (!fits || a.shape[lead] != c.shape[0] || b.shape[lead] != c.shape[1]) {
    throw ShapeError(str("outer_sum: ", a.shape, " and ", b.shape, " do not give ", c.shape,
                         ". Needed are [..., M], [..., N], [M, N]."));
  }
  if (c.empty()) return;
  if (a.empty() || b.empty()) return scale(beta, c);

  // The innermost leading dimensions that run on in both become the depth of one product.
  View left = a;
  View right = b;
  left.shape = {1, a.shape[lead]};
  left.strides = {a.shape[lead], a.strides[lead]};
  right.shape = {1, b.shape[lead]};
  right.strides = {b.shape[lead], b.strides[lead]};
  int d = lead - 1;
  for (; d >= 0; --d) {
    const std::int64_t rows = left.shape[0];
    if (a.shape[d] == 1) continue;
    if (rows == 1) {
      left.strides[0] = a.strides[d];
      right.strides[0] = b.strides[d];
    } else if (a.strides[d] != left.strides[0] * rows || b.strides[d] != right.strides[0] * rows) {
      break;
    }
    left.shape[0] = right.shape[0] = rows * a.shape[d];
  }
  Shape outer = a.shape;
  outer.resize(d + 1);
  for_each_outer(outer, [&](const Index& index) {
    View l = transposed(left);
    View r = right;
    std::int64_t l_offset = 0, r_offset = 0;
    for (int i = 0; i < index.size(); ++i) {
      l_offset += index[i] * a.strides[i];
      r_offset += index[i] * b.strides[i];
    }
    const auto bytes = static_cast<std::int64_t>(size_of(a.dtype));
    l.data = static_cast<char*>(l.data) + l_offset * bytes;
    r.data = static_cast<char*>(r.data) + r_offset * bytes;
    gemm(alpha, l, r, beta, c);
    beta = 1.0;
  });
}

View transposed(const View& x) {
  View y = x;
  const int d = x.dims();
  std::swap(y.shape[d - 1], y.shape[d - 2]);
  std::swap(y.strides[d - 1], y.strides[d - 2]);
  return y;
}

}  // namespace tessera::kernels
