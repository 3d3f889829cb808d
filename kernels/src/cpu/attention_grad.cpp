#include <algorithm>
#include <tessera/core/dry_run.hpp>

#include "cpu/attention_tiles.hpp"

// With p = exp(s - lse), dp[i, j] = d[i, j] dout[i] . v[j] and delta[i] = dout[i] . out[i]:
//   ds = p (dp - delta),   dq = scale ds k,   dk = scale ds' q,   dv = (d p)' dout.

namespace tessera::kernels {

namespace {

using namespace cpu;

constexpr std::int64_t kMaxPanels = kTaskPanels * kMaxGemmVectors;

/// A chunk of queries of one head with what the tiles of its gradient are made of.
template <class T>
class GradChunk {
 public:
  GradChunk(const AttentionWork& work,
            const TokenRows& out,
            const TokenRows& lse,
            const TokenRows& dout,
            std::int64_t sample,
            std::int64_t head,
            std::int64_t first_query,
            TileScratch<T>& scratch)
      : work_(work),
        chunk(first_query, std::min(Chunk<T>::size(), work.queries - first_query)),
        n(sample),
        h(head),
        depth(whole_vectors<T>(work.depth)),
        width(whole_vectors<T>(work.width)) {
    const std::int64_t padded = chunk.padded();
    q_rows = scratch.take(padded * depth);
    g_rows = scratch.take(padded * width);
    q_panels_ = scratch.take(padded * work.depth);
    g_panels_ = scratch.take(padded * work.width);
    lse_ = scratch.take(padded);
    delta_ = scratch.take(padded);
    k_rows = scratch.take(kTileKeys * depth);
    v_rows_ = scratch.take(kTileKeys * width);
    p = scratch.take(kTileKeys * padded);
    ds = scratch.take(kTileKeys * padded);

    pack_rows(work.q, n, chunk.first, chunk.count, h, work.depth, depth, q_rows);
    std::fill(q_rows + chunk.count * depth, q_rows + padded * depth, T(0));
    T* const out_row = v_rows_;  // not in use yet
    pack_rows(dout, n, chunk.first, chunk.count, h, work.width, width, g_rows);
    std::fill(g_rows + chunk.count * width, g_rows + padded * width, T(0));
    for (std::int64_t i = 0; i < padded; ++i) {
      lse_[i] = std::numeric_limits<T>::infinity();
      delta_[i] = T(0);
      if (i >= chunk.count) continue;
      lse_[i] = lse.number<T>(n, chunk.first + i, h);
      out.load(n, chunk.first + i, h, out_row);
      const T* const g = g_rows + i * width;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < work.width; ++c) sum += g[c] * out_row[c];
      delta_[i] = sum;
    }
    transpose_panels(chunk, q_rows, depth, work.depth, static_cast<T>(work.options.scale),
                     q_panels_);
    transpose_panels(chunk, g_rows, width, work.width, T(1), g_panels_);
  }

  static std::int64_t scratch_size(const AttentionWork& work) {
    const std::int64_t padded = Chunk<T>::size();
    return (padded + kTileKeys) *
               (2 * whole_vectors<T>(work.depth) + 2 * whole_vectors<T>(work.width) + 2) +
           2 * kTileKeys * padded + 512;
  }

  /// Brings the keys of a tile near.
  void read_keys(std::int64_t key, std::int64_t count) {
    pack_rows(work_.k, n, key, count, work_.key_head(h), work_.depth, depth, k_rows);
    pack_rows(work_.v, n, key, count, work_.key_head(h), work_.width, width, v_rows_);
  }
  std::int64_t queries(std::int64_t panel) const {
    return std::min(chunk.panel, chunk.count - panel * chunk.panel);
  }
  /// The first panel that sees a key of the tile, which follow each other in the global order.
  std::int64_t first_panel(std::int64_t key) const {
    std::int64_t panel = 0;
    while (work_.options.causal && panel < chunk.panels &&
           work_.key_end(chunk.first + panel * chunk.panel + queries(panel) - 1) <= key) {
      ++panel;
    }
    return panel;
  }

  /// p (with dropout) and ds of one panel at [key][query].
  void compute(std::int64_t key, std::int64_t count, std::int64_t panel) {
    T* const pp = p + panel * kTileKeys * chunk.panel;
    T* const dd = ds + panel * kTileKeys * chunk.panel;
    const std::int64_t from = panel * chunk.panel;
    score_tile(work_, n, h, key, count, k_rows, chunk, panel, q_panels_ + from * work_.depth, pp);
    panel_product(v_rows_, width, count, work_.width, g_panels_ + from * work_.width, chunk.vectors,
                  dd);
    const bool dropped = work_.options.dropout > 0.0;
    if (dropped) drop_tile(work_, n, h, key, count, chunk, panel, dd);
    const T* const lse = lse_ + from;
    const T* const delta = delta_ + from;
    for (std::int64_t j = 0; j < count; ++j) {
      T* const s = pp + j * chunk.panel;
      T* const d = dd + j * chunk.panel;
#pragma omp simd
      for (std::int64_t i = 0; i < chunk.panel; ++i) {
        const T probability = tile_exp(s[i] - lse[i]);
        s[i] = probability;
        d[i] = probability * (d[i] - delta[i]);
      }
    }
    if (dropped) drop_tile(work_, n, h, key, count, chunk, panel, pp);
  }

 private:
  const AttentionWork& work_;
  T* q_panels_;
  T* g_panels_;
  T* lse_;
  T* delta_;
  T* v_rows_;

 public:
  const Chunk<T> chunk;
  const std::int64_t n, h;
  const std::int64_t depth, width;  ///< in whole registers
  T* q_rows;
  T* g_rows;
  T* k_rows;
  T* p;
  T* ds;
};

/// c[key] = sum over the panels from `first` on and their queries of s[panel][key][query]
/// b[query], where b are column panels of `padded` rows.
template <class T>
void sum_over_queries(const Chunk<T>& chunk,
                      std::int64_t first,
                      std::int64_t keys,
                      const T* s,
                      const T* b,
                      std::int64_t stride,
                      T* c) {
  std::int64_t a_offset[kMaxPanels], b_offset[kMaxPanels];
  BatchGemm<T> g;
  g.a_offset = a_offset;
  g.b_offset = b_offset;
  g.batch = chunk.panels - first;
  g.depth = chunk.panel;
  g.a_row = chunk.panel;
  g.c_row = stride;
  for (std::int64_t column = 0; column < stride;) {
    const auto vectors = static_cast<int>(
        std::min<std::int64_t>(kColumnVectors, (stride - column) / kVectorLanes<T>));
    const std::int64_t wide = vectors * kVectorLanes<T>;
    for (std::int64_t p = first; p < chunk.panels; ++p) {
      a_offset[p - first] = p * kTileKeys * chunk.panel;
      b_offset[p - first] = p * chunk.panel * wide;
    }
    g.b = b + column * chunk.padded();
    g.b_col = wide;
    for_row_blocks(keys, max_gemm_rows(vectors), [&](std::int64_t row, int rows) {
      g.a = s + row * chunk.panel;
      g.c = c + row * stride + column;
      batch_gemm(g, vectors, rows);
    });
    column += wide;
  }
}

template <class T>
struct Gradients {
  const AttentionWork& work;
  TokenRows out, lse, dout, dq, dk, dv;

  /// All queries of the heads that read one key head: dk and dv are summed by one thread.
  void run(std::int64_t n, std::int64_t key_head) const {
    for (std::int64_t h = 0; h < work.heads; ++h) {
      if (work.key_head(h) != key_head) continue;
      for (std::int64_t query = 0; query < work.queries; query += Chunk<T>::size())
        add_chunk(n, h, query);
    }
  }

  void add_chunk(std::int64_t n, std::int64_t h, std::int64_t query) const {
    const std::int64_t wide = std::max(whole_vectors<T>(work.depth), whole_vectors<T>(work.width));
    TileScratch<T> scratch(static_cast<std::size_t>(
        GradChunk<T>::scratch_size(work) + (3 * Chunk<T>::size() + kTileKeys + 1) * wide + 256));
    GradChunk<T> g(work, out, lse, dout, n, h, query, scratch);
    const Chunk<T>& chunk = g.chunk;
    const std::int64_t padded = chunk.padded();
    T* const q_columns = scratch.take(padded * g.depth);
    T* const g_columns = scratch.take(padded * g.width);
    T* const dq_rows = scratch.take(padded * g.depth);
    T* const tile = scratch.take(kTileKeys * wide);
    T* const row = scratch.take(wide);
    const T scale = static_cast<T>(work.options.scale);
    column_panels(g.q_rows, padded, g.depth, scale, q_columns);
    column_panels(g.g_rows, padded, g.width, T(1), g_columns);
    std::fill_n(dq_rows, padded * g.depth, T(0));

    const std::int64_t end = work.key_end(chunk.first + chunk.count - 1);
    for (std::int64_t key = 0; key < end; key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      g.read_keys(key, count);
      const std::int64_t first = g.first_panel(key);
      for (std::int64_t p = first; p < chunk.panels; ++p) {
        g.compute(key, count, p);
        add_transposed_product(g.ds + p * kTileKeys * chunk.panel, chunk.panel, g.queries(p), count,
                               g.k_rows, dq_rows + p * chunk.panel * g.depth, g.depth);
      }
      const std::int64_t key_head = work.key_head(h);
      sum_over_queries(chunk, first, count, g.p, g_columns, g.width, tile);
      for (std::int64_t j = 0; j < count; ++j)
        dv.add(n, key + j, key_head, tile + j * g.width, row);
      sum_over_queries(chunk, first, count, g.ds, q_columns, g.depth, tile);
      for (std::int64_t j = 0; j < count; ++j)
        dk.add(n, key + j, key_head, tile + j * g.depth, row);
      poll_progress();
    }
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      T* const values = dq_rows + i * g.depth;
      for (std::int64_t c = 0; c < work.depth; ++c) values[c] *= scale;
      dq.add(n, chunk.first + i, h, values, row);
    }
  }
};

template <class T>
struct BiasGradient {
  const AttentionWork& work;
  TokenRows out, lse, dout;
  PairView dbias;

  /// The queries [query, end) of all samples and heads that share one slice of the bias.
  void run(Interval over_samples, Interval over_heads, std::int64_t query, std::int64_t end) const {
    for (std::int64_t n = over_samples.lo; n < over_samples.hi; ++n)
      for (std::int64_t h = over_heads.lo; h < over_heads.hi; ++h)
        for (std::int64_t q = query; q < end; q += Chunk<T>::size()) add_chunk(n, h, q);
  }

  void add_chunk(std::int64_t n, std::int64_t h, std::int64_t query) const {
    TileScratch<T> scratch(static_cast<std::size_t>(GradChunk<T>::scratch_size(work)));
    GradChunk<T> g(work, out, lse, dout, n, h, query, scratch);
    T* const into = dbias.view.as<T>() + dbias.sample_head(n, h);
    const std::int64_t end = work.key_end(g.chunk.first + g.chunk.count - 1);
    for (std::int64_t key = 0; key < end; key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      g.read_keys(key, count);
      for (std::int64_t p = g.first_panel(key); p < g.chunk.panels; ++p) {
        g.compute(key, count, p);
        const T* const ds = g.ds + p * kTileKeys * g.chunk.panel;
        const std::int64_t first = g.chunk.first + p * g.chunk.panel;
        for (std::int64_t j = 0; j < count; ++j) {
          const T* const row = ds + j * g.chunk.panel;
          const std::int64_t column = dbias.columns[key + j];
          if (dbias.same_row) {
            T sum = 0;
            for (std::int64_t i = 0; i < g.queries(p); ++i) sum += row[i];
            into[dbias.rows[0] + column] += sum;
            continue;
          }
          for (std::int64_t i = 0; i < g.queries(p); ++i)
            into[dbias.rows[first + i] + column] += row[i];
        }
      }
      poll_progress();
    }
  }
};

void check_saved(const AttentionWork& work, const AttentionOperands& x, const AttentionSaved& s) {
  const View& q = x.q.view;
  bool fits = s.out.dims() == q.dims() && s.dout.dims() == q.dims() &&
              s.lse.dims() == q.dims() - 1 && s.out.shape == s.dout.shape &&
              s.out.shape.back() == work.width;
  for (int d = 0; fits && d < q.dims() - 1; ++d)
    fits = s.out.shape[d] == q.shape[d] && s.lse.shape[d] == q.shape[d];
  if (!fits) {
    throw ShapeError(str("attention: result ", s.out.shape, ", its gradient ", s.dout.shape,
                         " and log-sum-exp ", s.lse.shape, " do not belong to queries ", q.shape,
                         " and values ", x.v.view.shape, "."));
  }
  if (s.lse.dtype != work.compute)
    throw DTypeError(str("attention: the log-sum-exp is ", name(s.lse.dtype), ", not ",
                         name(work.compute), "."));
}

void check_gradient(const char* what, const View& gradient, const View& of, DType dtype) {
  if (!(gradient.shape == of.shape) || gradient.dtype != dtype) {
    throw ShapeError(str("attention: the gradient of the ", what, " ", name(gradient.dtype), " ",
                         gradient.shape, " is not ", name(dtype), " ", of.shape, "."));
  }
}

template <class T>
void gradients(const AttentionWork& work,
               const AttentionSaved& saved,
               const View& dq,
               const View& dk,
               const View& dv) {
  const Gradients<T> pass{work,
                          TokenRows(saved.out, work.options.sample_dims, true),
                          TokenRows(saved.lse, work.options.sample_dims, false),
                          TokenRows(saved.dout, work.options.sample_dims, true),
                          TokenRows(dq, work.options.sample_dims, true),
                          TokenRows(dk, work.options.sample_dims, true),
                          TokenRows(dv, work.options.sample_dims, true)};
  const std::int64_t tasks = work.samples * work.key_heads;
  for_each_tile(tasks, tile_threads(tasks, 2.5 * work.flops()),
                [&](std::int64_t task) { pass.run(task / work.key_heads, task % work.key_heads); });
}

template <class T>
void bias_gradient(const AttentionWork& work, const AttentionSaved& saved, const PairView& dbias) {
  const BiasGradient<T> pass{work, TokenRows(saved.out, work.options.sample_dims, true),
                             TokenRows(saved.lse, work.options.sample_dims, false),
                             TokenRows(saved.dout, work.options.sample_dims, true), dbias};
  // Tasks write to different elements; what several add to is added by one, in order.
  const std::int64_t samples = dbias.shared_samples ? 1 : work.samples;
  const std::int64_t heads = dbias.head == 0 ? 1 : work.heads;
  const std::int64_t size =
      dbias.shared_rows ? std::max<std::int64_t>(1, work.queries) : Chunk<T>::size();
  const std::int64_t chunks = (work.queries + size - 1) / size;
  const std::int64_t tasks = samples * heads * chunks;
  for_each_tile(tasks, tile_threads(tasks, work.flops()), [&](std::int64_t task) {
    const std::int64_t n = task / chunks / heads;
    const std::int64_t h = task / chunks % heads;
    const std::int64_t query = task % chunks * size;
    const auto whole = [](bool all, std::int64_t i, std::int64_t count) {
      return all ? Interval{0, count} : Interval{i, i + 1};
    };
    pass.run(whole(samples == 1, n, work.samples), whole(heads == 1, h, work.heads), query,
             std::min(work.queries, query + size));
  });
}

}  // namespace

void attention_grad(const AttentionOperands& x,
                    const AttentionOptions& options,
                    const AttentionSaved& saved,
                    const View& dq,
                    const View& dk,
                    const View& dv) {
  const AttentionWork work(x, options);
  check_saved(work, x, saved);
  check_gradient("queries", dq, x.q.view, work.compute);
  check_gradient("keys", dk, x.k.view, work.compute);
  check_gradient("values", dv, x.v.view, work.compute);
  if (dry_run()) return;
  if (work.compute == DType::kFloat64) {
    gradients<double>(work, saved, dq, dk, dv);
  } else {
    gradients<float>(work, saved, dq, dk, dv);
  }
}

void attention_bias_grad(const AttentionOperands& x,
                         const AttentionOptions& options,
                         const AttentionSaved& saved,
                         const View& dbias) {
  const AttentionWork work(x, options);
  if (!work.bias.defined()) throw UsageError("attention_bias_grad: there is no bias.");
  check_saved(work, x, saved);
  check_gradient("bias", dbias, x.bias.view, work.compute);
  const PairView pair("bias gradient", {dbias, x.bias.box, x.bias.global}, x.q, x.k,
                      options.sample_dims);
  if (dry_run()) return;
  if (work.compute == DType::kFloat64) {
    bias_gradient<double>(work, saved, pair);
  } else {
    bias_gradient<float>(work, saved, pair);
  }
}

}  // namespace tessera::kernels
