#include <algorithm>
#include <tessera/core/dry_run.hpp>

#include "cpu/local_attention_tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

template <class T>
struct Forward {
  const LocalWork& work;
  LocalRows q, k, v, out, lse;

  void run(std::int64_t n, std::int64_t head, Interval tiles) const {
    const std::int64_t depth = whole_vectors<T>(work.depth);
    const std::int64_t width = whole_vectors<T>(work.width);
    const std::int64_t table_size = work.has_bias() ? work.table_size() : 0;
    TileScratch<T> scratch(static_cast<std::size_t>(
        work.hull_rows() * (depth + width) + LocalWindow<T>::scratch_size(work) + work.window() +
        table_size + depth + width + 256));
    T* const keys = scratch.take(work.hull_rows() * depth);
    T* const values = scratch.take(work.hull_rows() * width);
    T* const s = scratch.take(work.window() + kVectorLanes<T>);
    T* const x = scratch.take(depth);
    T* const y = scratch.take(width);
    T* const table = scratch.take(table_size);
    LocalWindow<T> window(work, depth, width, scratch);
    if (work.has_bias()) work.read_bias(head, false, table);
    for (std::int64_t number = tiles.lo; number < tiles.hi; ++number) {
      const LocalTile tile(work, number);
      tile.pack(work, k, n, head / work.group, depth, T(1), keys);
      tile.pack(work, v, n, head / work.group, width, T(1), values);
      tile.for_each_own(work, [&](const Place& at, std::int64_t, const auto& runs) {
        window.set(tile, runs);
        q.read(q.at(n, at, head), depth, static_cast<T>(work.options.scale), x);
        window_dots(x, depth, keys + window.base * depth, window.depth_offsets(), window.count, s);
        if (work.has_bias()) window.add_bias(table, s);
        const T statistic = softmax(s, window.count, window.padded());
        window_sum(s, width, values + window.base * width, window.width_offsets(), window.count,
                   false, y);
        out.write(out.at(n, at, head), y);
        lse.number<T>(lse.at(n, at, head)) = statistic;
      });
    }
  }

  /// s becomes its softmax, with zeros behind; the log-sum-exp is returned.
  static T softmax(T* s, std::int64_t count, std::int64_t padded) {
    using S = Simd<T>;
    constexpr int kLane = kVectorLanes<T>;
    std::fill(s + count, s + padded, -std::numeric_limits<T>::infinity());
    auto top = S::load(s);
    for (std::int64_t j = kLane; j < padded; j += kLane) {
      const auto value = S::load(s + j);
      top = value > top ? value : top;
    }
    T largest = top[0];
    for (int i = 1; i < kLane; ++i) largest = std::max(largest, top[i]);
#pragma omp simd
    for (std::int64_t j = 0; j < padded; ++j) s[j] = tile_exp(s[j] - largest);
    auto sum = S::load(s);
    for (std::int64_t j = kLane; j < padded; j += kLane) sum += S::load(s + j);
    const T total = S::sum(sum);
    const T factor = T(1) / total;
    for (std::int64_t j = 0; j < padded; j += kLane) S::store(s + j, S::load(s + j) * factor);
    return largest + std::log(total);
  }
};

template <class T>
void forward(const LocalWork& work, const LocalOperands& x, const Piece& out, const Piece& lse) {
  const Forward<T> pass{work,
                        LocalRows(x.q, true),
                        LocalRows(x.k, true),
                        LocalRows(x.v, true),
                        LocalRows(out, true),
                        LocalRows(lse, false)};
  const std::int64_t parts = work.tasks_per_head();
  const std::int64_t tasks = work.samples * work.heads.size() * parts;
  const double products =
      work.pairs(work.heads.size()) * static_cast<double>(work.depth + work.width);
  for_each_tile(tasks, tile_threads(tasks, products), [&](std::int64_t task) {
    const std::int64_t tile = task % parts * work.tiles_per_task();
    const std::int64_t head = work.heads.lo + task / parts % work.heads.size();
    pass.run(task / parts / work.heads.size(), head,
             {tile, std::min(work.tiles(), tile + work.tiles_per_task())});
  });
}

}  // namespace

void local_attention_forward(const LocalOperands& x,
                             const LocalOptions& options,
                             const View& out,
                             const View& lse) {
  const LocalWork work(x, options, false);
  const Piece result = rows_like("the result", out, x.q, work.width, x.q.view.dtype);
  const Piece statistic = rows_like("the log-sum-exp", lse, x.q, 0, work.compute);
  if (work.empty || dry_run()) return;
  if (work.compute == DType::kFloat64) {
    forward<double>(work, x, result, statistic);
  } else {
    forward<float>(work, x, result, statistic);
  }
}

}  // namespace tessera::kernels
