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

/// A sum of powers of two over a tile above which their reference moves. Far from overflow, and so
/// large that it hardly ever happens.
constexpr double kLargestSum = 1e6;
/// Most panels of one task, which reads the keys once.
constexpr std::int64_t kMostPanels = 32;
/// Messages move after every so many panels.
constexpr std::int64_t kPollPanels = 4;
/// A problem is cut into at least so many tasks where panels allow, but not into less than
/// kLeastPanels.
constexpr std::int64_t kWantedTasks = 32, kLeastPanels = 4;

template <class T>
std::int64_t queries_per_task(const AttentionWork& work) {
  const std::int64_t panels = (work.queries + kPanel<T> - 1) / kPanel<T>;
  const std::int64_t share = work.samples * work.heads * panels / kWantedTasks;
  return std::clamp(share, kLeastPanels, kMostPanels) * kPanel<T>;
}

/// Sums of the rows of one panel, column by column [channel][query]: the powers of two count from
/// a reference per query, one of its larger scores; -inf before it has seen a key.
template <class T>
struct PanelSums {
  T* reference;
  T* start;  ///< what scores begin with: - reference, 0 before a key was seen
  T* total;
  T* sums;
  std::int64_t channels;
  std::int64_t queries;  ///< padded
  int vectors;

  /// Whether each query has a reference.
  bool settled() const {
    int all = 1;
#pragma omp simd reduction(& : all)
    for (std::int64_t i = 0; i < queries; ++i) all &= reference[i] > kNever;
    return all != 0;
  }
  /// Moves the references up to the largest scores so far; `s` and all sums follow.
  void raise(T* s, std::int64_t keys) const {
    T rise[kPanel<T>], shrink[kPanel<T>];
    largest_scores(s, queries, keys, vectors, rise);
    for (std::int64_t i = 0; i < queries; ++i) {
      const bool fresh = reference[i] == kNever;
      const T before = fresh ? T(0) : reference[i];
      if (fresh || rise[i] > T(0)) reference[i] = before + rise[i];
      // What the reference moved by after rounding, as later scores begin with it.
      rise[i] = reference[i] == kNever ? T(0) : reference[i] - before;
      start[i] = -(before + rise[i]);
      shrink[i] = fresh ? T(1) : std::exp2(-rise[i]);
      total[i] *= shrink[i];
    }
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t i = 0; i < queries; ++i) s[j * queries + i] -= rise[i];
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t i = 0; i < queries; ++i) sums[c * queries + i] *= shrink[i];
  }

  static constexpr T kNever = -std::numeric_limits<T>::infinity();
};

template <class T>
struct Forward {
  const AttentionWork& work;
  std::int64_t chunk_size;
  bool first, last;
  TokenRows sum, largest, total, out, lse;

  void run(std::int64_t n, std::int64_t h, std::int64_t first_query) const {
    const Chunk<T> chunk(first_query, std::min(chunk_size, work.queries - first_query));
    const std::int64_t depth = padded<T>(work.depth), width = padded<T>(work.width);
    const std::int64_t size = chunk.padded();
    TileScratch<T> scratch({size * work.depth, size * width, size, size, size,
                            kPanel<T> * std::max(depth, width), kTileKeys * depth,
                            kTileKeys * width, kTileKeys * kPanel<T>});
    T* const q_panels = scratch.take(size * work.depth);
    T* const sums = scratch.take(size * width);
    T* const reference = scratch.take(size);
    T* const start = scratch.take(size);
    T* const mass = scratch.take(size);
    T* const rows = scratch.take(kPanel<T> * std::max(depth, width));
    T* const k_rows = scratch.take(kTileKeys * depth);
    T* const v_rows = scratch.take(kTileKeys * width);
    T* const s = scratch.take(kTileKeys * kPanel<T>);
    const auto panel = [&](std::int64_t p) {
      const std::int64_t begin = chunk.begin(p);
      return PanelSums<T>{reference + begin,    start + begin, mass + begin,
                          sums + begin * width, width,         chunk.begin(p + 1) - begin,
                          chunk.vectors(p)};
    };

    pack_panels(work.q, n, chunk, h, work.depth, depth, ScoreTile<T>::query_scale(work), rows,
                q_panels);
    std::fill_n(sums, size * width, T(0));
    std::fill_n(reference, size, PanelSums<T>::kNever);
    std::fill_n(start, size, T(0));
    std::fill_n(mass, size, T(0));
    if (!first) read_state(n, h, chunk, panel, rows);

    const std::int64_t end = work.key_end(chunk.first + chunk.count - 1);
    for (std::int64_t key = 0; key < end; key += kTileKeys) {
      const std::int64_t count = std::min(kTileKeys, end - key);
      pack_rows(work.k, n, key, count, work.key_head(h), work.depth, depth, k_rows);
      pack_rows(work.v, n, key, count, work.key_head(h), work.width, width, v_rows);
      for (std::int64_t p = 0; p < chunk.panels; ++p) {
        const std::int64_t last_query = chunk.first + chunk.begin(p) + chunk.queries(p) - 1;
        if (work.options.causal && work.key_end(last_query) <= key) continue;
        const PanelSums<T> sum_of = panel(p);
        const ScoreTile<T> tile{work, n, h, chunk, p, key, count, s, sum_of.queries};
        add_tile(tile, sum_of, k_rows, q_panels + chunk.begin(p) * work.depth, v_rows);
        if (p % kPollPanels == 0) poll_progress();
      }
    }
    write(n, h, chunk, panel, rows);
  }

  void add_tile(const ScoreTile<T>& tile,
                const PanelSums<T>& panel,
                const T* k_rows,
                const T* q_panel,
                const T* v_rows) const {
    T sum_of[kPanel<T>];
    bool raise = !panel.settled();
    // Once raised, powers are at most 1 (or NaN).
    for (bool fits = false; !fits;) {
      tile.scores(k_rows, q_panel, panel.start);
      if (raise) panel.raise(tile.s, tile.keys);
      exponentials(tile.s, tile.pitch, tile.keys, panel.vectors, sum_of);
      int small = 1;
#pragma omp simd reduction(& : small)
      for (std::int64_t i = 0; i < panel.queries; ++i) small &= sum_of[i] <= T(kLargestSum);
      fits = raise || small != 0;
      raise = true;
    }
    for (std::int64_t i = 0; i < panel.queries; ++i) panel.total[i] += sum_of[i];
    if (work.options.dropout > 0.0) tile.drop(tile.s);
    BlockProduct<T> g;
    g.a = v_rows;
    g.a_pitch = panel.channels;
    g.b = tile.s;
    g.b_pitch = g.c_pitch = panel.queries;
    g.c = panel.sums;
    g.rows = panel.channels;
    g.depth = tile.keys;
    multiply(Left::kColumns, g, panel.vectors);
  }

  template <class Panel>
  void read_state(
      std::int64_t n, std::int64_t h, const Chunk<T>& chunk, const Panel& panel, T* rows) const {
    for (std::int64_t p = 0; p < chunk.panels; ++p) {
      const PanelSums<T> x = panel(p);
      const std::int64_t begin = chunk.first + chunk.begin(p);
      for (std::int64_t i = 0; i < chunk.queries(p); ++i) {
        sum.load(n, begin + i, h, rows + i * x.channels);
        x.reference[i] = largest.number<T>(n, begin + i, h);
        x.start[i] = x.reference[i] == PanelSums<T>::kNever ? T(0) : -x.reference[i];
        x.total[i] = total.number<T>(n, begin + i, h);
      }
      transpose(rows, x.channels, chunk.queries(p), work.width, T(1), x.sums, x.queries);
    }
  }

  template <class Panel>
  void write(
      std::int64_t n, std::int64_t h, const Chunk<T>& chunk, const Panel& panel, T* rows) const {
    for (std::int64_t p = 0; p < chunk.panels; ++p) {
      const PanelSums<T> x = panel(p);
      transpose(x.sums, x.queries, work.width, x.queries, T(1), rows, x.channels);
      for (std::int64_t i = 0; i < chunk.queries(p); ++i) {
        const std::int64_t token = chunk.first + chunk.begin(p) + i;
        T* const row = rows + i * x.channels;
        if (!last) {
          sum.store(n, token, h, row);
          largest.set_number(n, token, h, x.reference[i]);
          total.set_number(n, token, h, x.total[i]);
          continue;
        }
        const bool saw = x.total[i] != T(0);
        const T factor = saw ? T(1) / x.total[i] : T(0);
        for (std::int64_t c = 0; c < work.width; ++c) row[c] *= factor;
        out.store(n, token, h, row);
        const double statistic =
            (static_cast<double>(x.reference[i]) + std::log2(static_cast<double>(x.total[i]))) /
            ScoreTile<T>::kLog2E;
        lse.set_number(n, token, h,
                       saw ? static_cast<T>(statistic) : std::numeric_limits<T>::max());
      }
    }
  }
};

template <class T>
void forward(const AttentionWork& work,
             const AttentionState& state,
             const View& out,
             const View& lse) {
  const std::int64_t size = queries_per_task<T>(work);
  Forward<T> pass{work, size, state.first, state.last, {}, {}, {}, {}, {}};
  if (!state.first || !state.last) {
    pass.sum = TokenRows(state.sum, work.options.sample_dims, true);
    pass.largest = TokenRows(state.largest, work.options.sample_dims, false);
    pass.total = TokenRows(state.total, work.options.sample_dims, false);
  }
  if (state.last) {
    pass.out = TokenRows(out, work.options.sample_dims, true);
    pass.lse = TokenRows(lse, work.options.sample_dims, false);
  }
  const std::int64_t chunks = (work.queries + size - 1) / size;
  const std::int64_t tasks = work.samples * work.heads * chunks;
  for_each_tile(tasks, tile_threads(tasks, work.flops()), [&](std::int64_t task) {
    // The last queries of a causal problem see most keys: they start first.
    const std::int64_t chunk = chunks - 1 - task / (work.samples * work.heads);
    const std::int64_t n = task / work.heads % work.samples;
    pass.run(n, task % work.heads, chunk * size);
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
