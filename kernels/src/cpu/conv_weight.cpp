#include <algorithm>

#include "cpu/batch_gemm.hpp"
#include "cpu/conv_operands.hpp"
#include "cpu/tiles.hpp"

namespace tessera::kernels::cpu {

namespace {

constexpr std::int64_t kTilePixels = 256;
constexpr std::int64_t kChunkPixels = 4096;  // pixels that are summed into one partial result
constexpr std::int64_t kMaxChunks = 32;
constexpr std::int64_t kMaxPartialBytes = std::int64_t{64} << 20;

/// Columns of the small products: channels of one operand in vector lanes.
struct Columns {
  int vectors;
  std::int64_t first;
  int last;
  std::int64_t start;  ///< in the partial sums of one group
};

/// Partial weight gradients, [chunk][group][columns][tap][row][lane]. Pixels are cut into chunks by
/// the shapes alone and chunks are added in order, so the result does not depend on the number of
/// threads.
struct Plan {
  std::int64_t groups = 1;
  std::int64_t taps = 1;
  std::int64_t rows = 1;   ///< channels per group whose elements are broadcast
  std::int64_t lanes = 1;  ///< channels per group in vector lanes
  bool lanes_are_out = true;
  std::vector<Columns> columns;
  std::int64_t group_size = 0;
  std::int64_t chunks = 1;
  std::int64_t parts = 1;  ///< independent shares of the taps and columns within a chunk
  int threads = 1;
};

/// `offsets`: the plan of sum_offsets, whose lanes are always outputs and whose columns are single
/// registers.
template <class T>
Plan make_plan(std::int64_t groups,
               std::int64_t taps,
               std::int64_t in,
               std::int64_t out,
               std::int64_t pixels,
               bool offsets) {
  constexpr std::int64_t kWidth = kVectorLanes<T>;
  Plan p;
  p.groups = groups;
  p.taps = taps;
  p.rows = in;
  p.lanes = out;
  if (!offsets && ceil_div(in, kWidth) * out < ceil_div(out, kWidth) * in) {
    p.lanes_are_out = false;
    std::swap(p.rows, p.lanes);
  }
  for (std::int64_t first = 0; first < p.lanes;) {
    const std::int64_t rest = p.lanes - first;
    // a partly filled register is a block of its own, so that only that one masks its loads
    std::int64_t vectors = std::min<std::int64_t>(rest / kWidth, kMaxGemmVectors);
    if (rest / kWidth == 4) vectors = 2;
    if (vectors == 0 || offsets) vectors = 1;
    const std::int64_t count = std::min(rest, vectors * kWidth);
    p.columns.push_back({static_cast<int>(vectors), first,
                         static_cast<int>(count - (vectors - 1) * kWidth), p.group_size});
    p.group_size += taps * p.rows * vectors * kWidth;
    first += count;
  }
  const std::int64_t bytes = groups * p.group_size * static_cast<std::int64_t>(sizeof(T));
  p.chunks = std::clamp<std::int64_t>(std::min(pixels / kChunkPixels, kMaxPartialBytes / bytes), 1,
                                      kMaxChunks);
  const double work = static_cast<double>(groups * taps * in * out) * static_cast<double>(pixels);
  p.threads = tile_threads(thread_count(), work);
  if (p.threads > 1 && p.chunks < 4 * p.threads) p.parts = ceil_div(4 * p.threads, p.chunks);
  return p;
}

/// The boxes of dy, each of at most about kTilePixels pixels.
std::vector<Box> dy_tiles(const Box& dy) {
  std::vector<Box> tiles{dy};
  std::int64_t budget = kTilePixels;
  for (int d = dy.dims() - 2; d >= 0; --d) {
    const std::int64_t n = dy[d].size();
    const std::int64_t cuts = ceil_div(n, std::min(n, budget));
    std::vector<Box> next;
    for (std::int64_t i = 0; i < cuts; ++i)
      for (Box tile : tiles) {
        tile.set(d, {dy.lo[d] + n * i / cuts, dy.lo[d] + n * (i + 1) / cuts});
        next.push_back(tile);
      }
    tiles = std::move(next);
    budget = std::max<std::int64_t>(1, budget / ceil_div(n, cuts));
  }
  return tiles;
}

/// Which outputs see tap t of one dimension inside [lo, hi) of the input.
Interval tap_outputs(const TapAxis& a, std::int64_t t, Interval x) {
  const std::int64_t shift = a.pad - t * a.dilation;
  return {ceil_div(x.lo + shift, a.stride), ceil_div(x.hi + shift, a.stride)};
}

/// The pixels of `tile` that see tap `tap`, as offsets into x and dy; false when there are none.
bool clip_to_tap(const std::vector<TapAxis>& axes,
                 const Piece& x,
                 const Piece& dy,
                 const Box& tile,
                 std::int64_t tap,
                 PixelBox& box) {
  box = {};
  const auto place = [&](std::size_t slot, int dim, Interval j, std::int64_t every,
                         std::int64_t shift) {
    box.extent[slot] = j.size();
    box.in_step[slot] = every * x.view.strides[dim];
    box.out_step[slot] = dy.view.strides[dim];
    box.in_base += (j.lo * every + shift - x.box.lo[dim]) * x.view.strides[dim];
    box.out_base += (j.lo - dy.box.lo[dim]) * dy.view.strides[dim];
  };
  place(0, 0, tile[0], 1, 0);
  for (std::size_t i = axes.size(), slot = kPixelDims; i-- > 0;) {
    const TapAxis& a = axes[i];
    const std::int64_t t = tap % a.kernel;
    tap /= a.kernel;
    const int dim = static_cast<int>(i) + 1;
    const Interval j = intersect(tile[dim], tap_outputs(a, t, x.box[dim]));
    if (j.empty()) return false;
    place(--slot, dim, j, a.stride, t * a.dilation - a.pad);
  }
  box.arrange(false);
  return true;
}

template <class T>
void sum_products(const Plan& plan,
                  const std::vector<TapAxis>& axes,
                  const Piece& x,
                  const Piece& dy,
                  T* partial) {
  const std::vector<Box> tiles = dy_tiles(dy.box);
  const auto tile_count = static_cast<std::int64_t>(tiles.size());
  const auto blocks = static_cast<std::int64_t>(plan.columns.size());
  const std::int64_t units = plan.taps * plan.groups * blocks;
  const std::int64_t parts = std::min(plan.parts, units);
  for_each_tile(plan.chunks * parts, plan.threads, [&](std::int64_t item) {
    const std::int64_t chunk = item / parts, part = item % parts;
    const std::int64_t unit_begin = units * part / parts, unit_end = units * (part + 1) / parts;
    T* to = partial + chunk * plan.groups * plan.group_size;
    const auto target = [&](std::int64_t tap, std::int64_t g, const Columns& c) {
      return to + g * plan.group_size + c.start + tap * plan.rows * c.vectors * kVectorLanes<T>;
    };
    for (std::int64_t u = unit_begin; u < unit_end; ++u) {
      const Columns& c = plan.columns[static_cast<std::size_t>(u % blocks)];
      T* begin = target(u / blocks / plan.groups, u / blocks % plan.groups, c);
      std::fill(begin, begin + plan.rows * c.vectors * kVectorLanes<T>, T{});
    }
    std::int64_t x_row[kTilePixels], dy_row[kTilePixels];
    for (std::int64_t i = tile_count * chunk / plan.chunks;
         i < tile_count * (chunk + 1) / plan.chunks; ++i) {
      PixelBox box;
      std::int64_t clipped = -1;
      bool any = false;
      for (std::int64_t u = unit_begin; u < unit_end; ++u) {
        const std::int64_t tap = u / blocks / plan.groups, g = u / blocks % plan.groups;
        if (tap != clipped) {
          clipped = tap;
          any = clip_to_tap(axes, x, dy, tiles[static_cast<std::size_t>(i)], tap, box);
          for (std::int64_t r = 0; any && r < box.rows(); ++r) {
            x_row[r] = box.in_base + box.in_row(r);
            dy_row[r] = box.out_base + box.out_row(r);
          }
        }
        if (!any) continue;
        const Columns& c = plan.columns[static_cast<std::size_t>(u % blocks)];
        BatchGemm<T> gemm;
        gemm.batch = box.rows();
        gemm.depth = box.row();
        gemm.a_row = 1;
        gemm.accumulate = true;
        gemm.c_row = c.vectors * kVectorLanes<T>;
        const T *rows, *lanes;
        if (plan.lanes_are_out) {
          rows = x.view.as<T>() + g * plan.rows;
          lanes = dy.view.as<T>() + g * plan.lanes + c.first;
          gemm.a_offset = x_row;
          gemm.b_offset = dy_row;
          gemm.a_col = box.row_in_step();
          gemm.b_col = box.row_out_step();
        } else {
          rows = dy.view.as<T>() + g * plan.rows;
          lanes = x.view.as<T>() + g * plan.lanes + c.first;
          gemm.a_offset = dy_row;
          gemm.b_offset = x_row;
          gemm.a_col = box.row_out_step();
          gemm.b_col = box.row_in_step();
        }
        gemm.b = lanes;
        gemm.last = c.last;
        for_row_blocks(plan.rows, max_gemm_rows(c.vectors), [&](std::int64_t first, int count) {
          gemm.a = rows + first;
          gemm.c = target(tap, g, c) + first * gemm.c_row;
          if (c.last == kVectorLanes<T>) {
            batch_gemm(gemm, c.vectors, count);
          } else {
            batch_gemm_tail(gemm, count);
          }
        });
      }
    }
  });
}

/// c[r, v] += sum over the pixels of a tile of x[x_offset[r] + ...] * dy[... + v]; x is one element
/// for all lanes, or a vector of its own channels.
template <class T>
struct OffsetSum {
  const T* x;
  const T* dy;
  const std::int64_t* x_offset;
  const std::int64_t* x_row;
  const std::int64_t* dy_row;
  std::int64_t rows;
  std::int64_t row;
  std::int64_t x_step;
  std::int64_t dy_step;
  T* const* c;
  int last;
};

template <class T, int kCount, bool kBroadcast>
void offset_sum(const OffsetSum<T>& s) {
  using S = Simd<T>;
  const bool tail = s.last < kVectorLanes<T>;
  typename S::Type sum[kCount]{};
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const T* x[kCount];
    for (int i = 0; i < kCount; ++i) x[i] = s.x + s.x_row[r] + s.x_offset[i];
    const T* dy = s.dy + s.dy_row[r];
    const auto run = [&](auto load) {
      for (std::int64_t k = 0; k < s.row; ++k, dy += s.dy_step) {
        const auto d = load(dy);
#pragma GCC unroll 16
        for (int i = 0; i < kCount; ++i) {
          if constexpr (kBroadcast) {
            sum[i] += x[i][k * s.x_step] * d;
          } else {
            sum[i] += load(x[i] + k * s.x_step) * d;
          }
        }
      }
    };
    if (tail) {
      run([&](const T* p) { return S::load_first(p, s.last); });
    } else {
      run([](const T* p) { return S::load(p); });
    }
  }
  for (int i = 0; i < kCount; ++i) S::store(s.c[i], S::load(s.c[i]) + sum[i]);
}

constexpr int kMaxOffsets = 9;

template <class T, bool kBroadcast>
void offset_sum(const OffsetSum<T>& s, int count) {
  using Run = void (*)(const OffsetSum<T>&);
  constexpr Run kTable[kMaxOffsets] = {
      offset_sum<T, 1, kBroadcast>, offset_sum<T, 2, kBroadcast>, offset_sum<T, 3, kBroadcast>,
      offset_sum<T, 4, kBroadcast>, offset_sum<T, 5, kBroadcast>, offset_sum<T, 6, kBroadcast>,
      offset_sum<T, 7, kBroadcast>, offset_sum<T, 8, kBroadcast>, offset_sum<T, 9, kBroadcast>};
  kTable[count - 1](s);
}

/// Few input channels per group: all taps of all channels are accumulated together. With
/// `channelwise` one register holds groups (of one channel each), so x is read as vectors too.
template <class T>
void sum_offsets(const Plan& plan,
                 const std::vector<TapAxis>& axes,
                 const Piece& x,
                 const Piece& dy,
                 bool channelwise,
                 T* partial) {
  constexpr std::int64_t kWidth = kVectorLanes<T>;
  const std::vector<TapRegion> regions = tap_regions(axes, TapDirection::kForward, x, dy, false);
  const std::vector<RegionTile> tiles = region_tiles(regions, kTilePixels);
  const auto tile_count = static_cast<std::int64_t>(tiles.size());
  const auto blocks = static_cast<std::int64_t>(plan.columns.size());
  const std::int64_t units = plan.groups * blocks;
  const std::int64_t parts = std::min(plan.parts, units);
  const std::int64_t unit_size = plan.taps * plan.rows * kWidth;
  for_each_tile(plan.chunks * parts, plan.threads, [&](std::int64_t item) {
    const std::int64_t chunk = item / parts, part = item % parts;
    const std::int64_t unit_begin = units * part / parts, unit_end = units * (part + 1) / parts;
    T* to = partial + chunk * units * unit_size;
    std::fill(to + unit_begin * unit_size, to + unit_end * unit_size, T{});
    std::int64_t x_row[kTilePixels], dy_row[kTilePixels], x_offset[kMaxOffsets];
    T* c[kMaxOffsets];
    for (std::int64_t i = tile_count * chunk / plan.chunks;
         i < tile_count * (chunk + 1) / plan.chunks; ++i) {
      const RegionTile& tile = tiles[static_cast<std::size_t>(i)];
      const TapRegion& r = regions[static_cast<std::size_t>(tile.region)];
      for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
        x_row[row - tile.row_begin] = r.in_base + r.in_row(row) + tile.first * r.row_in_step();
        dy_row[row - tile.row_begin] = r.out_base + r.out_row(row) + tile.first * r.row_out_step();
      }
      const std::int64_t count = static_cast<std::int64_t>(r.tap.size()) * plan.rows;
      for (std::int64_t u = unit_begin; u < unit_end; ++u) {
        const std::int64_t g = u / blocks;
        const Columns& column = plan.columns[static_cast<std::size_t>(u % blocks)];
        OffsetSum<T> s{};
        s.x = x.view.as<T>() + (channelwise ? column.first : g * plan.rows);
        s.dy = dy.view.as<T>() + g * plan.lanes + column.first;
        s.x_offset = x_offset;
        s.x_row = x_row;
        s.dy_row = dy_row;
        s.rows = tile.row_end - tile.row_begin;
        s.row = tile.last - tile.first;
        s.x_step = r.row_in_step();
        s.dy_step = r.row_out_step();
        s.c = c;
        s.last = column.last;
        const std::int64_t steps = ceil_div(count, kMaxOffsets);
        for (std::int64_t step = 0; step < steps; ++step) {
          const std::int64_t begin = count * step / steps, end = count * (step + 1) / steps;
          for (std::int64_t q = begin; q < end; ++q) {
            const auto t = static_cast<std::size_t>(q / plan.rows);
            const std::int64_t channel = q % plan.rows;
            x_offset[q - begin] = r.tap_in[t] + channel;
            c[q - begin] = to + u * unit_size + (r.tap[t] * plan.rows + channel) * kWidth;
          }
          if (channelwise) {
            offset_sum<T, false>(s, static_cast<int>(end - begin));
          } else {
            offset_sum<T, true>(s, static_cast<int>(end - begin));
          }
        }
      }
    }
  });
}

/// dw [groups][out][tap][in] from the chunks, added in order.
template <class T>
void collect(const Plan& plan, const T* partial, T* dw, bool accumulate) {
  constexpr std::int64_t kWidth = kVectorLanes<T>;
  const std::int64_t chunk_size = plan.groups * plan.group_size;
  const std::int64_t out = plan.lanes_are_out ? plan.lanes : plan.rows;
  const std::int64_t in = plan.lanes_are_out ? plan.rows : plan.lanes;
  const std::int64_t count = plan.groups * out;
  const int threads = tile_threads(count, static_cast<double>(plan.chunks * chunk_size));
  for_each_tile(count, threads, [&](std::int64_t o) {
    T* to = dw + o * plan.taps * in;
    const auto put = [&](std::int64_t i, std::int64_t at) {
      T sum = partial[at];
      for (std::int64_t c = 1; c < plan.chunks; ++c) sum += partial[c * chunk_size + at];
      to[i] = accumulate ? to[i] + sum : sum;
    };
    const std::int64_t channel = o % out;
    for (const Columns& block : plan.columns) {
      const std::int64_t width = block.vectors * kWidth;
      const std::int64_t used = width - kWidth + block.last;
      const std::int64_t start = o / out * plan.group_size + block.start;
      if (plan.lanes_are_out) {
        const std::int64_t lane = channel - block.first;
        if (lane < 0 || lane >= used) continue;
        for (std::int64_t i = 0; i < plan.taps * in; ++i) put(i, start + i * width + lane);
      } else {
        for (std::int64_t t = 0; t < plan.taps; ++t)
          for (std::int64_t c = 0; c < used; ++c)
            put(t * in + block.first + c, start + (t * out + channel) * width + c);
      }
    }
  });
}

}  // namespace

template <class T>
void conv_weight_sum(const std::vector<TapAxis>& axes,
                     std::int64_t groups,
                     const Piece& x,
                     const Piece& dy,
                     T* dw,
                     bool accumulate) {
  constexpr std::int64_t kFewRows = 6;
  std::int64_t taps = 1;
  for (const TapAxis& a : axes) taps *= a.kernel;
  const std::int64_t in = x.view.shape.back() / groups;
  const std::int64_t out = dy.view.shape.back() / groups;
  if (dy.view.empty() || in == 0) {
    if (!accumulate && !dry_run()) std::fill(dw, dw + groups * out * taps * in, T{});
    return;
  }
  const std::int64_t pixels = dy.view.size() / dy.view.shape.back();
  const bool channelwise = groups > 1 && in == 1 && out == 1;
  const bool offsets = channelwise || (in < kFewRows && taps > 1 && out >= in);
  const Plan plan = channelwise ? make_plan<T>(1, taps, 1, groups, pixels, true)
                                : make_plan<T>(groups, taps, in, out, pixels, offsets);
  const Scratch<T> partial(plan.chunks * plan.groups * plan.group_size);
  if (dry_run()) return;
  if (offsets) {
    sum_offsets<T>(plan, axes, x, dy, channelwise, partial.data());
  } else {
    sum_products<T>(plan, axes, x, dy, partial.data());
  }
  collect<T>(plan, partial.data(), dw, accumulate);
}

template void conv_weight_sum<float>(
    const std::vector<TapAxis>&, std::int64_t, const Piece&, const Piece&, float*, bool);
template void conv_weight_sum<double>(
    const std::vector<TapAxis>&, std::int64_t, const Piece&, const Piece&, double*, bool);

}  // namespace tessera::kernels::cpu
