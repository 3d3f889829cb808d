#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "cpu/local_attention_tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

/// Scores s and products d of values with the gradient of the result, [place][lane], of one row of
/// queries, all places of their windows: probabilities in s, their gradients times themselves in d,
/// and delta[lane] = sum of probability times d. Taken from the result, which bf16 has rounded,
/// delta would not cancel what it stands against.
template <class T>
void finish_queries(std::int64_t places, const T* lse, T* s, T* d, T* delta) {
  constexpr int kLane = kVectorLanes<T>;
  std::fill_n(delta, kLane, T(0));
  for (std::int64_t t = 0; t < places * kLane; t += kLane) {
#pragma omp simd
    for (int i = 0; i < kLane; ++i) {
      const T p = tile_exp(s[t + i] - lse[i]);
      s[t + i] = p;
      delta[i] += p * d[t + i];
    }
  }
  for (std::int64_t t = 0; t < places * kLane; t += kLane) {
#pragma omp simd
    for (int i = 0; i < kLane; ++i) d[t + i] = s[t + i] * (d[t + i] - delta[i]);
  }
}

/// The same for one row of keys, whose lanes meet other queries at each distance: statistics lie
/// one place further on.
template <class T>
void finish_keys(std::int64_t distances, const T* lse, const T* delta, T* s, T* d) {
  constexpr int kLane = kVectorLanes<T>;
  for (std::int64_t t = 0; t < distances; ++t) {
    T* const probability = s + t * kLane;
    T* const gradient = d + t * kLane;
#pragma omp simd
    for (int i = 0; i < kLane; ++i) {
      const T p = tile_exp(probability[i] - lse[t + i]);
      probability[i] = p;
      gradient[i] = p * (gradient[i] - delta[t + i]);
    }
  }
}

/// Memory that the two gradients share.
template <class T>
struct Scratch {
  /// `block` query heads are packed together; `sums` elements beside.
  Scratch(const LocalWork& work, std::int64_t block, std::int64_t sums)
      : packed(block * work.hull_rows() * work.most_places()),
        memory(static_cast<std::size_t>(
            packed * (work.depth + work.width + 2) + block * (work.table_size() + 32) +
            kLane * (2 * kOwnRows * (work.window() + work.depth + work.width) + work.axes[2].most +
                     128) +
            sums)) {
    depth_rows = memory.take(packed * work.depth);
    width_rows = memory.take(packed * work.width);
    tables = memory.take(block * work.table_size());
    mask = memory.take(kLane * work.axes[2].most);
    for (int o = 0; o < kOwnRows; ++o) {
      x[o] = memory.take(kLane * work.depth);
      g[o] = memory.take(kLane * work.width);
      s[o] = memory.take(kLane * work.window());
      d[o] = memory.take(kLane * work.window());
      depth_sum[o] = memory.take(kLane * work.depth);
      width_sum[o] = memory.take(kLane * work.width);
    }
  }
  static constexpr std::int64_t kLane = kVectorLanes<T>;
  std::int64_t packed;
  TileScratch<T> memory;
  T *depth_rows, *width_rows, *tables, *mask;
  T *x[kOwnRows], *g[kOwnRows], *s[kOwnRows], *d[kOwnRows];
  T *depth_sum[kOwnRows], *width_sum[kOwnRows];
};

template <class T>
struct QueryGradient {
  const LocalWork& work;
  LocalRows q, k, v, lse, dout, dq, delta;
  T* dbias;  ///< one table per task and head of it; null: not wanted

  void run(const LocalWork::Task& task) const {
    constexpr std::int64_t kLane = kVectorLanes<T>;
    const std::int64_t block = std::min(task.heads.size(), work.block_heads());
    const std::int64_t size = work.table_size();
    const std::int64_t lane_table = dbias == nullptr ? 0 : kLane * size;
    Scratch<T> m(work, block, block * lane_table);
    T* const bias_sums = m.memory.take(block * lane_table);
    std::vector<OwnRows> own;
    const std::int64_t n = task.sample;
    const T scale = static_cast<T>(work.options.scale);
    for (std::int64_t number = task.tiles.lo; number < task.tiles.hi; ++number) {
      const LocalTile tile(work, number);
      const std::int64_t distances = tile.distances();
      tile.find_rows(own);
      if (tile.masked()) tile.make_mask(m.mask);
      work.for_each_block(task.heads, [&](Interval heads) {
        const Interval key_heads{heads.lo / work.group, (heads.hi - 1) / work.group + 1};
        tile.pack(k, n, key_heads, T(1), m.depth_rows);
        tile.pack(v, n, key_heads, T(1), m.width_rows);
        for (std::int64_t head = heads.lo; work.has_bias() && head < heads.hi; ++head)
          work.read_bias(head, false, m.tables + (head - heads.lo) * size);
        std::fill_n(bias_sums, heads.size() * lane_table, T(0));
        for (const OwnRows& rows : own) {
          for (std::int64_t head = heads.lo; head < heads.hi; ++head) {
            const std::int64_t key = (head / work.group - key_heads.lo) * tile.head_places();
            const T* const table = work.has_bias() ? m.tables + (head - heads.lo) * size : nullptr;
            T statistic[kOwnRows][kLane];
            for (int o = 0; o < rows.count; ++o)
              read_row(rows, o, tile, n, head, scale, m, statistic[o]);
            band_dots<T>(rows, m.x, m.depth_rows + key * work.depth, work.depth, distances, m.s);
            band_dots<T>(rows, m.g, m.width_rows + key * work.width, work.width, distances, m.d);
            for (int o = 0; o < rows.count; ++o) {
              add_bias_and_mask(rows, o, table, tile.bias_offset(),
                                tile.masked() ? m.mask : nullptr, distances, m.s[o]);
              T sums[kLane];
              finish_queries(distances * rows.reads[o], statistic[o], m.s[o], m.d[o], sums);
              for (std::int64_t i = 0; i < tile.lanes(); ++i)
                delta.number<T>(delta.at(n, rows.at[o], head) + i * tile.lane_step(delta)) =
                    sums[i];
              if (dbias != nullptr)
                add_to_bias(rows, o, tile, m.d[o], bias_sums + (head - heads.lo) * lane_table);
            }
            band_sum<T>(rows, m.d, m.depth_rows + key * work.depth, work.depth, distances, false,
                        m.depth_sum);
            for (int o = 0; o < rows.count; ++o) {
#pragma omp simd
              for (std::int64_t i = 0; i < kLane * work.depth; ++i) m.depth_sum[o][i] *= scale;
              dq.write_columns(dq.at(n, rows.at[o], head), tile.lane_step(dq), tile.lanes(),
                               m.depth_sum[o]);
            }
          }
        }
        for (std::int64_t head = heads.lo; dbias != nullptr && head < heads.hi; ++head) {
          T* const into = dbias + (task.number * task.heads.size() + head - task.heads.lo) * size;
          const T* const from = bias_sums + (head - heads.lo) * lane_table;
          for (std::int64_t i = 0; i < size; ++i)
            into[i] += Simd<T>::sum(Simd<T>::load(from + i * kLane));
        }
        poll_progress();
      });
    }
  }

  /// One row of queries, the gradients of their results, and their statistics.
  void read_row(const OwnRows& rows,
                int o,
                const LocalTile& tile,
                std::int64_t n,
                std::int64_t head,
                T scale,
                const Scratch<T>& m,
                T* statistic) const {
    constexpr std::int64_t kLane = kVectorLanes<T>;
    const auto read = [&](const LocalRows& from, T factor, T* to) {
      from.read_columns(from.at(n, rows.at[o], head), tile.lane_step(from), {0, tile.lanes()},
                        kLane, factor, to, kLane);
    };
    read(q, scale, m.x[o]);
    read(dout, T(1), m.g[o]);
    // Lanes without a token have no probabilities.
    std::fill_n(statistic, kLane, std::numeric_limits<T>::infinity());
    for (std::int64_t i = 0; i < tile.lanes(); ++i)
      statistic[i] = lse.number<T>(lse.at(n, rows.at[o], head) + i * tile.lane_step(lse));
  }

  /// sums [element of the table][lane] += d
  static void add_to_bias(const OwnRows& rows, int o, const LocalTile& tile, const T* d, T* sums) {
    using S = Simd<T>;
    constexpr std::int64_t kLane = kVectorLanes<T>;
    for (const OwnRows::Row& row : rows.rows) {
      if (o < row.first || o >= row.first + row.count) continue;
      const T* const from = d + row.place[o] * tile.distances() * kLane;
      T* const to = sums + (row.bias[o] + tile.bias_offset()) * kLane;
      for (std::int64_t i = 0; i < tile.distances() * kLane; i += kLane)
        S::store(to + i, S::load(to + i) + S::load(from + i));
    }
  }
};

template <class T>
void query_gradient(const LocalWork& work,
                    const LocalOperands& x,
                    std::span<const Piece> rows,
                    const View& dbias) {
  const std::int64_t heads = work.heads.size();
  const std::int64_t size = work.table_size();
  std::vector<T> tables;
  if (dbias.data != nullptr) {
    tables.resize(
        static_cast<std::size_t>(work.tasks(heads) / work.head_groups(heads) * heads * size));
  }
  const QueryGradient<T> pass{work,
                              LocalRows(x.q, work.order, true),
                              LocalRows(x.k, work.order, true),
                              LocalRows(x.v, work.order, true),
                              LocalRows(rows[0], work.order, false),
                              LocalRows(rows[1], work.order, true),
                              LocalRows(rows[2], work.order, true),
                              LocalRows(rows[3], work.order, false),
                              tables.empty() ? nullptr : tables.data()};
  work.for_each_task(work.heads,
                     work.pairs(heads) * static_cast<double>(2 * work.depth + work.width),
                     [&](const LocalWork::Task& task) { pass.run(task); });
  // Heads are the fastest index, whether a task has one or all.
  const auto count = static_cast<std::int64_t>(tables.size()) / size;
  for (std::int64_t i = 0; i < count; ++i)
    work.add_bias_gradient(work.heads.lo + i % heads, tables.data() + i * size, dbias);
}

template <class T>
struct KeyGradient {
  const LocalWork& work;
  LocalRows q, k, v, lse, delta, dout, dk, dv;

  void run(const LocalWork::Task& task) const {
    constexpr std::int64_t kLane = kVectorLanes<T>;
    const Interval all =
        intersect({task.heads.lo * work.group, task.heads.hi * work.group}, work.heads);
    const std::int64_t block = std::max<std::int64_t>(1, std::min(all.size(), work.block_heads()));
    // Where a block does not hold all query heads of a key head, sums wait for the next one.
    const std::int64_t waiting =
        work.block_heads() < work.group ? kLane * work.own_rows() * (work.depth + work.width) : 0;
    Scratch<T> m(work, block, waiting);
    T* const packed_lse = m.memory.take(m.packed);
    T* const packed_delta = m.memory.take(m.packed);
    T* const sums = m.memory.take(waiting);
    std::vector<OwnRows> own;
    const std::int64_t n = task.sample;
    const T scale = static_cast<T>(work.options.scale);
    for (std::int64_t number = task.tiles.lo; number < task.tiles.hi; ++number) {
      const LocalTile tile(work, number);
      const std::int64_t distances = tile.distances(), places = tile.places();
      tile.find_rows(own);
      if (tile.masked()) tile.make_mask(m.mask);
      for (std::int64_t key_head = task.heads.lo; key_head < task.heads.hi; ++key_head) {
        if (!intersect({key_head * work.group, (key_head + 1) * work.group}, all).empty()) continue;
        for (int o = 0; o < kOwnRows; ++o) {
          std::fill_n(m.depth_sum[o], kLane * work.depth, T(0));
          std::fill_n(m.width_sum[o], kLane * work.width, T(0));
        }
        for (const OwnRows& rows : own) write(rows, tile, n, key_head, m.depth_sum, m.width_sum);
      }
      work.for_each_block(all, [&](Interval heads) {
        // Scaled like the queries of the forward pass: the scores have its bits.
        tile.pack(q, n, heads, scale, m.depth_rows);
        tile.pack(dout, n, heads, T(1), m.width_rows);
        tile.pack(lse, n, heads, T(1), packed_lse);
        tile.pack(delta, n, heads, T(1), packed_delta);
        for (std::int64_t head = heads.lo; work.has_bias() && head < heads.hi; ++head)
          work.read_bias(head, true, m.tables + (head - heads.lo) * work.table_size());
        std::int64_t number_of_row = 0;
        for (const OwnRows& rows : own) {
          T *depth_sum[kOwnRows], *width_sum[kOwnRows];
          for (int o = 0; o < kOwnRows; ++o) {
            depth_sum[o] = m.depth_sum[o];
            width_sum[o] = m.width_sum[o];
            if (waiting == 0 || o >= rows.count) continue;
            depth_sum[o] = sums + number_of_row * kLane * (work.depth + work.width);
            width_sum[o] = depth_sum[o] + kLane * work.depth;
            ++number_of_row;
          }
          for (std::int64_t head = heads.lo; head < heads.hi; ++head) {
            const std::int64_t key_head = head / work.group, slot = head - heads.lo;
            const std::int64_t first = std::max(key_head * work.group, all.lo);
            const std::int64_t at = slot * tile.head_places();
            for (int o = 0; o < rows.count && (head == heads.lo || head == first); ++o) {
              const auto read = [&](const LocalRows& from, T* to) {
                from.read_columns(from.at(n, rows.at[o], key_head), tile.lane_step(from),
                                  {0, tile.lanes()}, kLane, T(1), to, kLane);
              };
              read(k, m.x[o]);
              read(v, m.g[o]);
            }
            band_dots<T>(rows, m.x, m.depth_rows + at * work.depth, work.depth, distances, m.s);
            band_dots<T>(rows, m.g, m.width_rows + at * work.width, work.width, distances, m.d);
            for (int o = 0; o < rows.count; ++o) {
              add_bias_and_mask(
                  rows, o, work.has_bias() ? m.tables + slot * work.table_size() : nullptr,
                  tile.bias_offset(), tile.masked() ? m.mask : nullptr, distances, m.s[o]);
              for (const OwnRows::Row& row : rows.rows) {
                if (o < row.first || o >= row.first + row.count) continue;
                const std::int64_t score = row.place[o] * distances * kLane;
                finish_keys(distances, packed_lse + at + row.row * places,
                            packed_delta + at + row.row * places, m.s[o] + score, m.d[o] + score);
              }
            }
            band_sum<T>(rows, m.s, m.width_rows + at * work.width, work.width, distances,
                        head > first, width_sum);
            band_sum<T>(rows, m.d, m.depth_rows + at * work.depth, work.depth, distances,
                        head > first, depth_sum);
            if (head + 1 == std::min((key_head + 1) * work.group, all.hi))
              write(rows, tile, n, key_head, depth_sum, width_sum);
          }
        }
        poll_progress();
      });
    }
  }

  void write(const OwnRows& rows,
             const LocalTile& tile,
             std::int64_t n,
             std::int64_t key_head,
             T* const* depth_sum,
             T* const* width_sum) const {
    for (int o = 0; o < rows.count; ++o) {
      dk.write_columns(dk.at(n, rows.at[o], key_head), tile.lane_step(dk), tile.lanes(),
                       depth_sum[o]);
      dv.write_columns(dv.at(n, rows.at[o], key_head), tile.lane_step(dv), tile.lanes(),
                       width_sum[o]);
    }
  }
};

template <class T>
void key_gradient(const LocalWork& work, const LocalOperands& x, std::span<const Piece> rows) {
  const KeyGradient<T> pass{work,
                            LocalRows(x.q, work.order, true),
                            LocalRows(x.k, work.order, true),
                            LocalRows(x.v, work.order, true),
                            LocalRows(rows[0], work.order, false),
                            LocalRows(rows[1], work.order, false),
                            LocalRows(rows[2], work.order, true),
                            LocalRows(rows[3], work.order, true),
                            LocalRows(rows[4], work.order, true)};
  work.for_each_task(
      work.key_heads,
      work.pairs(work.heads.size()) * static_cast<double>(2 * (work.depth + work.width)),
      [&](const LocalWork::Task& task) { pass.run(task); });
}

void zero(const Piece& piece) {
  if (!piece.view.empty()) fill(piece.view, 0.0);
}

}  // namespace

void local_attention_query_grad(const LocalOperands& x,
                                const LocalOptions& options,
                                const View& lse,
                                const View& dout,
                                const View& dq,
                                const View& delta,
                                const View& dbias) {
  const LocalWork work(x, options, false);
  const DType dtype = x.q.view.dtype;
  const std::array<Piece, 4> rows{
      rows_like("the log-sum-exp", lse, x.q, 0, work.compute),
      rows_like("the gradient of the result", dout, x.q, work.width, dtype),
      rows_like("the gradient of the queries", dq, x.q, work.depth, dtype),
      rows_like("delta", delta, x.q, 0, work.compute)};
  if (dbias.data != nullptr &&
      (!(dbias.shape == x.bias.view.shape) || dbias.dtype != work.compute)) {
    throw ShapeError(str("local_attention: the gradient of the bias, ", name(dbias.dtype), " ",
                         dbias.shape, ", is not ", name(work.compute), " ", x.bias.view.shape,
                         "."));
  }
  if (work.empty || dry_run()) return;
  if (work.compute == DType::kFloat64) {
    query_gradient<double>(work, x, rows, dbias);
  } else {
    query_gradient<float>(work, x, rows, dbias);
  }
}

void local_attention_key_grad(const LocalOperands& x,
                              const LocalOptions& options,
                              const Piece& lse,
                              const Piece& delta,
                              const Piece& dout,
                              const View& dk,
                              const View& dv) {
  const LocalWork work(x, options, true);
  const DType dtype = x.q.view.dtype;
  const std::array<Piece, 5> rows{
      rows_like("the log-sum-exp", lse.view, x.q, 0, work.compute),
      rows_like("delta", delta.view, x.q, 0, work.compute),
      rows_like("the gradient of the result", dout.view, x.q, work.width, dtype),
      rows_like("the gradient of the keys", dk, x.k, work.depth, dtype),
      rows_like("the gradient of the values", dv, x.k, work.width, dtype)};
  if (dry_run()) return;
  if (work.empty) {
    zero(rows[3]);
    zero(rows[4]);
  } else if (work.compute == DType::kFloat64) {
    key_gradient<double>(work, x, rows);
  } else {
    key_gradient<float>(work, x, rows);
  }
}

}  // namespace tessera::kernels
