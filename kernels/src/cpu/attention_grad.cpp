#include <algorithm>
#include <tessera/core/dry_run.hpp>

#include "cpu/attention_tiles.hpp"

// With p = exp(s - lse), dp[i, j] = d[i, j] dout[i] . v[j] and delta[i] = dout[i] . out[i]:
//   ds = p (dp - delta),   dq = scale ds k,   dk = scale ds' q,   dv = (d p)' dout.

namespace tessera::kernels {

namespace {

using namespace cpu;

/// Panels whose probabilities are kept at a time: the depth of the products that give dk and dv.
constexpr std::int64_t kGroupPanels = 4;
template <class T>
constexpr std::int64_t kGroup = kGroupPanels* kPanel<T>;
/// Panels of a chunk, for which keys are read once.
constexpr std::int64_t kChunkPanels = 16;
/// Registers of columns of the products that give dk and dv.
constexpr int kColumnVectors = 2;
/// A part of the keys, all parts of which sum their share of dq apart.
constexpr std::int64_t kLeastPartKeys = 512, kMostParts = 8;

/// Dense rows to groups of columns [groups][rows][up to kColumnVectors registers].
template <class T>
void column_panels(const T* rows, std::int64_t count, std::int64_t pitch, T scale, T* dst) {
  constexpr std::int64_t kWide = kColumnVectors * kVectorLanes<T>;
  for (std::int64_t c = 0; c < pitch; c += kWide) {
    const std::int64_t wide = std::min(kWide, pitch - c);
    for (std::int64_t i = 0; i < count; ++i, dst += wide)
      for (std::int64_t j = 0; j < wide; ++j) dst[j] = rows[i * pitch + c + j] * scale;
  }
}

/// A chunk of queries of one head with all that their gradient takes from them.
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
            std::int64_t count,
            std::int64_t dq_parts)
      : n(sample),
        h(head),
        chunk(first_query, count),
        size(chunk.padded()),
        depth(padded<T>(work.depth)),
        width(padded<T>(work.width)),
        scratch_({size * work.depth, size * work.width, size * depth, size * width, size, size,
                  size * depth, dq_parts * size * depth, size * std::max(depth, width), width}) {
    q_panels = scratch_.take(size * work.depth);
    g_panels = scratch_.take(size * work.width);
    q_columns = scratch_.take(size * depth);
    g_columns = scratch_.take(size * width);
    start = scratch_.take(size);
    delta = scratch_.take(size);
    dq = scratch_.take(size * depth);
    dq_part = scratch_.take(dq_parts * size * depth);
    T* const rows = scratch_.take(size * std::max(depth, width));
    T* const out_row = scratch_.take(width);

    pack_panels(work.q, n, chunk, h, work.depth, depth, ScoreTile<T>::query_scale(work), rows,
                q_panels);
    pack_panels(dout, n, chunk, h, work.width, width, T(1), rows, g_panels);
    pack_rows(work.q, n, chunk.first, chunk.count, h, work.depth, depth, rows);
    std::fill(rows + chunk.count * depth, rows + size * depth, T(0));
    column_panels(rows, size, depth, static_cast<T>(work.options.scale), q_columns);
    pack_rows(dout, n, chunk.first, chunk.count, h, work.width, width, rows);
    std::fill(rows + chunk.count * width, rows + size * width, T(0));
    column_panels(rows, size, width, T(1), g_columns);
    std::fill_n(start, size, -std::numeric_limits<T>::infinity());
    std::fill_n(delta, size, T(0));
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      start[i] = lse.number<T>(n, chunk.first + i, h) * static_cast<T>(-ScoreTile<T>::kLog2E);
      out.load(n, chunk.first + i, h, out_row);
      const T* const g = rows + i * width;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < work.width; ++c) sum += g[c] * out_row[c];
      delta[i] = sum;
    }
  }

  const std::int64_t n, h;
  const Chunk<T> chunk;
  const std::int64_t size, depth, width;  ///< padded
  T *q_panels, *g_panels;                 ///< [panel][channel][query], q times the scale of scores
  T *q_columns, *g_columns;               ///< [column group][query][column], q times the scale
  T *start, *delta;
  T *dq, *dq_part;  ///< [panel][channel][query]; the share of other parts than the first

 private:
  TileScratch<T> scratch_;
};

/// A tile of keys against the queries of a chunk.
template <class T>
class GradTile {
 public:
  explicit GradTile(const AttentionWork& work)
      : work_(work),
        depth_(padded<T>(work.depth)),
        width_(padded<T>(work.width)),
        scratch_({kTileKeys * depth_, kTileKeys * width_, kPanel<T>, kTileKeys * kGroup<T>,
                  kTileKeys * kGroup<T>, kTileKeys * depth_, kTileKeys * width_,
                  std::max(depth_, width_)}) {
    k_rows_ = scratch_.take(kTileKeys * depth_);
    v_rows_ = scratch_.take(kTileKeys * width_);
    zeros_ = scratch_.take(kPanel<T>);
    p_ = scratch_.take(kTileKeys * kGroup<T>);
    ds_ = scratch_.take(kTileKeys * kGroup<T>);
    dk_ = scratch_.take(kTileKeys * depth_);
    dv_ = scratch_.take(kTileKeys * width_);
    row_ = scratch_.take(std::max(depth_, width_));
    std::fill_n(zeros_, kPanel<T>, T(0));
  }

  void read(const GradChunk<T>& c, std::int64_t key, std::int64_t count) {
    key_ = key;
    keys_ = count;
    pack_rows(work_.k, c.n, key, count, work_.key_head(c.h), work_.depth, depth_, k_rows_);
    pack_rows(work_.v, c.n, key, count, work_.key_head(c.h), work_.width, width_, v_rows_);
  }
  /// The first panel that sees a key of the tile, which follow each other in the global order.
  std::int64_t first_panel(const Chunk<T>& chunk) const {
    std::int64_t p = 0;
    while (work_.options.causal && p < chunk.panels &&
           work_.key_end(chunk.first + chunk.begin(p) + chunk.queries(p) - 1) <= key_) {
      ++p;
    }
    return p;
  }

  /// p (with dropout) and ds of one panel, from query `at` of the group on; returns ds
  /// [key][kGroup].
  const T* compute(const GradChunk<T>& c, std::int64_t panel, std::int64_t at) {
    const std::int64_t begin = c.chunk.begin(panel);
    const int vectors = c.chunk.vectors(panel);
    T* const p = p_ + at;
    T* const ds = ds_ + at;
    const ScoreTile<T> tile{work_, c.n, c.h, c.chunk, panel, key_, keys_, p, kGroup<T>};
    tile.scores(k_rows_, c.q_panels + begin * work_.depth, c.start + begin);
    BlockProduct<T> g;
    g.a = v_rows_;
    g.a_pitch = width_;
    g.b = c.g_panels + begin * work_.width;
    g.b_pitch = vectors * kVectorLanes<T>;
    g.c = ds;
    g.c_pitch = kGroup<T>;
    g.rows = keys_;
    g.depth = work_.width;
    g.start = zeros_;
    multiply(Left::kRows, g, vectors);
    const bool dropped = work_.options.dropout > 0.0;
    if (dropped) tile.drop(ds);
    score_gradients(p, ds, kGroup<T>, keys_, vectors, c.delta + begin);
    if (dropped) tile.drop(p);
    return ds;
  }

  /// Adds what all queries of the chunk give to the keys of the tile, and what these give to dq.
  void add(const GradChunk<T>& c, const TokenRows& dk, const TokenRows& dv, T* dq) {
    const Chunk<T>& chunk = c.chunk;
    const T* start = zeros_;
    for (std::int64_t p = first_panel(chunk); p < chunk.panels; start = nullptr) {
      const std::int64_t first = chunk.begin(p);
      const std::int64_t end = std::min(chunk.panels, (p / kGroupPanels + 1) * kGroupPanels);
      for (; p < end; ++p) {
        BlockProduct<T> g;
        g.b = compute(c, p, chunk.begin(p) - first);
        g.b_pitch = kGroup<T>;
        g.a = k_rows_;
        g.a_pitch = depth_;
        g.c = dq + chunk.begin(p) * depth_;
        g.c_pitch = chunk.vectors(p) * kVectorLanes<T>;
        g.rows = depth_;
        g.depth = keys_;
        multiply(Left::kColumns, g, chunk.vectors(p));
      }
      const Interval queries{first, chunk.begin(p)};
      sum_over_queries(p_, c.g_columns, c.size, queries, width_, start, dv_);
      sum_over_queries(ds_, c.q_columns, c.size, queries, depth_, start, dk_);
      poll_progress();
    }
    if (start != nullptr) return;
    const std::int64_t head = work_.key_head(c.h);
    for (std::int64_t j = 0; j < keys_; ++j) {
      if (j + kRowsAhead < keys_) {
        dv.prefetch(c.n, key_ + j + kRowsAhead, head);
        dk.prefetch(c.n, key_ + j + kRowsAhead, head);
      }
      dv.add(c.n, key_ + j, head, dv_ + j * width_, row_);
      dk.add(c.n, key_ + j, head, dk_ + j * depth_, row_);
    }
  }

 private:
  /// c[key] = start or c[key] + sum over queries of s[key][query] columns[query].
  void sum_over_queries(const T* s,
                        const T* columns,
                        std::int64_t rows,
                        Interval queries,
                        std::int64_t pitch,
                        const T* start,
                        T* c) const {
    constexpr std::int64_t kWide = kColumnVectors * kVectorLanes<T>;
    BlockProduct<T> g;
    g.a = s;
    g.a_pitch = kGroup<T>;
    g.c_pitch = pitch;
    g.rows = keys_;
    g.depth = queries.size();
    g.start = start;
    for (std::int64_t column = 0; column < pitch; column += kWide) {
      g.b_pitch = std::min(kWide, pitch - column);
      g.b = columns + column * rows + queries.lo * g.b_pitch;
      g.c = c + column;
      multiply(Left::kRows, g, static_cast<int>(g.b_pitch / kVectorLanes<T>));
    }
  }

  const AttentionWork& work_;
  std::int64_t depth_, width_;  ///< padded
  TileScratch<T, 1> scratch_;
  std::int64_t key_ = 0, keys_ = 0;
  T *k_rows_, *v_rows_, *zeros_;
  T *p_, *ds_;  ///< [key][query] of a group of panels
  T *dk_, *dv_, *row_;
};

template <class T>
struct Gradients {
  const AttentionWork& work;
  std::int64_t parts;  ///< of the keys
  bool apart;          ///< parts run on threads, else one after the other
  TokenRows out, lse, dout, dq, dk, dv;

  /// All queries of the heads that read one key head: dk and dv of a key are summed by one thread.
  void run(std::int64_t n, std::int64_t key_head) const {
    constexpr std::int64_t kQueries = kChunkPanels * kPanel<T>;
    for (std::int64_t h = 0; h < work.heads; ++h) {
      if (work.key_head(h) != key_head) continue;
      for (std::int64_t query = 0; query < work.queries; query += kQueries) {
        add_chunk(GradChunk<T>(work, out, lse, dout, n, h, query,
                               std::min(kQueries, work.queries - query),
                               apart ? parts - 1 : std::min<std::int64_t>(parts - 1, 1)));
      }
    }
  }

  void add_chunk(const GradChunk<T>& c) const {
    const std::int64_t size = c.size * c.depth;
    const std::int64_t end = work.key_end(c.chunk.first + c.chunk.count - 1);
    const std::int64_t tiles = (work.keys + kTileKeys - 1) / kTileKeys;
    const std::int64_t part_keys = (tiles + parts - 1) / parts * kTileKeys;
    const auto add_part = [&](const T* part) {
      for (std::int64_t i = 0; i < size; ++i) c.dq[i] += part[i];
    };
    for_each_tile(parts, apart ? thread_count() : 1, [&](std::int64_t part) {
      T* const mine = part == 0 ? c.dq : c.dq_part + (apart ? (part - 1) * size : 0);
      std::fill_n(mine, size, T(0));
      GradTile<T> tile(work);
      const std::int64_t last = std::min(end, (part + 1) * part_keys);
      for (std::int64_t key = part * part_keys; key < last; key += kTileKeys) {
        tile.read(c, key, std::min(kTileKeys, last - key));
        tile.add(c, dk, dv, mine);
      }
      if (!apart && part > 0) add_part(mine);
    });
    if (apart)
      for (std::int64_t part = 1; part < parts; ++part) add_part(c.dq_part + (part - 1) * size);

    TileScratch<T, 1> scratch({kPanel<T> * c.depth, c.depth});
    T* const rows = scratch.take(kPanel<T> * c.depth);
    T* const row = scratch.take(c.depth);
    for (std::int64_t p = 0; p < c.chunk.panels; ++p) {
      const std::int64_t begin = c.chunk.begin(p), wide = c.chunk.begin(p + 1) - begin;
      transpose(c.dq + begin * c.depth, wide, work.depth, wide, static_cast<T>(work.options.scale),
                rows, c.depth);
      for (std::int64_t i = 0; i < c.chunk.queries(p); ++i)
        dq.add(c.n, c.chunk.first + begin + i, c.h, rows + i * c.depth, row);
    }
  }
};

template <class T>
struct BiasGradient {
  const AttentionWork& work;
  TokenRows out, lse, dout;
  PairView dbias;

  /// Queries of one task where tasks share no row.
  static constexpr std::int64_t kQueries = kGroup<T>;

  /// The queries [query, end) of all samples and heads that share one slice of the bias.
  void run(Interval over_samples, Interval over_heads, std::int64_t query, std::int64_t end) const {
    for (std::int64_t n = over_samples.lo; n < over_samples.hi; ++n)
      for (std::int64_t h = over_heads.lo; h < over_heads.hi; ++h)
        for (std::int64_t q = query; q < end; q += kQueries)
          add_chunk({work, out, lse, dout, n, h, q, std::min(kQueries, end - q), 0});
  }

  void add_chunk(const GradChunk<T>& c) const {
    const Chunk<T>& chunk = c.chunk;
    GradTile<T> tile(work);
    T* const into = dbias.view.as<T>() + dbias.sample_head(c.n, c.h);
    const std::int64_t end = work.key_end(chunk.first + chunk.count - 1);
    for (std::int64_t key = 0; key < end; key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      tile.read(c, key, count);
      for (std::int64_t p = tile.first_panel(chunk); p < chunk.panels; ++p) {
        const T* const ds = tile.compute(c, p, 0);
        const std::int64_t first = chunk.first + chunk.begin(p), queries = chunk.queries(p);
        for (std::int64_t j = 0; j < count; ++j) {
          const T* const row = ds + j * kGroup<T>;
          const std::int64_t column = dbias.columns[key + j];
          if (dbias.same_row) {
            T sum = 0;
            for (std::int64_t i = 0; i < queries; ++i) sum += row[i];
            into[dbias.rows[0] + column] += sum;
            continue;
          }
          for (std::int64_t i = 0; i < queries; ++i) into[dbias.rows[first + i] + column] += row[i];
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
  const std::int64_t tasks = work.samples * work.key_heads;
  // The parts, hence all sums, follow from the shape; only who computes them, from the threads.
  const std::int64_t parts = std::clamp<std::int64_t>(work.keys / kLeastPartKeys, 1, kMostParts);
  const int threads = tile_threads(tasks * parts, 2.5 * work.flops());
  const bool apart = parts > 1 && threads > 1 && tasks < 2 * threads;
  const Gradients<T> pass{work,
                          parts,
                          apart,
                          TokenRows(saved.out, work.options.sample_dims, true),
                          TokenRows(saved.lse, work.options.sample_dims, false),
                          TokenRows(saved.dout, work.options.sample_dims, true),
                          TokenRows(dq, work.options.sample_dims, true),
                          TokenRows(dk, work.options.sample_dims, true),
                          TokenRows(dv, work.options.sample_dims, true)};
  for_each_tile(tasks, apart ? 1 : threads,
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
      dbias.shared_rows ? std::max<std::int64_t>(1, work.queries) : pass.kQueries;
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
