#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "cpu/local_attention_tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

/// From scores s and products d of values with the gradient of the result: probabilities in s, and
/// their gradients times themselves in d. `lse` and `delta` advance by `step` (0: one for all).
template <class T, int kStep>
void finish_scores(std::int64_t count, const T* lse, const T* delta, T* s, T* d) {
#pragma omp simd
  for (std::int64_t j = 0; j < count; ++j) {
    const T p = tile_exp(s[j] - lse[j * kStep]);
    s[j] = p;
    d[j] = p * (d[j] - delta[j * kStep]);
  }
}

/// f(task, tiles) for every task of one (sample, head) after another.
template <class F>
void for_each_task(const LocalWork& work, std::int64_t heads, double products, const F& f) {
  const std::int64_t parts = work.tasks_per_head();
  const std::int64_t tasks = work.samples * heads * parts;
  for_each_tile(tasks, tile_threads(tasks, products), [&](std::int64_t task) {
    const std::int64_t tile = task % parts * work.tiles_per_task();
    f(task, Interval{tile, std::min(work.tiles(), tile + work.tiles_per_task())});
  });
}

template <class T>
struct QueryGradient {
  const LocalWork& work;
  LocalRows q, k, v, out, lse, dout, dq, delta;
  T* dbias;  ///< one table per task; null: not wanted

  void run(std::int64_t task, Interval tiles) const {
    const std::int64_t parts = work.tasks_per_head();
    const std::int64_t n = task / parts / work.heads.size();
    const std::int64_t head = work.heads.lo + task / parts % work.heads.size();
    const std::int64_t depth = whole_vectors<T>(work.depth);
    const std::int64_t width = whole_vectors<T>(work.width);
    const std::int64_t table_size = work.has_bias() ? work.table_size() : 0;
    const std::int64_t scores = work.window() + kVectorLanes<T>;
    TileScratch<T> scratch(static_cast<std::size_t>(
        work.hull_rows() * (depth + width) + LocalWindow<T>::scratch_size(work) + 2 * scores +
        table_size + 2 * (depth + width) + 256));
    T* const keys = scratch.take(work.hull_rows() * depth);
    T* const values = scratch.take(work.hull_rows() * width);
    T* const s = scratch.take(scores);
    T* const d = scratch.take(scores);
    T* const x = scratch.take(depth);
    T* const dx = scratch.take(depth);
    T* const g = scratch.take(width);
    T* const y = scratch.take(width);
    T* const table = scratch.take(table_size);
    LocalWindow<T> window(work, depth, width, scratch);
    const T scale = static_cast<T>(work.options.scale);
    if (work.has_bias()) work.read_bias(head, false, table);
    T* const into = dbias == nullptr ? nullptr : dbias + task * work.table_size();
    for (std::int64_t number = tiles.lo; number < tiles.hi; ++number) {
      const LocalTile tile(work, number);
      tile.pack(work, k, n, head / work.group, depth, T(1), keys);
      tile.pack(work, v, n, head / work.group, width, T(1), values);
      tile.for_each_own(work, [&](const Place& at, std::int64_t, const auto& runs) {
        window.set(tile, runs);
        q.read(q.at(n, at, head), depth, scale, x);
        dout.read(dout.at(n, at, head), width, T(1), g);
        out.read(out.at(n, at, head), width, T(1), y);
        T product = 0;
#pragma omp simd reduction(+ : product)
        for (std::int64_t c = 0; c < width; ++c) product += g[c] * y[c];
        window_dots(x, depth, keys + window.base * depth, window.depth_offsets(), window.count, s);
        window_dots(g, width, values + window.base * width, window.width_offsets(), window.count,
                    d);
        if (work.has_bias()) window.add_bias(table, s);
        finish_scores<T, 0>(window.count, &lse.number<T>(lse.at(n, at, head)), &product, s, d);
        if (into != nullptr) window.add_to_table(d, into);
        window_sum(d, depth, keys + window.base * depth, window.depth_offsets(), window.count,
                   false, dx);
#pragma omp simd
        for (std::int64_t c = 0; c < depth; ++c) dx[c] *= scale;
        dq.write(dq.at(n, at, head), dx);
        delta.number<T>(delta.at(n, at, head)) = product;
      });
    }
  }
};

template <class T>
void query_gradient(const LocalWork& work,
                    const LocalOperands& x,
                    std::span<const Piece> rows,
                    const View& dbias) {
  const std::int64_t heads = work.heads.size();
  const std::int64_t tasks = work.samples * heads * work.tasks_per_head();
  std::vector<T> tables;
  if (dbias.data != nullptr) tables.resize(static_cast<std::size_t>(tasks * work.table_size()));
  const QueryGradient<T> pass{work,
                              LocalRows(x.q, true),
                              LocalRows(x.k, true),
                              LocalRows(x.v, true),
                              LocalRows(rows[0], true),
                              LocalRows(rows[1], false),
                              LocalRows(rows[2], true),
                              LocalRows(rows[3], true),
                              LocalRows(rows[4], false),
                              tables.empty() ? nullptr : tables.data()};
  for_each_task(work, heads, work.pairs(heads) * static_cast<double>(2 * work.depth + work.width),
                [&](std::int64_t task, Interval tiles) { pass.run(task, tiles); });
  const std::int64_t parts = work.tasks_per_head();
  for (std::int64_t task = 0; !tables.empty() && task < tasks; ++task) {
    const T* const from = tables.data() + task * work.table_size();
    const std::int64_t head = work.heads.lo + task / parts % heads - work.bias->box.lo[0];
    T* const to = dbias.as<T>() + head * work.table_size();
    for (std::int64_t i = 0; i < work.table_size(); ++i) to[i] += from[i];
  }
}

template <class T>
struct KeyGradient {
  const LocalWork& work;
  LocalRows q, k, v, lse, delta, dout, dk, dv;

  void run(std::int64_t task, Interval tiles) const {
    const std::int64_t parts = work.tasks_per_head();
    const std::int64_t n = task / parts / work.key_heads.size();
    const std::int64_t key_head = work.key_heads.lo + task / parts % work.key_heads.size();
    const Interval heads =
        intersect({key_head * work.group, (key_head + 1) * work.group}, work.heads);
    const std::int64_t depth = whole_vectors<T>(work.depth);
    const std::int64_t width = whole_vectors<T>(work.width);
    const std::int64_t table_size = work.has_bias() ? work.table_size() : 0;
    const std::int64_t scores = work.window() + kVectorLanes<T>;
    TileScratch<T> scratch(static_cast<std::size_t>(
        (work.hull_rows() + work.own_rows() + 1) * (depth + width) + 2 * work.hull_rows() +
        LocalWindow<T>::scratch_size(work) + 4 * scores + table_size + 256));
    T* const queries = scratch.take(work.hull_rows() * depth);
    T* const gradients = scratch.take(work.hull_rows() * width);
    T* const hull_lse = scratch.take(work.hull_rows());
    T* const hull_delta = scratch.take(work.hull_rows());
    T* const dk_rows = scratch.take(work.own_rows() * depth);
    T* const dv_rows = scratch.take(work.own_rows() * width);
    T* const s = scratch.take(scores);
    T* const d = scratch.take(scores);
    T* const l = scratch.take(scores);
    T* const e = scratch.take(scores);
    T* const x = scratch.take(depth);
    T* const y = scratch.take(width);
    T* const table = scratch.take(table_size);
    LocalWindow<T> window(work, depth, width, scratch);
    const T scale = static_cast<T>(work.options.scale);
    for (std::int64_t number = tiles.lo; number < tiles.hi; ++number) {
      const LocalTile tile(work, number);
      std::fill_n(dk_rows, work.own_rows() * depth, T(0));
      std::fill_n(dv_rows, work.own_rows() * width, T(0));
      for (std::int64_t head = heads.lo; head < heads.hi; ++head) {
        // Scaled like the queries of the forward pass: the scores have its bits.
        tile.pack(work, q, n, head, depth, scale, queries);
        tile.pack(work, dout, n, head, width, T(1), gradients);
        tile.pack_numbers(work, lse, n, head, hull_lse);
        tile.pack_numbers(work, delta, n, head, hull_delta);
        if (work.has_bias() && (number == tiles.lo || heads.size() > 1)) {
          work.read_bias(head, true, table);
          window.forget_bias();
        }
        tile.for_each_own(work, [&](const Place& at, std::int64_t own, const auto& runs) {
          window.set(tile, runs);
          k.read(k.at(n, at, key_head), depth, T(1), x);
          v.read(v.at(n, at, key_head), width, T(1), y);
          window_dots(x, depth, queries + window.base * depth, window.depth_offsets(), window.count,
                      s);
          window_dots(y, width, gradients + window.base * width, window.width_offsets(),
                      window.count, d);
          window.collect(hull_lse, l);
          window.collect(hull_delta, e);
          if (work.has_bias()) window.add_bias(table, s);
          finish_scores<T, 1>(window.count, l, e, s, d);
          window_sum(s, width, gradients + window.base * width, window.width_offsets(),
                     window.count, true, dv_rows + own * width);
          window_sum(d, depth, queries + window.base * depth, window.depth_offsets(), window.count,
                     true, dk_rows + own * depth);
        });
      }
      tile.for_each_own(work, [&](const Place& at, std::int64_t own, const auto&) {
        dk.write(dk.at(n, at, key_head), dk_rows + own * depth);
        dv.write(dv.at(n, at, key_head), dv_rows + own * width);
      });
    }
  }
};

template <class T>
void key_gradient(const LocalWork& work, const LocalOperands& x, std::span<const Piece> rows) {
  const KeyGradient<T> pass{work,
                            LocalRows(x.q, true),
                            LocalRows(x.k, true),
                            LocalRows(x.v, true),
                            LocalRows(rows[0], false),
                            LocalRows(rows[1], false),
                            LocalRows(rows[2], true),
                            LocalRows(rows[3], true),
                            LocalRows(rows[4], true)};
  for_each_task(work, work.key_heads.size(),
                work.pairs(work.heads.size()) * static_cast<double>(2 * (work.depth + work.width)),
                [&](std::int64_t task, Interval tiles) { pass.run(task, tiles); });
}

void zero(const Piece& piece) {
  if (!piece.view.empty()) fill(piece.view, 0.0);
}

}  // namespace

void local_attention_query_grad(const LocalOperands& x,
                                const LocalOptions& options,
                                const View& out,
                                const View& lse,
                                const View& dout,
                                const View& dq,
                                const View& delta,
                                const View& dbias) {
  const LocalWork work(x, options, false);
  const DType dtype = x.q.view.dtype;
  const std::array<Piece, 5> rows{
      rows_like("the result", out, x.q, work.width, dtype),
      rows_like("the log-sum-exp", lse, x.q, 0, work.compute),
      rows_like("the gradient of the result", dout, x.q, work.width, dtype),
      rows_like("the gradient of the queries", dq, x.q, work.depth, dtype),
      rows_like("delta", delta, x.q, 0, work.compute)};
  if (dbias.data != nullptr &&
      (!(dbias.shape == x.bias.view.shape) || dbias.dtype != work.compute || !dbias.is_dense())) {
    throw ShapeError(str("local_attention: the gradient of the bias, ", name(dbias.dtype), " ",
                         dbias.shape, ", is not dense ", name(work.compute), " ", x.bias.view.shape,
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
