#include <algorithm>

#include "cpu/batch_gemm.hpp"
#include "cpu/conv_operands.hpp"
#include "cpu/row_gemm.hpp"
#include "cpu/tiles.hpp"

namespace tessera::kernels::cpu {

namespace {

constexpr std::int64_t kTilePixels = 252;  // weights of a tile are read from L2 once per row block

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// The taps of a region as the batch of a small matrix product. Taps that follow each other in
/// memory like channels do become one longer product.
struct TapBatch {
  std::vector<std::int64_t> a;
  std::array<std::vector<std::int64_t>, kMaxGemmVectors> b;  ///< per number of vectors
  std::int64_t depth = 0;
  std::int64_t a_col = 1;
};

TapBatch tap_batch(const TapRegion& r, std::int64_t in, std::int64_t lanes) {
  TapBatch batch;
  const std::size_t taps = r.tap.size();
  std::size_t run = std::max<std::size_t>(taps, 1);
  std::int64_t step = in;
  // batch_gemm walks either channels or neighbouring pixels at distance 1
  if (taps > 1 && in == 1 && r.row_in_step() == 1) step = r.tap_in[1] - r.tap_in[0];
  for (std::size_t t = 0; t < taps;) {
    std::size_t length = 1;
    while (t + length < taps && r.tap[t + length] == r.tap[t] + static_cast<std::int64_t>(length) &&
           r.tap_in[t + length] == r.tap_in[t] + static_cast<std::int64_t>(length) * step)
      ++length;
    if (t == 0) run = length;
    if (length != run) {
      run = 1;
      break;
    }
    t += length;
  }
  batch.depth = in * static_cast<std::int64_t>(run);
  batch.a_col = in == 1 && run > 1 ? step : 1;
  for (std::size_t t = 0; t < taps; t += run) {
    batch.a.push_back(r.tap_in[t]);
    for (std::size_t v = 0; v < kMaxGemmVectors; ++v)
      batch.b[v].push_back(r.tap[t] * in * lanes * static_cast<std::int64_t>(v + 1));
  }
  return batch;
}

/// The taps of a region row by row of the kernel, each at rising coordinates.
std::vector<TapRow> tap_rows(const TapRegion& r, TapDirection direction) {
  std::vector<TapRow> rows;
  for (std::size_t begin = 0; begin < r.tap.size();) {
    TapRow row;
    std::size_t end = begin;
    while (end < r.tap.size() && r.tap[end] / TapRow::kMost == r.tap[begin] / TapRow::kMost) ++end;
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t t = direction == TapDirection::kForward ? i : end - 1 - (i - begin);
      row.in[row.taps] = r.tap_in[t];
      row.weight[row.taps++] = r.tap[t];
    }
    rows.push_back(row);
    begin = end;
  }
  return rows;
}

/// Orders the tiles of each region so that what neighbouring planes share is still in the
/// second-level cache: blocks of rows outside, planes inside. `pixel_bytes`: input of one pixel.
void order_tiles(const std::vector<TapRegion>& regions,
                 std::int64_t pixel_bytes,
                 std::vector<RegionTile>& tiles) {
  constexpr std::int64_t kBlockBytes = std::int64_t{128} << 10;
  struct Key {
    std::int32_t region;
    std::int64_t sample, block;
    auto operator<=>(const Key&) const = default;
  };
  const auto key = [&](const RegionTile& tile) {
    const TapRegion& r = regions[static_cast<std::size_t>(tile.region)];
    const std::int64_t rows =
        std::max<std::int64_t>(1, kBlockBytes / std::max<std::int64_t>(1, r.row() * pixel_bytes));
    return Key{tile.region, tile.row_begin / (r.extent[1] * r.extent[2]),
               tile.row_begin % r.extent[2] / rows};
  };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const RegionTile& a, const RegionTile& b) { return key(a) < key(b); });
}

/// Rows x outputs dot products over the input channels of all taps.
template <class T, int kRows, int kOut>
void dot_block(const TapRegion& r,
               const T* in,
               const T* weights,
               std::int64_t channels,
               std::int64_t weight_tap,
               std::int64_t weight_out,
               const T* bias,
               T* out) {
  using S = Simd<T>;
  constexpr int kWidth = kVectorLanes<T>;
  typename S::Type sum[kRows][kOut]{};
  const std::int64_t step = r.row_in_step();
  const std::int64_t whole = channels / kWidth * kWidth;
  const int rest = static_cast<int>(channels - whole);
  for (std::size_t t = 0; t < r.tap.size(); ++t) {
    const T* a = in + r.tap_in[t];
    const T* w = weights + r.tap[t] * weight_tap;
    for (std::int64_t k = 0; k < whole; k += kWidth) {
      typename S::Type x[kRows];
      for (int p = 0; p < kRows; ++p) x[p] = S::load(a + p * step + k);
      for (int o = 0; o < kOut; ++o) {
        const auto column = S::load(w + o * weight_out + k);
        for (int p = 0; p < kRows; ++p) sum[p][o] += x[p] * column;
      }
    }
    if (rest > 0) {
      for (int o = 0; o < kOut; ++o) {
        const auto column = S::load(w + o * weight_out + whole);
        for (int p = 0; p < kRows; ++p)
          sum[p][o] += S::load_first(a + p * step + whole, rest) * column;
      }
    }
  }
  for (int p = 0; p < kRows; ++p)
    for (int o = 0; o < kOut; ++o) {
      const T value = S::sum(sum[p][o]);
      out[p * r.row_out_step() + o] = bias != nullptr ? value + bias[o] : value;
    }
}

template <class T, int kOut>
void dot_row(const TapRegion& r,
             std::int64_t pixels,
             const T* in,
             const T* weights,
             std::int64_t channels,
             std::int64_t weight_tap,
             std::int64_t weight_out,
             const T* bias,
             T* out) {
  constexpr int kMost = kVectorRegisters == 16 ? 2 : (kOut == 1 ? 8 : kOut == 2 ? 6 : 4);
  for_row_blocks(pixels, kMost, [&](std::int64_t p, int rows) {
    with_rows<kMost>(rows, [&](auto count) {
      dot_block<T, count(), kOut>(r, in + p * r.row_in_step(), weights, channels, weight_tap,
                                  weight_out, bias, out + p * r.row_out_step());
    });
  });
}

/// kRows pixels x one register of channels, each with a filter of its own. Pixels share a base
/// pointer in threes.
template <class T, int kRows, bool kTail>
void channelwise_block(const TapRegion& r,
                       const T* in,
                       const T* weights,
                       std::int64_t weight_tap,
                       const T* bias,
                       T* out,
                       int last) {
  using S = Simd<T>;
  constexpr int kGroup = 3;
  typename S::Type sum[kRows];
  for (int p = 0; p < kRows; ++p) sum[p] = bias != nullptr ? S::load(bias) : typename S::Type{};
  const std::int64_t step = r.row_in_step();
  const std::int64_t* const tap = r.tap.data();
  const std::int64_t* const tap_in = r.tap_in.data();
  const std::size_t taps = r.tap.size();
  for (std::size_t t = 0; t < taps; ++t) {
    const T* a = in + tap_in[t];
    const auto w = S::load(weights + tap[t] * weight_tap);
#pragma GCC unroll 16
    for (int p = 0; p < kRows; ++p) {
      const T* from = a + (p % kGroup) * step;
      sum[p] += (kTail ? S::load_first(from, last) : S::load(from)) * w;
      if (p % kGroup == kGroup - 1) a += kGroup * step;
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kRows; ++p) {
    if constexpr (kTail) {
      S::store_first(out + p * r.row_out_step(), sum[p], last);
    } else {
      S::store(out + p * r.row_out_step(), sum[p]);
    }
  }
}

/// kRows neighbouring pixels, all channels.
template <class T, int kRows>
void channelwise_pixels(const TapRegion& r,
                        const T* in,
                        const T* weights,
                        std::int64_t weight_tap,
                        const T* bias,
                        T* out,
                        std::int64_t channels) {
  constexpr std::int64_t kWidth = kVectorLanes<T>;
  for (std::int64_t c = 0; c < channels; c += kWidth) {
    const T* start = bias != nullptr ? bias + c : nullptr;
    const std::int64_t rest = channels - c;
    if (rest >= kWidth) {
      channelwise_block<T, kRows, false>(r, in + c, weights + c, weight_tap, start, out + c, 0);
    } else {
      channelwise_block<T, kRows, true>(r, in + c, weights + c, weight_tap, start, out + c,
                                        static_cast<int>(rest));
    }
  }
}

}  // namespace

ConvKernel conv_kernel(
    std::int64_t groups, std::int64_t taps, std::int64_t in, std::int64_t out, int lanes) {
  if (in == 1 && out == 1 && groups > 1) return ConvKernel::kChannelwise;
  constexpr std::int64_t kLaneSum = 8;  // summing the lanes of one output, in vector operations
  const std::int64_t gemm = ceil_div(out, lanes) * in * taps;
  const std::int64_t dot = out * (ceil_div(in, lanes) * taps + kLaneSum);
  return dot < gemm ? ConvKernel::kDot : ConvKernel::kGemm;
}

std::vector<std::int64_t> ConvWeights::tap_offsets() const {
  std::vector<std::int64_t> offsets;
  for (std::int64_t t = 0; t < taps; ++t) {
    std::int64_t offset = 0, rest = t;
    for (int d = tap_shape.size() - 1; d >= 0; --d) {
      offset += rest % tap_shape[d] * tap_strides[d];
      rest /= tap_shape[d];
    }
    offsets.push_back(offset);
  }
  return offsets;
}

ConvWeights ConvWeights::make(const View& w, std::int64_t groups, TapDirection direction) {
  ConvWeights c;
  c.view = w;
  c.groups = groups;
  const std::int64_t out = w.shape[0] / groups;
  const int last = w.dims() - 1;
  for (int d = 1; d < last; ++d) {
    c.tap_shape.push_back(w.shape[d]);
    c.tap_strides.push_back(w.strides[d]);
  }
  c.taps = c.tap_shape.product();
  c.group_stride = out * w.strides[0];
  const bool forward = direction == TapDirection::kForward;
  c.in = forward ? w.shape[last] : out;
  c.out = forward ? out : w.shape[last];
  c.in_stride = w.strides[forward ? last : 0];
  c.out_stride = w.strides[forward ? 0 : last];
  return c;
}

template <class T>
struct PackedConv<T>::Call {
  std::vector<TapRegion> regions;
  std::vector<RegionTile> tiles;
  const T* in = nullptr;
  T* out = nullptr;
  int threads = 1;
  TapDirection direction = TapDirection::kForward;
  bool by_rows = false;  ///< taps are summed row by row of the kernel
};

template <class T>
const T* PackedConv<T>::weight(std::int64_t g,
                               std::int64_t tap,
                               std::int64_t i,
                               std::int64_t o) const {
  return w_.view.as<T>() + g * w_.group_stride + tap_offsets_[static_cast<std::size_t>(tap)] +
         i * w_.in_stride + o * w_.out_stride;
}

template <class T>
PackedConv<T>::PackedConv(const ConvWeights& w, const View* bias)
    : w_(w),
      tap_offsets_(w.tap_offsets()),
      kernel_(conv_kernel(w.groups, w.taps, w.in, w.out, kVectorLanes<T>)) {
  switch (kernel_) {
    case ConvKernel::kGemm:
      pack_gemm();
      break;
    case ConvKernel::kDot:
      pack_dot();
      break;
    case ConvKernel::kChannelwise:
      pack_channelwise();
      break;
  }
  if (bias == nullptr) return;
  const bool channelwise = kernel_ == ConvKernel::kChannelwise;
  const std::int64_t groups = channelwise ? 1 : w.groups;
  const std::int64_t out = channelwise ? w.groups : w.out;
  out_padded_ = round_up(out, kVectorLanes<T>);
  bias_ = Scratch<T>(groups * out_padded_);
  if (dry_run()) return;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t o = 0; o < out_padded_; ++o) {
      const std::int64_t at = (g * out + o) % bias->shape[0] * bias->strides[0];
      T value{};
      if (o < out) value = bias->as<T>()[at];
      bias_.data()[g * out_padded_ + o] = value;
    }
}

template <class T>
void PackedConv<T>::pack_gemm() {
  constexpr std::int64_t kWidth = kVectorLanes<T>;
  std::int64_t registers = (w_.out + kWidth - 1) / kWidth;
  for (std::int64_t first = 0; registers > 0;) {
    // four registers are two blocks of two rather than three and one
    const std::int64_t vectors =
        registers == 4 ? 2 : std::min<std::int64_t>(registers, kMaxGemmVectors);
    const std::int64_t count = std::min(w_.out - first, vectors * kWidth);
    columns_.push_back({static_cast<int>(vectors), first,
                        static_cast<int>(count - (vectors - 1) * kWidth), group_size_});
    group_size_ += w_.taps * w_.in * vectors * kWidth;
    first += count;
    registers -= vectors;
  }
  packed_ = Scratch<T>(w_.groups * group_size_);
  if (dry_run()) return;
  const std::int64_t blocks = static_cast<std::int64_t>(columns_.size());
  const std::int64_t work = w_.groups * blocks * w_.taps;
  for_each_tile(work, tile_threads(work, static_cast<double>(w_.groups * group_size_)),
                [&](std::int64_t i) {
                  const std::int64_t tap = i % w_.taps, block = i / w_.taps % blocks,
                                     g = i / w_.taps / blocks;
                  const Columns& c = columns_[static_cast<std::size_t>(block)];
                  const std::int64_t width = c.vectors * kWidth;
                  const std::int64_t used = width - kWidth + c.last;
                  T* to = packed_.data() + g * group_size_ + c.start + tap * w_.in * width;
                  const T* from = weight(g, tap, 0, c.first);
                  // the transposition of w stays in L1
                  constexpr std::int64_t kStrip = 64;
                  for (std::int64_t k0 = 0; k0 < w_.in; k0 += kStrip) {
                    const std::int64_t k1 = std::min(k0 + kStrip, w_.in);
                    for (std::int64_t o = 0; o < used; ++o)
                      for (std::int64_t k = k0; k < k1; ++k)
                        to[k * width + o] = from[k * w_.in_stride + o * w_.out_stride];
                    for (std::int64_t k = k0; k < k1; ++k)
                      std::fill(to + k * width + used, to + (k + 1) * width, T{});
                  }
                });
}

template <class T>
void PackedConv<T>::pack_dot() {
  const std::int64_t width = round_up(w_.in, kVectorLanes<T>);
  group_size_ = w_.out * w_.taps * width;
  packed_ = Scratch<T>(w_.groups * group_size_);
  if (dry_run()) return;
  T* to = packed_.data();
  for (std::int64_t g = 0; g < w_.groups; ++g)
    for (std::int64_t o = 0; o < w_.out; ++o)
      for (std::int64_t tap = 0; tap < w_.taps; ++tap)
        for (std::int64_t k = 0; k < width; ++k) *to++ = k < w_.in ? *weight(g, tap, k, o) : T{};
}

template <class T>
void PackedConv<T>::pack_channelwise() {
  const std::int64_t width = round_up(w_.groups, kVectorLanes<T>);
  packed_ = Scratch<T>(w_.taps * width);
  if (dry_run()) return;
  T* to = packed_.data();
  for (std::int64_t tap = 0; tap < w_.taps; ++tap)
    for (std::int64_t g = 0; g < width; ++g) *to++ = g < w_.groups ? *weight(g, tap, 0, 0) : T{};
}

template <class T>
void PackedConv<T>::run(const std::vector<TapAxis>& axes,
                        TapDirection direction,
                        const Piece& in,
                        const Piece& out) const {
  if (dry_run()) return;
  Call call;
  call.regions = tap_regions(axes, direction, in, out, true);
  call.tiles = region_tiles(call.regions, kTilePixels);
  call.direction = direction;
  const TapAxis& last = axes.back();
  constexpr std::int64_t kFewChannels = 8;
  call.by_rows = last.kernel == TapRow::kMost && last.stride == 1 && last.dilation == 1 &&
                 w_.in >= kFewChannels;
  call.in = in.view.as<T>();
  call.out = out.view.as<T>();
  order_tiles(call.regions, static_cast<std::int64_t>(sizeof(T)) * w_.in * w_.groups, call.tiles);
  const double work = static_cast<double>(out.view.size()) * static_cast<double>(w_.in * w_.taps);
  call.threads = tile_threads(static_cast<std::int64_t>(call.tiles.size()) * 4, work);
  switch (kernel_) {
    case ConvKernel::kGemm:
      return run_gemm(call);
    case ConvKernel::kDot:
      return run_dot(call);
    case ConvKernel::kChannelwise:
      return run_channelwise(call);
  }
}

template <class T>
void PackedConv<T>::run_gemm(const Call& call) const {
  std::vector<TapBatch> batches;
  std::vector<std::vector<TapRow>> rows_of_taps;
  for (const TapRegion& r : call.regions) {
    batches.push_back(tap_batch(r, w_.in, kVectorLanes<T>));
    if (call.by_rows) rows_of_taps.push_back(tap_rows(r, call.direction));
  }
  const std::int64_t blocks = static_cast<std::int64_t>(columns_.size());
  const std::int64_t tiles = static_cast<std::int64_t>(call.tiles.size());
  // few tiles: threads share one tile's output channels
  const std::int64_t splits = tiles >= 4 * call.threads ? 1 : w_.groups * blocks;
  const std::int64_t blocks_per_split = w_.groups * blocks / splits;

  // Neighbouring tiles read the same rows.
  constexpr std::int64_t kMostTogether = 32;
  const std::int64_t together =
      std::clamp<std::int64_t>(tiles * splits / (16 * call.threads), 1, kMostTogether);
  for_each_tile(tiles * splits, call.threads, together, [&](std::int64_t i) {
    const RegionTile& tile = call.tiles[static_cast<std::size_t>(i / splits)];
    const TapRegion& r = call.regions[static_cast<std::size_t>(tile.region)];
    const TapBatch& batch = batches[static_cast<std::size_t>(tile.region)];
    BatchGemm<T> gemm;
    gemm.a_offset = batch.a.data();
    gemm.batch = static_cast<std::int64_t>(batch.a.size());
    gemm.depth = batch.depth;
    gemm.a_col = batch.a_col;
    gemm.a_row = r.row_in_step();
    gemm.c_row = r.row_out_step();
    const std::int64_t begin = i % splits * blocks_per_split;
    for (std::int64_t block = begin; block < begin + blocks_per_split; ++block) {
      const std::int64_t g = block / blocks;
      const Columns& c = columns_[static_cast<std::size_t>(block % blocks)];
      const T* in = call.in + r.in_base + g * w_.in;
      T* out = call.out + r.out_base + g * w_.out + c.first;
      gemm.b = packed_.data() + g * group_size_ + c.start;
      gemm.b_offset = batch.b[static_cast<std::size_t>(c.vectors - 1)].data();
      gemm.b_col = c.vectors * kVectorLanes<T>;
      gemm.start = bias_.data() != nullptr ? bias_.data() + g * out_padded_ + c.first : nullptr;
      gemm.last = c.last;
      if (call.by_rows && c.vectors <= kMaxRowGemmVectors) {
        const std::vector<TapRow>& taps = rows_of_taps[static_cast<std::size_t>(tile.region)];
        RowGemm<T> product;
        product.b = gemm.b;
        product.start = gemm.start;
        product.rows = taps.data();
        product.row_count = static_cast<std::int64_t>(taps.size());
        product.depth = w_.in;
        product.a_row = gemm.a_row;
        product.c_row = gemm.c_row;
        product.last = c.last;
        for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
          const T* const from = in + r.in_row(row);
          T* const to = out + r.out_row(row);
          for_row_blocks(tile.last - tile.first, max_row_gemm_pixels(c.vectors),
                         [&](std::int64_t first, int pixels) {
                           const std::int64_t p = tile.first + first;
                           product.a = from + p * product.a_row;
                           product.c = to + p * product.c_row;
                           row_gemm(product, c.vectors, pixels);
                         });
        }
        continue;
      }
      for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
        const std::int64_t from = r.in_row(row), to = r.out_row(row);
        for_row_blocks(tile.last - tile.first, max_gemm_rows(c.vectors),
                       [&](std::int64_t first, int rows) {
                         const std::int64_t p = tile.first + first;
                         gemm.a = in + from + p * gemm.a_row;
                         gemm.c = out + to + p * gemm.c_row;
                         batch_gemm(gemm, c.vectors, rows);
                       });
      }
    }
  });
}

template <class T>
void PackedConv<T>::run_dot(const Call& call) const {
  const std::int64_t weight_tap = round_up(w_.in, kVectorLanes<T>);
  const std::int64_t weight_out = w_.taps * weight_tap;
  for_each_tile(static_cast<std::int64_t>(call.tiles.size()), call.threads, [&](std::int64_t i) {
    const RegionTile& tile = call.tiles[static_cast<std::size_t>(i)];
    const TapRegion& r = call.regions[static_cast<std::size_t>(tile.region)];
    for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      const T* in = call.in + r.in_base + r.in_row(row) + tile.first * r.row_in_step();
      T* out = call.out + r.out_base + r.out_row(row) + tile.first * r.row_out_step();
      for (std::int64_t g = 0; g < w_.groups; ++g)
        for (std::int64_t o = 0; o < w_.out; o += 4) {
          const T* weights = packed_.data() + g * group_size_ + o * weight_out;
          const T* bias = bias_.data() != nullptr ? bias_.data() + g * out_padded_ + o : nullptr;
          const auto go = [&](auto row_function) {
            row_function(r, tile.last - tile.first, in + g * w_.in, weights, w_.in, weight_tap,
                         weight_out, bias, out + g * w_.out + o);
          };
          switch (std::min<std::int64_t>(w_.out - o, 4)) {
            case 1:
              go(dot_row<T, 1>);
              break;
            case 2:
              go(dot_row<T, 2>);
              break;
            case 3:
              go(dot_row<T, 3>);
              break;
            default:
              go(dot_row<T, 4>);
          }
        }
    }
  });
}

template <class T>
void PackedConv<T>::run_channelwise(const Call& call) const {
  constexpr int kMost = 8;
  const std::int64_t weight_tap = round_up(w_.groups, kVectorLanes<T>);
  for_each_tile(static_cast<std::int64_t>(call.tiles.size()), call.threads, [&](std::int64_t i) {
    const RegionTile& tile = call.tiles[static_cast<std::size_t>(i)];
    const TapRegion& r = call.regions[static_cast<std::size_t>(tile.region)];
    for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      const T* in = call.in + r.in_base + r.in_row(row) + tile.first * r.row_in_step();
      T* out = call.out + r.out_base + r.out_row(row) + tile.first * r.row_out_step();
      for_row_blocks(tile.last - tile.first, kMost, [&](std::int64_t p, int rows) {
        with_rows<kMost>(rows, [&](auto count) {
          channelwise_pixels<T, count()>(r, in + p * r.row_in_step(), packed_.data(), weight_tap,
                                         bias_.data(), out + p * r.row_out_step(), w_.groups);
        });
      });
    }
  });
}

template class PackedConv<float>;
template class PackedConv<double>;

}  // namespace tessera::kernels::cpu
