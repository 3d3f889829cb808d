#include "cpu/panel_gemm.hpp"

#include <algorithm>
#include <memory>

#include "cpu/batch_gemm.hpp"
#include "launch.hpp"

namespace tessera::kernels::cpu {

namespace {

constexpr int kVectors = kMaxGemmVectors;
constexpr int kLane = kVectorLanes<float>;
constexpr std::int64_t kWidth = kVectors * kLane;          // columns of a panel
constexpr std::int64_t kHeight = max_gemm_rows(kVectors);  // rows of a small product
constexpr std::int64_t kDepth = 1024;                      // most of k in one slice
constexpr std::int64_t kMostRows = 28 * kHeight;           // of a task: with kDepth, 1 MiB of A
constexpr std::int64_t kLeastRows = 8 * kHeight;
constexpr std::int64_t kTasks = 8;
constexpr std::int64_t kMostColumns = 64 * kWidth;  // packed at a time: 12 MiB
constexpr std::int64_t kMostResults = std::int64_t{4}
                                      << 20;  // elements kept in fp32 between slices

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

using Floats = std::unique_ptr<float[]>;
Floats floats(std::int64_t n) {
  return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(n));
}

/// Memory of one thread that grows and stays: fresh pages would cost as much as packing.
enum class Use { kRows, kPanels };
template <Use kUse>
float* scratch(std::int64_t n) {
  thread_local Floats memory;
  thread_local std::int64_t size = 0;
  if (n > size) {
    memory = floats(n);
    size = n;
  }
  return memory.get();
}

const float* in_place(const Matrix& m) { return reinterpret_cast<const float*>(m.data); }

using S = Simd<float>;
using Vector = S::Type;

/// Exchanges rows and columns of kLane registers, by halves, quarters, ...
void transpose(Vector* rows) {
  typedef std::int32_t Lanes __attribute__((vector_size(kVectorBytes)));
#pragma GCC unroll 4
  for (int half = 1; half < kLane; half *= 2) {
    Lanes low, high;
    for (int l = 0; l < kLane; ++l) {
      low[l] = (l & half) == 0 ? l : kLane + l - half;
      high[l] = (l & half) == 0 ? l + half : kLane + l;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLane; ++i) {
      if ((i & half) != 0) continue;
      const Vector a = rows[i], b = rows[i + half];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + half] = __builtin_shuffle(a, b, high);
    }
  }
}

/// Columns [0, columns) of B in [k][whole registers], zeros behind.
void pack_panel(const Matrix& b, std::int64_t k, std::int64_t columns, float* panel) {
  const std::int64_t width = round_up(columns, kLane);
  if (b.row == 1 && b.column != 1) {  // columns run on: a transposed weight
    for (std::int64_t j0 = 0; j0 < width; j0 += kLane) {
      const std::int64_t wide = std::clamp<std::int64_t>(columns - j0, 0, kLane);
      for (std::int64_t k0 = 0; k0 < k; k0 += kLane) {
        const std::int64_t deep = std::min<std::int64_t>(kLane, k - k0);
        Vector rows[kLane] = {};
        for (std::int64_t j = 0; j < wide; ++j) {
          const Matrix from = b.block(k0, j0 + j);
          if (from.dtype == DType::kFloat32) {
            rows[j] = deep == kLane ? S::load(in_place(from))
                                    : S::load_first(in_place(from), static_cast<int>(deep));
          } else {
            float values[kLane] = {};
            load(from.data, from.dtype, 1, deep, values);
            rows[j] = S::load(values);
          }
        }
        transpose(rows);
        for (std::int64_t i = 0; i < deep; ++i) S::store(panel + (k0 + i) * width + j0, rows[i]);
      }
    }
    return;
  }
  if (b.dtype == DType::kFloat32 && b.column == 1 && columns == kWidth) {
    for (std::int64_t i = 0; i < k; ++i)
      for (int v = 0; v < kVectors; ++v)
        S::store(panel + i * kWidth + v * kLane, S::load(in_place(b.block(i, v * kLane))));
    return;
  }
  for (std::int64_t i = 0; i < k; ++i) {
    float* const row = panel + i * width;
    load(b.at(i, 0), b.dtype, b.column, columns, row);
    std::fill(row + columns, row + width, 0.0f);
  }
}

/// How the small products read A.
struct Rows {
  const float* data;
  std::int64_t row;  // between rows, where they run on
  bool interleaved;  // [rows / kHeight][k][kHeight] instead
};

/// A whose columns run on (the gradient of a weight): kHeight rows side by side.
Rows interleave(const Matrix& a, std::int64_t rows, std::int64_t k) {
  const std::int64_t groups = ceil_div(rows, kHeight);
  const std::int64_t whole = round_up(rows, kHeight);
  float* const packed = scratch<Use::kRows>(groups * k * kHeight + whole + kLane);
  float* const line = packed + groups * k * kHeight;
  std::fill(line, line + whole + kLane, 0.0f);
  for (std::int64_t i = 0; i < k; ++i) {
    const float* from = line;
    if (a.dtype == DType::kFloat32 && rows == whole) {
      from = in_place(a.block(0, i));
    } else {
      load(a.at(0, i), a.dtype, a.row, rows, line);
    }
    for (std::int64_t g = 0; g < groups; ++g)
      S::store_first(packed + (g * k + i) * kHeight,
                     S::load_first(from + g * kHeight, static_cast<int>(kHeight)),
                     static_cast<int>(kHeight));
  }
  return {packed, 0, true};
}

Rows read_rows(const Matrix& a, std::int64_t rows, std::int64_t k) {
  if (a.column == 1 && a.dtype == DType::kFloat32) return {in_place(a), a.row, false};
  if (a.row == 1) return interleave(a, rows, k);
  float* const dense = scratch<Use::kRows>(rows * k);
  for (std::int64_t r = 0; r < rows; ++r) load(a.at(r, 0), a.dtype, a.column, k, dense + r * k);
  return {dense, k, false};
}

constexpr std::int64_t kLine = 64 / sizeof(float);

/// `rows` rows of one panel's columns; meanwhile `next`, the panel behind it, comes to the second
/// cache.
void panel_product(const Rows& a,
                   std::int64_t rows,
                   std::int64_t k,
                   const float* panel,
                   const float* next,
                   std::int64_t columns,
                   const float* start,
                   bool accumulate,
                   float* c,
                   std::int64_t c_row) {
  static constexpr std::int64_t kNone = 0;
  const int vectors = static_cast<int>(ceil_div(columns, kLane));
  BatchGemm<float> g;
  g.b = panel;
  g.start = start;
  g.a_offset = g.b_offset = &kNone;
  g.batch = 1;
  g.depth = k;
  g.b_col = vectors * kLane;
  g.c_row = c_row;
  g.last = static_cast<int>(columns - (vectors - 1) * kLane);
  g.accumulate = accumulate;
  const std::int64_t fetched = next != nullptr ? k * kWidth : 0;
  const std::int64_t share = round_up(ceil_div(fetched, ceil_div(rows, kHeight)), kLine);
  for (std::int64_t r = 0; r < rows; r += kHeight) {
    const std::int64_t height = std::min(kHeight, rows - r);
    const std::int64_t from = r / kHeight * share;
    for (std::int64_t i = from; i < std::min(from + share, fetched); i += kLine)
      __builtin_prefetch(next + i, 0, 2);
    g.c = c + r * c_row;
    if (a.interleaved) {
      g.a = a.data + r * k;
      g.a_row = 1;
      g.a_col = kHeight;
    } else {
      g.a = a.data + r * a.row;
      g.a_row = a.row;
      g.a_col = 1;
    }
    batch_gemm(g, vectors, static_cast<int>(height));
  }
}

}  // namespace

bool panel_gemm_fits(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m >= 2 * kHeight && n >= 2 * kLane && k >= 2 * kLane && m * n * k >= (1 << 20);
}

void panel_gemm(std::int64_t m,
                std::int64_t n,
                std::int64_t k,
                const Matrix& a,
                const Matrix& b,
                const float* bias,
                bool accumulate,
                const Matrix& c) {
  const std::int64_t slices = ceil_div(k, kDepth);
  const std::int64_t depth = ceil_div(k, slices);
  const bool direct = c.dtype == DType::kFloat32 && c.column == 1;
  const std::int64_t height =
      std::clamp(round_up(ceil_div(m, kTasks), kHeight), kLeastRows, kMostRows);
  for (std::int64_t j0 = 0; j0 < n; j0 += kMostColumns) {
    const std::int64_t wide = std::min(kMostColumns, n - j0);
    const std::int64_t panels = ceil_div(wide, kWidth);
    float* const packed = scratch<Use::kPanels>(panels * depth * kWidth);
    // Starting values, whole registers.
    Floats start;
    if (bias != nullptr) {
      start = floats(panels * kWidth);
      std::copy_n(bias + j0, wide, start.get());
      std::fill(start.get() + wide, start.get() + panels * kWidth, 0.0f);
    }
    const std::int64_t tall =
        direct ? m : std::min(m, std::max(height, kMostResults / wide / height * height));
    const Floats results = direct ? nullptr : floats(tall * wide);
    for (std::int64_t i0 = 0; i0 < m; i0 += tall) {
      const std::int64_t rows = std::min(tall, m - i0);
      const std::int64_t blocks = ceil_div(rows, height);
      // Few rows: tasks share them by columns.
      const std::int64_t shares = std::clamp<std::int64_t>(kTasks / blocks, 1, panels);
      for (std::int64_t s = 0; s < slices; ++s) {
        const std::int64_t k0 = s * depth;
        const std::int64_t deep = std::min(depth, k - k0);
        parallel_for(panels, [&](std::int64_t p) {
          pack_panel(b.block(k0, j0 + p * kWidth), deep, std::min(kWidth, wide - p * kWidth),
                     packed + p * deep * kWidth);
        });
        parallel_for(blocks * shares, [&](std::int64_t task) {
          const std::int64_t r0 = task / shares * height;
          const std::int64_t count = std::min(height, rows - r0);
          const std::int64_t share = task % shares;
          const Rows left = read_rows(a.block(i0 + r0, k0), count, deep);
          const std::int64_t end = (share + 1) * panels / shares;
          for (std::int64_t p = share * panels / shares; p < end; ++p) {
            const std::int64_t first = p * kWidth;
            const float* const panel = packed + p * deep * kWidth;
            float* const out = direct ? reinterpret_cast<float*>(c.at(i0 + r0, j0 + first))
                                      : results.get() + r0 * wide + first;
            panel_product(left, count, deep, panel, p + 1 < end ? panel + deep * kWidth : nullptr,
                          std::min(kWidth, wide - first),
                          s == 0 && start ? start.get() + first : nullptr,
                          s > 0 || (accumulate && direct), out, direct ? c.row : wide);
          }
        });
      }
      if (direct) continue;
      parallel_chunks(rows, wide, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          float* const row = results.get() + r * wide;
          const Matrix to = c.block(i0 + r, j0);
          if (accumulate) {
            float* const old = scratch<Use::kRows>(wide);
            load(to.data, to.dtype, to.column, wide, old);
            for (std::int64_t j = 0; j < wide; ++j) row[j] += old[j];
          }
          store(row, wide, to.data, to.dtype, to.column);
        }
      });
    }
  }
}

}  // namespace tessera::kernels::cpu
