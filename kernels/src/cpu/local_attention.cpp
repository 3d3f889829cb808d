#include <algorithm>
#include <tessera/core/dry_run.hpp>

#include "cpu/local_attention_tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

/// s [count][lane] becomes its softmax, lane by lane; `lse` gets the log-sum-exp.
template <class T>
void softmax(std::int64_t count, T* s, T* lse) {
  using S = Simd<T>;
  constexpr int kLane = kVectorLanes<T>;
  auto top = S::load(s);
  for (std::int64_t j = 1; j < count; ++j) {
    const auto value = S::load(s + j * kLane);
    top = value > top ? value : top;
  }
  T largest[kLane];
  S::store(largest, top);
  for (std::int64_t j = 0; j < count; ++j) {
#pragma omp simd
    for (int i = 0; i < kLane; ++i) s[j * kLane + i] = tile_exp(s[j * kLane + i] - largest[i]);
  }
  auto total = S::load(s);
  for (std::int64_t j = 1; j < count; ++j) total += S::load(s + j * kLane);
  const auto factor = T(1) / total;
  for (std::int64_t j = 0; j < count; ++j) S::store(s + j * kLane, S::load(s + j * kLane) * factor);
  T mass[kLane];
  S::store(mass, total);
#pragma omp simd
  for (int i = 0; i < kLane; ++i) lse[i] = largest[i] + m::log(mass[i]);
}

template <class T>
struct Forward {
  const LocalWork& work;
  LocalRows q, k, v, out, lse;

  void run(const LocalWork::Task& task) const {
    constexpr std::int64_t kLane = kVectorLanes<T>;
    const std::int64_t block = std::min(task.heads.size(), work.block_heads());
    const std::int64_t rows_size = work.hull_rows() * work.most_places();
    TileScratch<T> scratch(static_cast<std::size_t>(
        block * (rows_size * (work.depth + work.width) + work.table_size() + 32) +
        kOwnRows * kLane * (work.window() + work.depth + work.width) +
        kLane * (work.axes[2].most + 32)));
    T* const keys = scratch.take(block * rows_size * work.depth);
    T* const values = scratch.take(block * rows_size * work.width);
    T* const tables = scratch.take(block * work.table_size());
    T* const mask = scratch.take(kLane * work.axes[2].most);
    T *x[kOwnRows], *s[kOwnRows], *y[kOwnRows];
    for (int o = 0; o < kOwnRows; ++o) {
      x[o] = scratch.take(kLane * work.depth);
      s[o] = scratch.take(kLane * work.window());
      y[o] = scratch.take(kLane * work.width);
    }
    std::vector<OwnRows> own;
    const std::int64_t n = task.sample;
    const T scale = static_cast<T>(work.options.scale);
    for (std::int64_t number = task.tiles.lo; number < task.tiles.hi; ++number) {
      const LocalTile tile(work, number);
      const std::int64_t distances = tile.distances();
      tile.find_rows(own);
      if (tile.masked()) tile.make_mask(mask);
      work.for_each_block(task.heads, [&](Interval heads) {
        const Interval key_heads{heads.lo / work.group, (heads.hi - 1) / work.group + 1};
        tile.pack(k, n, key_heads, T(1), keys);
        tile.pack(v, n, key_heads, T(1), values);
        for (std::int64_t head = heads.lo; work.has_bias() && head < heads.hi; ++head)
          work.read_bias(head, false, tables + (head - heads.lo) * work.table_size());
        for (const OwnRows& rows : own) {
          for (std::int64_t head = heads.lo; head < heads.hi; ++head) {
            const std::int64_t key = (head / work.group - key_heads.lo) * tile.head_places();
            for (int o = 0; o < rows.count; ++o) {
              q.read_columns(q.at(n, rows.at[o], head), tile.lane_step(q), {0, tile.lanes()}, kLane,
                             scale, x[o], kLane);
            }
            band_dots<T>(rows, x, keys + key * work.depth, work.depth, distances, s);
            for (int o = 0; o < rows.count; ++o) {
              add_bias_and_mask(
                  rows, o,
                  work.has_bias() ? tables + (head - heads.lo) * work.table_size() : nullptr,
                  tile.bias_offset(), tile.masked() ? mask : nullptr, distances, s[o]);
              T statistic[kLane];
              softmax(rows.reads[o] * distances, s[o], statistic);
              const std::int64_t at = lse.at(n, rows.at[o], head);
              for (std::int64_t i = 0; i < tile.lanes(); ++i)
                lse.number<T>(at + i * tile.lane_step(lse)) = statistic[i];
            }
            band_sum<T>(rows, s, values + key * work.width, work.width, distances, false, y);
            for (int o = 0; o < rows.count; ++o) {
              out.write_columns(out.at(n, rows.at[o], head), tile.lane_step(out), tile.lanes(),
                                y[o]);
            }
          }
        }
        poll_progress();
      });
    }
  }
};

template <class T>
void forward(const LocalWork& work, const LocalOperands& x, const Piece& out, const Piece& lse) {
  const Forward<T> pass{work,
                        LocalRows(x.q, work.order, true),
                        LocalRows(x.k, work.order, true),
                        LocalRows(x.v, work.order, true),
                        LocalRows(out, work.order, true),
                        LocalRows(lse, work.order, false)};
  const double products =
      work.pairs(work.heads.size()) * static_cast<double>(work.depth + work.width);
  work.for_each_task(work.heads, products, [&](const LocalWork::Task& task) { pass.run(task); });
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
