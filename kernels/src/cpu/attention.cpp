#include <algorithm>
#include <tessera/core/dry_run.hpp>

#include "cpu/attention_tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

void check_rows(const char* what, const View& rows, const View& q, int less, DType dtype) {
  bool fits = rows.dims() == q.dims() - less;
  for (int d = 0; fits && d < q.dims() - 1; ++d) fits = rows.shape[d] == q.shape[d];
  if (!fits)
    throw ShapeError(
        str("attention: ", what, " ", rows.shape, " does not fit the queries ", q.shape, "."));
  if (rows.dtype != dtype)
    throw DTypeError(
        str("attention: ", what, " is ", name(rows.dtype), ", not ", name(dtype), "."));
}

/// The softmax of one panel of scores: `s` becomes exp(s - largest), `alpha` the factor by which
/// what was summed before shrinks.
template <class T, int kVectors>
void online_softmax(std::int64_t keys, T* s, T* largest, T* total, T* alpha) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  constexpr int kWide = kVectors * kVectorLanes<T>;
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  Vector top[kVectors];
  for (int v = 0; v < kVectors; ++v) top[v] = S::load(largest + v * kVectorLanes<T>);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector x = S::load(s + j * kWide + v * kVectorLanes<T>);
      top[v] = x > top[v] ? x : top[v];
    }
  }
  alignas(64) T shift[kWide];
  for (int v = 0; v < kVectors; ++v) S::store(shift + v * kVectorLanes<T>, top[v]);
  for (int i = 0; i < kWide; ++i) {
    const T safe = shift[i] == kNever ? T(0) : shift[i];
    alpha[i] = largest[i] == kNever ? T(0) : tile_exp(largest[i] - safe);
    largest[i] = shift[i];
    shift[i] = safe;
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    T* const row = s + j * kWide;
#pragma omp simd
    for (int i = 0; i < kWide; ++i) row[i] = tile_exp(row[i] - shift[i]);
  }
  Vector sum[kVectors] = {};
  for (std::int64_t j = 0; j < keys; ++j)
    for (int v = 0; v < kVectors; ++v) sum[v] += S::load(s + j * kWide + v * kVectorLanes<T>);
  for (int v = 0; v < kVectors; ++v) {
    T* const at = total + v * kVectorLanes<T>;
    S::store(at, S::load(at) * S::load(alpha + v * kVectorLanes<T>) + sum[v]);
  }
}

template <class T>
struct Forward {
  const AttentionWork& work;
  bool first, last;
  TokenRows sum, largest, total, out, lse;

  void run(std::int64_t n, std::int64_t h, std::int64_t first_query) const {
    const Chunk<T> chunk(first_query, std::min(Chunk<T>::size(), work.queries - first_query));
    const std::int64_t depth = whole_vectors<T>(work.depth);
    const std::int64_t width = whole_vectors<T>(work.width);
    const std::int64_t padded = chunk.padded();
    TileScratch<T> scratch(static_cast<std::size_t>(
        padded * (work.depth + width + 2) + chunk.panel + kTileKeys * (depth + width) +
        kTileKeys * chunk.panel + std::max(padded * depth, width) + 256));
    T* const q_panels = scratch.take(padded * work.depth);
    T* const rows = scratch.take(std::max(padded * depth, width));
    T* const sums = scratch.take(padded * width);
    T* const top = scratch.take(padded);
    T* const mass = scratch.take(padded);
    T* const alpha = scratch.take(chunk.panel);
    T* const k_rows = scratch.take(kTileKeys * depth);
    T* const v_rows = scratch.take(kTileKeys * width);
    T* const s = scratch.take(kTileKeys * chunk.panel);

    pack_rows(work.q, n, chunk.first, chunk.count, h, work.depth, depth, rows);
    std::fill(rows + chunk.count * depth, rows + padded * depth, T(0));
    transpose_panels(chunk, rows, depth, work.depth, static_cast<T>(work.options.scale), q_panels);
    std::fill_n(sums, padded * width, T(0));
    std::fill_n(top, padded, -std::numeric_limits<T>::infinity());
    std::fill_n(mass, padded, T(0));
    if (!first) {
      for (std::int64_t i = 0; i < chunk.count; ++i) {
        sum.load(n, chunk.first + i, h, sums + i * width);
        top[i] = largest.number<T>(n, chunk.first + i, h);
        mass[i] = total.number<T>(n, chunk.first + i, h);
      }
    }

    const std::int64_t end = work.key_end(chunk.first + chunk.count - 1);
    for (std::int64_t key = 0; key < end; key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      pack_rows(work.k, n, key, count, work.key_head(h), work.depth, depth, k_rows);
      pack_rows(work.v, n, key, count, work.key_head(h), work.width, width, v_rows);
      for (std::int64_t p = 0; p < chunk.panels; ++p) {
        const std::int64_t from = p * chunk.panel;
        const std::int64_t queries = std::min(chunk.panel, chunk.count - from);
        if (work.options.causal && work.key_end(chunk.first + from + queries - 1) <= key) continue;
        score_tile(work, n, h, key, count, k_rows, chunk, p, q_panels + from * work.depth, s);
        switch (chunk.vectors) {
          case 1:
            online_softmax<T, 1>(count, s, top + from, mass + from, alpha);
            break;
          case 2:
            online_softmax<T, 2>(count, s, top + from, mass + from, alpha);
            break;
          default:
            online_softmax<T, 3>(count, s, top + from, mass + from, alpha);
        }
        if (work.options.dropout > 0.0) drop_tile(work, n, h, key, count, chunk, p, s);
        for (std::int64_t i = 0; i < queries; ++i) {
          T* const row = sums + (from + i) * width;
          if (alpha[i] == T(1)) continue;
#pragma omp simd
          for (std::int64_t c = 0; c < width; ++c) row[c] *= alpha[i];
        }
        add_transposed_product(s, chunk.panel, queries, count, v_rows, sums + from * width, width);
      }
      poll_progress();
    }

    for (std::int64_t i = 0; i < chunk.count; ++i) {
      const std::int64_t token = chunk.first + i;
      T* const row = sums + i * width;
      if (last) {
        const T factor = mass[i] == T(0) ? T(0) : T(1) / mass[i];
#pragma omp simd
        for (std::int64_t c = 0; c < width; ++c) row[c] *= factor;
        out.store(n, token, h, row);
        lse.set_number(
            n, token, h,
            mass[i] == T(0) ? std::numeric_limits<T>::max() : top[i] + std::log(mass[i]));
      } else {
        sum.store(n, token, h, row);
        largest.set_number(n, token, h, top[i]);
        total.set_number(n, token, h, mass[i]);
      }
    }
  }
};

template <class T>
void forward(const AttentionWork& work,
             const AttentionState& state,
             const View& out,
             const View& lse) {
  Forward<T> pass{work, state.first, state.last, {}, {}, {}, {}, {}};
  if (!state.first || !state.last) {
    pass.sum = TokenRows(state.sum, work.options.sample_dims, true);
    pass.largest = TokenRows(state.largest, work.options.sample_dims, false);
    pass.total = TokenRows(state.total, work.options.sample_dims, false);
  }
  if (state.last) {
    pass.out = TokenRows(out, work.options.sample_dims, true);
    pass.lse = TokenRows(lse, work.options.sample_dims, false);
  }
  const std::int64_t chunks = (work.queries + Chunk<T>::size() - 1) / Chunk<T>::size();
  const std::int64_t tasks = work.samples * work.heads * chunks;
  for_each_tile(tasks, tile_threads(tasks, work.flops()), [&](std::int64_t task) {
    // The last queries of a causal problem see most keys: they start first.
    const std::int64_t chunk = chunks - 1 - task / (work.samples * work.heads);
    const std::int64_t n = task / work.heads % work.samples;
    pass.run(n, task % work.heads, chunk * Chunk<T>::size());
  });
}

}  // namespace

void attention_forward(const AttentionOperands& x,
                       const AttentionOptions& options,
                       const AttentionState& state,
                       const View& out,
                       const View& lse) {
  const AttentionWork work(x, options);
  const auto has_width = [&](const char* what, const View& rows) {
    if (rows.shape.back() != work.width)
      throw ShapeError(str("attention: ", what, " ", rows.shape, " has not the ", work.width,
                           " channels of the values."));
  };
  if (state.last) {
    check_rows("the result", out, x.q.view, 0, x.q.view.dtype);
    check_rows("the log-sum-exp", lse, x.q.view, 1, work.compute);
    has_width("the result", out);
  }
  if (!state.first || !state.last) {
    check_rows("the sum", state.sum, x.q.view, 0, work.compute);
    check_rows("the maximum", state.largest, x.q.view, 1, work.compute);
    check_rows("the total", state.total, x.q.view, 1, work.compute);
    has_width("the sum", state.sum);
  }
  if (dry_run()) return;
  if (work.compute == DType::kFloat64) {
    forward<double>(work, state, out, lse);
  } else {
    forward<float>(work, state, out, lse);
  }
}

}  // namespace tessera::kernels
