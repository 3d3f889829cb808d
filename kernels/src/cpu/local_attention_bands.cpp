#include <algorithm>
#include <array>
#include <utility>

#include "cpu/batch_gemm.hpp"
#include "cpu/local_attention_tiles.hpp"

namespace tessera::kernels::cpu {

namespace {

// What stays in registers: sums of kOwn rows at most_distances(kOwn) distances, or of kOwnRows rows
// and kChannels channels.
constexpr bool kMany = kVectorRegisters == 32;
constexpr int most_distances(int own) {
  constexpr int limit[2][kOwnRows] = {{8, 5, 3, 2}, {14, 12, 8, 6}};
  return limit[kMany ? 1 : 0][own - 1];
}
constexpr int kChannels = kMany ? 6 : 2;

/// Keeps a register from being loaded again for each of its uses: these loads cross cache lines.
template <class Vector>
[[gnu::always_inline]] inline void hold(Vector& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
}

/// The products of kOwn own rows with one row of others at kCount distances.
template <class T, int kOwn, int kCount>
void dot_block(
    const T* const* x, const T* others, std::int64_t channels, std::int64_t places, T* const* s) {
  using S = Simd<T>;
  constexpr int kLane = kVectorLanes<T>;
  typename S::Type sum[kOwn][kCount];
  const T* from[kOwn];
#pragma GCC unroll 4
  for (int o = 0; o < kOwn; ++o) {
    from[o] = x[o];
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) sum[o][t] = typename S::Type{};
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    typename S::Type own[kOwn];
#pragma GCC unroll 4
    for (int o = 0; o < kOwn; ++o) own[o] = S::load(from[o] + c * kLane);
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) {
      auto r = S::load(others + c * places + t);
      hold(r);
#pragma GCC unroll 4
      for (int o = 0; o < kOwn; ++o) sum[o][t] += own[o] * r;
    }
  }
#pragma GCC unroll 4
  for (int o = 0; o < kOwn; ++o) {
#pragma GCC unroll 16
    for (int t = 0; t < kCount; ++t) S::store(s[o] + t * kLane, sum[o][t]);
  }
}

template <class T>
using DotBlock = void (*)(const T* const*, const T*, std::int64_t, std::int64_t, T* const*);

/// dot_block by the number of distances less one.
template <class T, int kOwn, int... kIndex>
constexpr std::array<DotBlock<T>, 16> dot_blocks(std::integer_sequence<int, kIndex...>) {
  return {dot_block<T, kOwn, kIndex + 1>...};
}

/// A row of others at all distances, in blocks of nearly equal length.
struct DistanceBlocks {
  DistanceBlocks(std::int64_t distances, int most)
      : count((distances + most - 1) / most),
        length(distances / count),
        longer(distances % count) {}

  std::int64_t count, length, longer;
};

/// sum[o] += p[o] others for own rows kFirst, ..., kFirst + kOwn - 1 and kCount channels, at all
/// distances of one row.
template <class T, int kFirst, int kOwn, int kCount>
[[gnu::always_inline]] inline void add_row(const T* const* p,
                                           const OwnRows::Row& row,
                                           const T* others,
                                           std::int64_t places,
                                           std::int64_t distances,
                                           typename Simd<T>::Type (*sum)[kCount]) {
  using S = Simd<T>;
  constexpr int kLane = kVectorLanes<T>;
  const T* from[kOwn];
#pragma GCC unroll 4
  for (int o = 0; o < kOwn; ++o)
    from[o] = p[kFirst + o] + row.place[kFirst + o] * distances * kLane;
  for (std::int64_t t = 0; t < distances; ++t) {
    typename S::Type factor[kOwn];
#pragma GCC unroll 4
    for (int o = 0; o < kOwn; ++o) factor[o] = S::load(from[o] + t * kLane);
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) {
      auto r = S::load(others + c * places + t);
      hold(r);
#pragma GCC unroll 4
      for (int o = 0; o < kOwn; ++o) sum[kFirst + o][c] += factor[o] * r;
    }
  }
}

/// kCount channels of band_sum.
template <class T, int kCount>
void sum_block(const OwnRows& own,
               const T* const* p,
               const T* others,
               std::int64_t row_size,
               std::int64_t places,
               std::int64_t distances,
               bool accumulate,
               T* const* y,
               std::int64_t channel) {
  using S = Simd<T>;
  constexpr int kLane = kVectorLanes<T>;
  typename S::Type sum[kOwnRows][kCount];
#pragma GCC unroll 4
  for (int o = 0; o < kOwnRows; ++o) {
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) {
      sum[o][c] =
          accumulate && o < own.count ? S::load(y[o] + (channel + c) * kLane) : typename S::Type{};
    }
  }
  for (const OwnRows::Row& row : own.rows) {
    const T* const from = others + row.row * row_size + channel * places;
    const auto add = [&]<int kFirst, int kOwn>() __attribute__((always_inline)) {
      add_row<T, kFirst, kOwn, kCount>(p, row, from, places, distances, sum);
    };
    switch (row.first * 4 + row.count) {
      case 1:
        add.template operator()<0, 1>();
        break;
      case 2:
        add.template operator()<0, 2>();
        break;
      case 3:
        add.template operator()<0, 3>();
        break;
      case 4:
        add.template operator()<0, 4>();
        break;
      case 5:
        add.template operator()<1, 1>();
        break;
      case 6:
        add.template operator()<1, 2>();
        break;
      case 7:
        add.template operator()<1, 3>();
        break;
      case 9:
        add.template operator()<2, 1>();
        break;
      case 10:
        add.template operator()<2, 2>();
        break;
      default:
        add.template operator()<3, 1>();
    }
  }
#pragma GCC unroll 4
  for (int o = 0; o < kOwnRows; ++o) {
    if (o >= own.count) break;
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) S::store(y[o] + (channel + c) * kLane, sum[o][c]);
  }
}

/// Lanes of two registers of a transposition: those whose bit kBit is clear from a, the others from
/// b; `kSecond`: the other half of each.
template <class T, int kBit, bool kSecond, int... kLane>
[[gnu::always_inline]] inline typename Simd<T>::Type exchanged(
    typename Simd<T>::Type a, typename Simd<T>::Type b, std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = kVectorLanes<T>;
  return __builtin_shufflevector(
      a, b,
      ((kLane & kBit) == 0 ? (kSecond ? kLane ^ kBit : kLane)
                           : kLanes + (kSecond ? kLane : kLane ^ kBit))...);
}

/// Transposes 2 kBit registers: all lanes of as many registers as each has, or each half of the
/// lanes of half as many.
template <class T, int kBit = kVectorLanes<T> / 2, int kCount = 2 * kBit>
[[gnu::always_inline]] inline void transpose(typename Simd<T>::Type* v) {
  constexpr auto kLanes = std::make_integer_sequence<int, kVectorLanes<T>>{};
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) {
    if ((i & kBit) != 0) continue;
    const auto a = v[i], b = v[i + kBit];
    v[i] = exchanged<T, kBit, false>(a, b, kLanes);
    v[i + kBit] = exchanged<T, kBit, true>(a, b, kLanes);
  }
  if constexpr (kBit > 1) transpose<T, kBit / 2, kCount>(v);
}

template <class T, int... kLane>
[[gnu::always_inline]] inline typename Simd<T>::Type upper_half(
    typename Simd<T>::Type v, std::integer_sequence<int, kLane...>) {
  constexpr int kHalf = kVectorLanes<T> / 2;
  return __builtin_shufflevector(v, v, (kLane % kHalf + kHalf)...);
}

/// Rows of `width` channels, `step` apart, to `places` columns (at most as many as lanes), `stride`
/// apart; places outside `valid` become zeros, and their rows are not read.
template <class T>
void rows_to_columns(const T* rows,
                     std::int64_t step,
                     Interval valid,
                     std::int64_t places,
                     std::int64_t width,
                     T scale,
                     T* dst,
                     std::int64_t stride) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  constexpr int kLane = kVectorLanes<T>;
  constexpr int kHalf = kLane / 2;
  const auto count = static_cast<int>(places);
  for (std::int64_t c = 0; c < width; c += kLane) {
    const auto channels = static_cast<int>(std::min<std::int64_t>(kLane, width - c));
    Vector v[kLane];
    if (channels == kLane && valid == Interval{0, kLane}) {
#pragma GCC unroll 16
      for (int i = 0; i < kLane; ++i) v[i] = S::load(rows + i * step + c) * scale;
      transpose<T>(v);
#pragma GCC unroll 16
      for (int j = 0; j < kLane; ++j) S::store(dst + (c + j) * stride, v[j]);
      continue;
    }
    const auto row = [&](int i) {
      return i >= valid.lo && i < valid.hi ? S::load_first(rows + i * step + c, channels) * scale
                                           : Vector{};
    };
    if (count <= kHalf) {
      // The upper half of the lanes holds the upper half of the channels.
#pragma GCC unroll 16
      for (int i = 0; i < kHalf; ++i) v[i] = row(i);
      transpose<T, kHalf / 2>(v);
#pragma GCC unroll 16
      for (int j = 0; j < kHalf; ++j) {
        if (j < channels) S::store_first(dst + (c + j) * stride, v[j], count);
        const auto upper = upper_half<T>(v[j], std::make_integer_sequence<int, kLane>{});
        if (kHalf + j < channels) S::store_first(dst + (c + kHalf + j) * stride, upper, count);
      }
      continue;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLane; ++i) v[i] = row(i);
    transpose<T>(v);
#pragma GCC unroll 16
    for (int j = 0; j < kLane; ++j) {
      if (j < channels) S::store_first(dst + (c + j) * stride, v[j], count);
    }
  }
}

/// Columns of lanes to rows `step` apart.
template <class T>
void columns_to_rows(
    const T* src, std::int64_t count, std::int64_t width, T* rows, std::int64_t step) {
  using S = Simd<T>;
  constexpr int kLane = kVectorLanes<T>;
  for (std::int64_t c = 0; c < width; c += kLane) {
    const auto channels = static_cast<int>(std::min<std::int64_t>(kLane, width - c));
    typename S::Type v[kLane];
#pragma GCC unroll 16
    for (int j = 0; j < kLane; ++j)
      v[j] = j < channels ? S::load(src + (c + j) * kLane) : typename S::Type{};
    transpose<T>(v);
#pragma GCC unroll 16
    for (int i = 0; i < kLane; ++i)
      if (i < count) S::store_first(rows + i * step + c, v[i], channels);
  }
}

/// Rows of another type or layout on their way.
template <class T>
T* row_buffer(std::int64_t elements) {
  static thread_local std::vector<T> memory;
  if (static_cast<std::int64_t>(memory.size()) < elements)
    memory.resize(static_cast<std::size_t>(elements));
  return memory.data();
}

}  // namespace

LocalRows::LocalRows(const Piece& piece, const AxisOrder& order, bool channels)
    : view_(piece.view) {
  const int dims = view_.dims() - (channels ? 3 : 2);
  sample_ = view_.strides[0];
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (order[axis] < 0) continue;
    along_[axis] = view_.strides[order[axis] + 1];
    origin_ -= piece.box.lo[order[axis] + 1] * along_[axis];
  }
  head_ = view_.strides[dims + 1];
  origin_ -= piece.box.lo[dims + 1] * head_;
  size_ = static_cast<std::int64_t>(size_of(view_.dtype));
  if (channels) {
    width_ = view_.shape[dims + 2];
    if (width_ > 1) step_ = view_.strides[dims + 2];
  }
}

template <class T>
void LocalRows::read_columns(std::int64_t offset,
                             std::int64_t step,
                             Interval valid,
                             std::int64_t places,
                             T scale,
                             T* dst,
                             std::int64_t stride) const {
  constexpr std::int64_t kLane = kVectorLanes<T>;
  if (width_ == 1 && in_place<T>()) {
    const T* const from = view_.as<T>() + offset;
    for (std::int64_t i = 0; i < places; ++i)
      dst[i] = i >= valid.lo && i < valid.hi ? from[(i - valid.lo) * step] * scale : T(0);
    return;
  }
  for (std::int64_t first = 0; first < places; first += kLane) {
    const std::int64_t some = std::min(kLane, places - first);
    const Interval here{std::clamp<std::int64_t>(valid.lo - first, 0, some),
                        std::clamp<std::int64_t>(valid.hi - first, 0, some)};
    const std::int64_t start = offset + (first - valid.lo) * step;
    if (in_place<T>()) {
      rows_to_columns(view_.as<T>() + start, step, here, some, width_, scale, dst + first, stride);
      continue;
    }
    T* const rows = row_buffer<T>(kLane * width_);
    for (std::int64_t i = here.lo; i < here.hi; ++i) read_row(start + i * step, rows + i * width_);
    rows_to_columns(rows, width_, here, some, width_, scale, dst + first, stride);
  }
}

template <class T>
void LocalRows::write_columns(std::int64_t offset,
                              std::int64_t step,
                              std::int64_t count,
                              const T* src) const {
  if (in_place<T>()) return columns_to_rows(src, count, width_, view_.as<T>() + offset, step);
  T* const rows = row_buffer<T>(kVectorLanes<T> * width_);
  columns_to_rows(src, count, width_, rows, width_);
  for (std::int64_t i = 0; i < count; ++i) write_row(offset + i * step, rows + i * width_);
}

template <class T>
void band_dots(const OwnRows& own,
               const T* const* x,
               const T* others,
               std::int64_t channels,
               std::int64_t distances,
               T* const* s) {
  static constexpr std::array<DotBlock<T>, 16> kBlocks[kOwnRows] = {
      dot_blocks<T, 1>(std::make_integer_sequence<int, most_distances(1)>{}),
      dot_blocks<T, 2>(std::make_integer_sequence<int, most_distances(2)>{}),
      dot_blocks<T, 3>(std::make_integer_sequence<int, most_distances(3)>{}),
      dot_blocks<T, 4>(std::make_integer_sequence<int, most_distances(4)>{})};
  const DistanceBlocks cuts[kOwnRows] = {{distances, most_distances(1)},
                                         {distances, most_distances(2)},
                                         {distances, most_distances(3)},
                                         {distances, most_distances(4)}};
  constexpr int kLane = kVectorLanes<T>;
  const std::int64_t places = distances + kLane - 1;
  for (const OwnRows::Row& row : own.rows) {
    const T* const from = others + row.row * channels * places;
    const DistanceBlocks& blocks = cuts[row.count - 1];
    T* to[kOwnRows];
    for (int o = 0; o < row.count; ++o)
      to[o] = s[row.first + o] + row.place[row.first + o] * distances * kLane;
    std::int64_t t = 0;
    for (std::int64_t block = 0; block < blocks.count; ++block) {
      const std::int64_t count = blocks.length + (block < blocks.longer ? 1 : 0);
      kBlocks[row.count - 1][static_cast<std::size_t>(count - 1)](x + row.first, from + t, channels,
                                                                  places, to);
      for (int o = 0; o < row.count; ++o) to[o] += count * kLane;
      t += count;
    }
  }
}

template <class T>
void band_sum(const OwnRows& own,
              const T* const* p,
              const T* others,
              std::int64_t channels,
              std::int64_t distances,
              bool accumulate,
              T* const* y) {
  const std::int64_t places = distances + kVectorLanes<T> - 1;
  for_row_blocks(channels, kChannels, [&](std::int64_t channel, int count) {
    with_rows<kChannels>(count, [&](auto size) {
      sum_block<T, decltype(size)::value>(own, p, others, channels * places, places, distances,
                                          accumulate, y, channel);
    });
  });
}

template <class T>
void add_bias_and_mask(const OwnRows& own,
                       int o,
                       const T* table,
                       std::int64_t bias_offset,
                       const T* mask,
                       std::int64_t distances,
                       T* s) {
  using S = Simd<T>;
  constexpr int kLane = kVectorLanes<T>;
  if (table == nullptr && mask == nullptr) return;
  for (const OwnRows::Row& row : own.rows) {
    if (o < row.first || o >= row.first + row.count) continue;
    T* const scores = s + row.place[o] * distances * kLane;
    const T* const biases = table == nullptr ? nullptr : table + row.bias[o] + bias_offset;
    for (std::int64_t t = 0; t < distances; ++t) {
      auto value = S::load(scores + t * kLane);
      if (biases != nullptr) value += biases[t];
      if (mask != nullptr) value += S::load(mask + t * kLane);
      S::store(scores + t * kLane, value);
    }
  }
}

#define TESSERA_INSTANTIATE(T)                                                                     \
  template void LocalRows::read_columns<T>(std::int64_t, std::int64_t, Interval, std::int64_t, T,  \
                                           T*, std::int64_t) const;                                \
  template void LocalRows::write_columns<T>(std::int64_t, std::int64_t, std::int64_t, const T*)    \
      const;                                                                                       \
  template void band_dots<T>(const OwnRows&, const T* const*, const T*, std::int64_t,              \
                             std::int64_t, T* const*);                                             \
  template void band_sum<T>(const OwnRows&, const T* const*, const T*, std::int64_t, std::int64_t, \
                            bool, T* const*);                                                      \
  template void add_bias_and_mask<T>(const OwnRows&, int, const T*, std::int64_t, const T*,        \
                                     std::int64_t, T*);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::cpu
