#include "cpu/panel_gemm.hpp"

#include <algorithm>
#include <memory>

#include "cpu/batch_gemm.hpp"
#include "cpu/tiles.hpp"

namespace tessera::kernels::cpu {

namespace {

constexpr int kVectors = kMaxGemmVectors;
constexpr int kLane = kVectorLanes<float>;
constexpr std::int64_t kWidth = kVectors * kLane;          // columns of a panel
constexpr std::int64_t kHeight = max_gemm_rows(kVectors);  // rows of a small product
constexpr std::int64_t kDepth = 1536;                      // most of k in one slice
constexpr std::int64_t kMostPanels = 4;   // of a task: with kDepth, 1.2 MB of the second cache
constexpr std::int64_t kTaskRows = 2048;  // about; packing the panels again costs 1 %
constexpr std::int64_t kPackRows = 28 * kHeight;              // packed at a time
constexpr std::int64_t kMostPacked = std::int64_t{3} << 20;   // elements of A packed at a time
constexpr std::int64_t kMostResults = std::int64_t{4} << 20;  // kept in fp32 between slices

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

bool runs_on(const Matrix& a) { return a.column == 1 && a.dtype == DType::kFloat32; }

/// [rows / kHeight][k][kHeight] of an A whose columns run on (the gradient of a weight).
void interleave(const Matrix& a, std::int64_t rows, std::int64_t k, float* packed) {
  const std::int64_t groups = ceil_div(rows, kHeight);
  float line[kPackRows + kLane] = {};
  for (std::int64_t i = 0; i < k; ++i) {
    const float* from = line;
    if (a.dtype == DType::kFloat32 && rows == kPackRows) {
      from = in_place(a.block(0, i));
    } else {
      load(a.at(0, i), a.dtype, a.row, rows, line);
    }
    for (std::int64_t g = 0; g < groups; ++g)
      S::store_first(packed + (g * k + i) * kHeight,
                     S::load_first(from + g * kHeight, static_cast<int>(kHeight)),
                     static_cast<int>(kHeight));
  }
}

Rows read_rows(const Matrix& a, std::int64_t rows, std::int64_t k) {
  if (runs_on(a)) return {in_place(a), a.row, false};
  const bool interleaved = a.row == 1;
  float* const packed = scratch<Use::kRows>(round_up(rows, kHeight) * k);
  parallel_for(ceil_div(rows, kPackRows), [&](std::int64_t block) {
    const std::int64_t first = block * kPackRows;
    const std::int64_t count = std::min(kPackRows, rows - first);
    float* const out = packed + first * k;
    if (interleaved) return interleave(a.block(first, 0), count, k, out);
    for (std::int64_t r = 0; r < count; ++r)
      load(a.at(first + r, 0), a.dtype, a.column, k, out + r * k);
  });
  return {packed, k, interleaved};
}

/// The rows [r, r + height) of A times one panel.
void small_product(const Rows& a,
                   std::int64_t r,
                   std::int64_t height,
                   std::int64_t k,
                   const float* panel,
                   std::int64_t columns,
                   const float* start,
                   bool accumulate,
                   float* c,
                   std::int64_t c_row) {
  static constexpr std::int64_t kNone = 0;
  const int vectors = static_cast<int>(ceil_div(columns, kLane));
  BatchGemm<float> g;
  g.a = a.data + r * (a.interleaved ? k : a.row);
  g.a_row = a.interleaved ? 1 : a.row;
  g.a_col = a.interleaved ? kHeight : 1;
  g.b = panel;
  g.b_col = vectors * kLane;
  g.c = c;
  g.c_row = c_row;
  g.start = start;
  g.a_offset = g.b_offset = &kNone;
  g.batch = 1;
  g.depth = k;
  g.last = static_cast<int>(columns - (vectors - 1) * kLane);
  g.accumulate = accumulate;
  batch_gemm(g, vectors, static_cast<int>(height));
}

/// How a product is shared out: groups of panels times shares of the rows, `height` of each. A
/// group is packed by each task that uses it, into the cache of its core, and stays there while
/// rows of A pass by.
struct Tasks {
  std::int64_t groups, shares, height;
};

Tasks share_out(std::int64_t rows, std::int64_t panels) {
  const std::int64_t threads = thread_count();
  const std::int64_t fewest = ceil_div(panels, kMostPanels);
  const std::int64_t groups = std::max(fewest, std::min(round_up(fewest, threads), panels / 2));
  const std::int64_t shares = std::max(ceil_div(threads, groups), ceil_div(rows, kTaskRows));
  const std::int64_t height = round_up(ceil_div(rows, shares), kHeight);
  return {groups, ceil_div(rows, height), height};
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
  const std::int64_t panels = ceil_div(n, kWidth);
  const bool direct = c.dtype == DType::kFloat32 && c.column == 1;
  std::int64_t tall = m;
  if (!runs_on(a)) tall = std::min(tall, kMostPacked / depth);
  if (!direct) tall = std::min(tall, std::max(kHeight, kMostResults / n));
  tall = std::min(m, round_up(tall, kHeight));
  const Floats results = direct ? nullptr : floats(tall * n);
  Floats start;  // of whole registers
  if (bias != nullptr) {
    start = floats(panels * kWidth);
    std::copy_n(bias, n, start.get());
    std::fill(start.get() + n, start.get() + panels * kWidth, 0.0f);
  }
  for (std::int64_t i0 = 0; i0 < m; i0 += tall) {
    const std::int64_t rows = std::min(tall, m - i0);
    const Tasks tasks = share_out(rows, panels);
    float* const out = direct ? reinterpret_cast<float*>(c.at(i0, 0)) : results.get();
    const std::int64_t out_row = direct ? c.row : n;
    for (std::int64_t k0 = 0; k0 < k; k0 += depth) {
      const std::int64_t deep = std::min(depth, k - k0);
      const bool first = k0 == 0;
      const Rows left = read_rows(a.block(i0, k0), rows, deep);
      for_each_tile(tasks.groups * tasks.shares, thread_count(), [&](std::int64_t task) {
        const std::int64_t group = task % tasks.groups;
        const std::int64_t p0 = group * panels / tasks.groups;
        const std::int64_t p1 = (group + 1) * panels / tasks.groups;
        const auto columns = [&](std::int64_t p) { return std::min(kWidth, n - p * kWidth); };
        float* const packed = scratch<Use::kPanels>((p1 - p0) * deep * kWidth);
        const auto panel = [&](std::int64_t p) { return packed + (p - p0) * deep * kWidth; };
        for (std::int64_t p = p0; p < p1; ++p)
          pack_panel(b.block(k0, p * kWidth), deep, columns(p), panel(p));
        const std::int64_t begin = task / tasks.groups * tasks.height;
        const std::int64_t end = std::min(begin + tasks.height, rows);
        for (std::int64_t r = begin; r < end; r += kHeight)
          for (std::int64_t p = p0; p < p1; ++p)
            small_product(left, r, std::min(kHeight, end - r), deep, panel(p), columns(p),
                          first && start ? start.get() + p * kWidth : nullptr,
                          !first || (accumulate && direct), out + r * out_row + p * kWidth,
                          out_row);
      });
    }
    if (direct) continue;
    parallel_chunks(rows, n, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        float* const row = results.get() + r * n;
        const Matrix to = c.block(i0 + r, 0);
        if (accumulate) {
          float* const old = scratch<Use::kPanels>(n);
          load(to.data, to.dtype, to.column, n, old);
          for (std::int64_t j = 0; j < n; ++j) row[j] += old[j];
        }
        store(row, n, to.data, to.dtype, to.column);
      }
    });
  }
}

}  // namespace tessera::kernels::cpu
