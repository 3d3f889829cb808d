#include "cpu/row_gemm.hpp"

#include <array>
#include <utility>

namespace tessera::kernels::cpu {

namespace {

template <class T, int kPixels, int kVectors>
class Sums {
 public:
  using S = Simd<T>;
  using Vector = typename S::Type;
  static constexpr int kWidth = kVectorLanes<T>;

  explicit Sums(const RowGemm<T>& g) : g_(g) {
    for (int r = 0; r < kPixels; ++r)
      for (int v = 0; v < kVectors; ++v)
        sum_[r][v] = g.start != nullptr ? S::load(g.start + v * kWidth) : Vector{};
  }

  /// kTaps taps of which each reads one pixel on: pixel i serves tap j of output i - j.
  template <int kTaps>
  void add_shared(const TapRow& row) {
    constexpr int kInputs = kPixels + kTaps - 1;
    constexpr int kGroups = (kInputs + 2) / 3;
    const T* a[kGroups];
    for (int i = 0; i < kGroups; ++i) a[i] = g_.a + row.in[0] + 3 * i * g_.a_row;
    const T* b[kTaps];
    for (int j = 0; j < kTaps; ++j) b[j] = weights(row, j);
    for (std::int64_t k = 0; k < g_.depth; ++k) {
      Vector column[kTaps][kVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kTaps; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) column[j][v] = S::load(b[j] + v * kWidth);
#pragma GCC unroll 32
      for (int i = 0; i < kInputs; ++i) {
        const T x = a[i / 3][(i % 3) * g_.a_row];
#pragma GCC unroll 4
        for (int j = 0; j < kTaps; ++j) {
          if (i - j < 0 || i - j >= kPixels) continue;
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum_[i - j][v] += x * column[j][v];
        }
      }
#pragma GCC unroll 16
      for (int i = 0; i < kGroups; ++i) ++a[i];
#pragma GCC unroll 4
      for (int j = 0; j < kTaps; ++j) b[j] += kVectors * kWidth;
    }
  }

  /// Taps at any distance, in the same order.
  void add(const TapRow& row) {
    for (std::int64_t k = 0; k < g_.depth; ++k) {
      for (int j = 0; j < row.taps; ++j) {
        const T* const a = g_.a + row.in[j] + k;
        const T* const b = weights(row, j) + k * kVectors * kWidth;
        Vector column[kVectors];
        for (int v = 0; v < kVectors; ++v) column[v] = S::load(b + v * kWidth);
#pragma GCC unroll 32
        for (int r = 0; r < kPixels; ++r) {
          const T x = a[r * g_.a_row];
          for (int v = 0; v < kVectors; ++v) sum_[r][v] += x * column[v];
        }
      }
    }
  }

  void store() const {
    for (int r = 0; r < kPixels; ++r)
      for (int v = 0; v < kVectors; ++v) {
        T* const c = g_.c + r * g_.c_row + v * kWidth;
        if (v == kVectors - 1 && g_.last < kWidth) {
          S::store_first(c, sum_[r][v], g_.last);
        } else {
          S::store(c, sum_[r][v]);
        }
      }
  }

 private:
  const T* weights(const TapRow& row, int j) const {
    return g_.b + row.weight[j] * g_.depth * kVectors * kWidth;
  }

  const RowGemm<T>& g_;
  Vector sum_[kPixels][kVectors];
};

template <class T, int kPixels, int kVectors>
void run(const RowGemm<T>& g) {
  bool shared = true;
  for (std::int64_t i = 0; i < g.row_count; ++i) {
    const TapRow& row = g.rows[i];
    shared = shared && row.taps == TapRow::kMost && row.in[1] - row.in[0] == g.a_row &&
             row.in[2] - row.in[1] == g.a_row;
  }
  // One kind of loop per call keeps the sums in registers from row to row.
  Sums<T, kPixels, kVectors> sums(g);
  if (shared) {
    for (std::int64_t i = 0; i < g.row_count; ++i)
      sums.template add_shared<TapRow::kMost>(g.rows[i]);
  } else {
    for (std::int64_t i = 0; i < g.row_count; ++i) sums.add(g.rows[i]);
  }
  sums.store();
}

template <class T>
using Run = void (*)(const RowGemm<T>&);

template <class T, int kVectors, int... kIndex>
constexpr auto table(std::integer_sequence<int, kIndex...>) {
  return std::array<Run<T>, sizeof...(kIndex)>{&run<T, kIndex + 1, kVectors>...};
}

template <class T, int kVectors>
constexpr auto kTable =
    table<T, kVectors>(std::make_integer_sequence<int, max_row_gemm_pixels(kVectors)>{});

}  // namespace

template <class T>
void row_gemm(const RowGemm<T>& g, int vectors, int pixels) {
  const auto row = static_cast<std::size_t>(pixels - 1);
  (vectors == 1 ? kTable<T, 1>[row] : kTable<T, 2>[row])(g);
}

template void row_gemm<float>(const RowGemm<float>&, int, int);
template void row_gemm<double>(const RowGemm<double>&, int, int);

}  // namespace tessera::kernels::cpu
