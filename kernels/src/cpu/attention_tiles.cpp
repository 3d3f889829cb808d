#include "cpu/attention_tiles.hpp"

#include <algorithm>

#include "functors/philox.hpp"

namespace tessera::kernels::cpu {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Dims domain_of(const Dims& all, int first, int count) {
  Dims part;
  for (int d = 0; d < count; ++d) part.push_back(all[first + d]);
  return part;
}

/// Attended dimensions of a view [samples..., domain..., heads, channels].
int domain_dims(const View& view, int sample_dims) { return view.dims() - sample_dims - 2; }

void check_piece(const char* what, const Piece& piece, int least_dims) {
  if (on_cuda(piece.view)) {
    throw DeviceError(
        str("attention: ", what, " lie on a GPU, where there is no kernel. Move them to the CPU."));
  }
  if (piece.view.dims() < least_dims || piece.global.size() != piece.view.dims() ||
      !(piece.box.shape() == piece.view.shape)) {
    throw ShapeError(str("attention: ", what, " ", piece.view.shape, " in the box ", piece.box,
                         " are no piece [samples..., domain..., heads, channels]."));
  }
}

/// Global row-major positions along `count` dimensions of a piece.
Spots positions_of(const Piece& piece, int first, int count) {
  const Strides strides = row_major(domain_of(piece.global, first, count));
  std::int64_t origin = 0;
  for (int d = 0; d < count; ++d) origin += piece.box.lo[first + d] * strides[d];
  return Spots(domain_of(piece.view.shape, first, count), strides, origin);
}

}  // namespace

Spots::Spots(const Dims& sizes, const Dims& strides, std::int64_t origin) : origin_(origin) {
  std::int64_t run = 1;
  bool even = true;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    if (sizes[d] == 1) continue;
    if (run == 1) step_ = strides[d];
    even &= strides[d] == step_ * run;
    run *= sizes[d];
  }
  if (even || sizes.product() == 0) return;
  table_.reserve(static_cast<std::size_t>(sizes.product()));
  for (std::int64_t i = 0; i < sizes.product(); ++i) {
    std::int64_t rest = i, offset = origin;
    for (int d = sizes.size() - 1; d >= 0; --d) {
      offset += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    table_.push_back(offset);
  }
}

TokenRows::TokenRows(const View& view, int sample_dims, bool channels) : view_(view) {
  const int heads = view.dims() - (channels ? 2 : 1);
  const auto spots = [&](int first, int end) {
    return Spots(domain_of(view.shape, first, end - first),
                 domain_of(view.strides, first, end - first));
  };
  samples_ = spots(0, sample_dims);
  tokens_ = spots(sample_dims, heads);
  head_ = view.strides[heads];
  if (channels) {
    step_ = view.strides.back();
    width_ = view.shape.back();
    if (width_ == 1) step_ = 1;
  }
}

PairView::PairView(
    const char* what, const Piece& pair, const Piece& q, const Piece& k, int sample_dims) {
  const int q_dims = domain_dims(q.view, sample_dims);
  const int k_dims = domain_dims(k.view, sample_dims);
  check_piece(what, pair, 2);
  bool fits = pair.view.dims() == sample_dims + 1 + q_dims + k_dims;
  // The stride along dimension d, whose coordinates are those of `side`.
  Dims strides;
  std::int64_t origin = 0;
  const auto take = [&](int d, const Piece& side, int side_d) {
    if (!fits) return;
    if (pair.global[d] == 1) {
      fits &= pair.box[d] == Interval{0, 1};
      strides.push_back(0);
    } else {
      fits &= pair.global[d] == side.global[side_d] && pair.box[d].contains(side.box[side_d]);
      strides.push_back(pair.view.strides[d]);
      origin += (side.box.lo[side_d] - pair.box.lo[d]) * pair.view.strides[d];
    }
  };
  const int q_first = sample_dims + 1;
  const int k_first = q_first + q_dims;
  for (int d = 0; d < sample_dims; ++d) take(d, q, d);
  take(sample_dims, q, sample_dims + q_dims);
  for (int d = 0; d < q_dims; ++d) take(q_first + d, q, sample_dims + d);
  for (int d = 0; d < k_dims; ++d) take(k_first + d, k, sample_dims + d);
  if (!fits) {
    throw ShapeError(str("attention: the ", what, " ", pair.global, " (part ", pair.box,
                         ") is not [samples|1..., H|1, query domain|1..., key domain|1...] of "
                         "queries ",
                         q.global, " and keys ", k.global, "."));
  }
  view = pair.view;
  head = strides[sample_dims];
  samples = Spots(domain_of(q.view.shape, 0, sample_dims), domain_of(strides, 0, sample_dims));
  rows = Spots(domain_of(q.view.shape, sample_dims, q_dims), domain_of(strides, q_first, q_dims),
               origin);
  columns =
      Spots(domain_of(k.view.shape, sample_dims, k_dims), domain_of(strides, k_first, k_dims));
  for (int d = 0; d < sample_dims; ++d) shared_samples |= strides[d] == 0 && q.global[d] > 1;
  same_row = true;
  for (int d = 0; d < q_dims; ++d) {
    const bool one = q.global[sample_dims + d] == 1;
    shared_rows |= strides[q_first + d] == 0 && !one;
    same_row &= strides[q_first + d] == 0 || one;
  }
}

AttentionWork::AttentionWork(const AttentionOperands& x, const AttentionOptions& o) : options(o) {
  const int ns = options.sample_dims;
  if (ns < 1) throw UsageError(str("attention: sample_dims ", ns, " is not at least 1."));
  check_piece("queries", x.q, ns + 3);
  check_piece("keys", x.k, ns + 3);
  check_piece("values", x.v, ns + 3);
  const int nq = domain_dims(x.q.view, ns);
  const int nk = domain_dims(x.k.view, ns);
  bool fits = x.v.view.dims() == x.k.view.dims();
  for (int d = 0; fits && d < ns; ++d)
    fits = x.q.box[d] == x.k.box[d] && x.q.global[d] == x.k.global[d];
  for (int d = 0; fits && d < ns + nk + 1; ++d) fits = x.k.box[d] == x.v.box[d];
  heads = x.q.view.shape[ns + nq];
  key_heads = x.k.view.shape[ns + nk];
  depth = x.q.view.shape.back();
  width = x.v.view.shape.back();
  head_range = x.q.box[ns + nq];
  key_head_range = x.k.box[ns + nk];
  all_heads = x.q.global[ns + nq];
  const std::int64_t all_key_heads = x.k.global[ns + nk];
  group = all_key_heads > 0 ? all_heads / all_key_heads : 1;
  fits = fits && x.k.view.shape.back() == depth && group * all_key_heads == all_heads;
  if (fits && heads > 0) {
    fits = key_head_range.contains({head_range.lo / group, (head_range.hi - 1) / group + 1});
  }
  if (!fits) {
    throw ShapeError(
        str("attention: queries ", x.q.box, " of ", x.q.global, ", keys ", x.k.box, " of ",
            x.k.global, " and values ", x.v.box, " of ", x.v.global,
            " do not belong together (equal samples, equal keys and values, heads of the "
            "queries a multiple of those of the keys)."));
  }
  if (x.q.view.dtype != x.k.view.dtype || x.q.view.dtype != x.v.view.dtype ||
      !is_floating(x.q.view.dtype)) {
    throw DTypeError(str("attention: element types ", name(x.q.view.dtype), ", ",
                         name(x.k.view.dtype), " and ", name(x.v.view.dtype),
                         " are not one floating type. Use cast()."));
  }
  if (!(options.dropout >= 0.0 && options.dropout < 1.0))
    throw UsageError(str("attention: dropout ", options.dropout, " is not in [0, 1)."));
  compute = x.q.view.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  samples = domain_of(x.q.view.shape, 0, ns).product();
  queries = domain_of(x.q.view.shape, ns, nq).product();
  keys = domain_of(x.k.view.shape, ns, nk).product();
  all_queries = domain_of(x.q.global, ns, nq).product();
  all_keys = domain_of(x.k.global, ns, nk).product();
  q = TokenRows(x.q.view, ns, true);
  k = TokenRows(x.k.view, ns, true);
  v = TokenRows(x.v.view, ns, true);
  sample_at = positions_of(x.q, 0, ns);
  query_at = positions_of(x.q, ns, nq);
  key_at = positions_of(x.k, ns, nk);
  if (x.mask.view.data != nullptr) {
    mask = PairView("mask", x.mask, x.q, x.k, ns);
    if (mask.view.dtype != DType::kBool)
      throw DTypeError(str("attention: the mask is ", name(mask.view.dtype), ", not bool."));
  }
  if (x.bias.view.data != nullptr) {
    bias = PairView("bias", x.bias, x.q, x.k, ns);
    if (!is_floating(bias.view.dtype))
      throw DTypeError(str("attention: the bias is ", name(bias.view.dtype), ", not floating."));
  }
}

std::int64_t AttentionWork::key_end(std::int64_t last) const {
  if (!options.causal) return keys;
  // Positions grow with the local index.
  const std::int64_t limit = query_at[last];
  std::int64_t lo = 0, hi = keys;
  while (lo < hi) {
    const std::int64_t middle = (lo + hi) / 2;
    if (key_at[middle] <= limit) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  return lo;
}

template <class T>
Chunk<T>::Chunk(std::int64_t first_query, std::int64_t query_count)
    : first(first_query), count(query_count) {
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  for (int v = kMaxGemmVectors; v >= 1; --v) {
    const std::int64_t lanes = v * kVectorLanes<T>;
    const std::int64_t total = (count + lanes - 1) / lanes * lanes;
    if (total < best) {
      best = total;
      vectors = v;
    }
  }
  panel = vectors * kVectorLanes<T>;
  panels = best / panel;
}

template <class T>
void pack_rows(const TokenRows& rows,
               std::int64_t n,
               std::int64_t first,
               std::int64_t count,
               std::int64_t head,
               std::int64_t width,
               std::int64_t stride,
               T* dst) {
  for (std::int64_t i = 0; i < count; ++i) {
    T* const row = dst + i * stride;
    rows.load(n, first + i, head, row);
    std::fill(row + width, row + stride, T(0));
  }
}

template <class T>
void transpose_panels(const Chunk<T>& chunk,
                      const T* rows,
                      std::int64_t stride,
                      std::int64_t width,
                      T scale,
                      T* dst) {
  for (std::int64_t p = 0; p < chunk.panels; ++p) {
    for (std::int64_t i = 0; i < chunk.panel; ++i) {
      const T* const row = rows + (p * chunk.panel + i) * stride;
      T* const column = dst + p * chunk.panel * width + i;
      for (std::int64_t c = 0; c < width; ++c) column[c * chunk.panel] = row[c] * scale;
    }
  }
}

template <class T>
void column_panels(const T* rows, std::int64_t count, std::int64_t stride, T scale, T* dst) {
  constexpr std::int64_t kWide = kColumnVectors * kVectorLanes<T>;
  for (std::int64_t c = 0; c < stride; c += kWide) {
    const std::int64_t wide = std::min(kWide, stride - c);
    for (std::int64_t i = 0; i < count; ++i, dst += wide)
      for (std::int64_t j = 0; j < wide; ++j) dst[j] = rows[i * stride + c + j] * scale;
  }
}

template <class T>
void panel_product(const T* a,
                   std::int64_t a_row,
                   std::int64_t rows,
                   std::int64_t depth,
                   const T* b,
                   int vectors,
                   T* c) {
  const std::int64_t wide = vectors * kVectorLanes<T>;
  const std::int64_t zero = 0;
  BatchGemm<T> g;
  g.b = b;
  g.a_offset = g.b_offset = &zero;
  g.batch = 1;
  g.depth = depth;
  g.a_row = a_row;
  g.b_col = g.c_row = wide;
  for_row_blocks(rows, max_gemm_rows(vectors), [&](std::int64_t first, int count) {
    g.a = a + first * a_row;
    g.c = c + first * wide;
    batch_gemm(g, vectors, count);
  });
}

template <class T>
void add_transposed_product(const T* a,
                            std::int64_t a_stride,
                            std::int64_t rows,
                            std::int64_t depth,
                            const T* b,
                            T* c,
                            std::int64_t stride) {
  const std::int64_t zero = 0;
  BatchGemm<T> g;
  g.a_offset = g.b_offset = &zero;
  g.batch = 1;
  g.depth = depth;
  g.a_row = 1;
  g.a_col = a_stride;
  g.b_col = g.c_row = stride;
  g.accumulate = true;
  for (std::int64_t column = 0; column < stride;) {
    const std::int64_t left = (stride - column) / kVectorLanes<T>;
    const int vectors = left == 3 ? 3 : static_cast<int>(std::min<std::int64_t>(left, 2));
    for_row_blocks(rows, max_gemm_rows(vectors), [&](std::int64_t first, int count) {
      g.a = a + first;
      g.b = b + column;
      g.c = c + first * stride + column;
      batch_gemm(g, vectors, count);
    });
    column += vectors * kVectorLanes<T>;
  }
}

namespace {

template <class T>
void add_bias(const AttentionWork& work,
              std::int64_t base,
              std::int64_t first_key,
              std::int64_t key_count,
              const Chunk<T>& chunk,
              std::int64_t panel,
              T* s) {
  const PairView& bias = work.bias;
  const auto size = static_cast<std::int64_t>(size_of(bias.view.dtype));
  T row[kTileKeys];
  const auto read = [&](std::int64_t query) {
    const char* const at = bias.view.as<char>() + (base + bias.rows[query]) * size;
    if (bias.columns.even()) {
      load(at + bias.columns[first_key] * size, bias.view.dtype, bias.columns.step(), key_count,
           row);
    } else {
      for (std::int64_t j = 0; j < key_count; ++j)
        load(at + bias.columns[first_key + j] * size, bias.view.dtype, 1, 1, row + j);
    }
  };
  const std::int64_t first = panel * chunk.panel;
  if (bias.same_row) {
    read(0);
    for (std::int64_t j = 0; j < key_count; ++j)
      for (std::int64_t i = 0; i < chunk.panel; ++i) s[j * chunk.panel + i] += row[j];
    return;
  }
  for (std::int64_t i = 0; i < std::min(chunk.panel, chunk.count - first); ++i) {
    read(chunk.first + first + i);
    for (std::int64_t j = 0; j < key_count; ++j) s[j * chunk.panel + i] += row[j];
  }
}

template <class T>
void apply_mask(const AttentionWork& work,
                std::int64_t base,
                std::int64_t first_key,
                std::int64_t key_count,
                const Chunk<T>& chunk,
                std::int64_t panel,
                T* s) {
  const PairView& mask = work.mask;
  const std::int64_t first = panel * chunk.panel;
  const auto never = static_cast<T>(-kInfinity);
  const auto* const allowed = mask.view.as<std::uint8_t>() + base;
  if (mask.same_row) {
    for (std::int64_t j = 0; j < key_count; ++j) {
      if (allowed[mask.rows[0] + mask.columns[first_key + j]] == 0)
        std::fill_n(s + j * chunk.panel, chunk.panel, never);
    }
    return;
  }
  for (std::int64_t i = 0; i < std::min(chunk.panel, chunk.count - first); ++i) {
    const std::uint8_t* const row = allowed + mask.rows[chunk.first + first + i];
    for (std::int64_t j = 0; j < key_count; ++j)
      if (row[mask.columns[first_key + j]] == 0) s[j * chunk.panel + i] = never;
  }
}

}  // namespace

template <class T>
void score_tile(const AttentionWork& work,
                std::int64_t n,
                std::int64_t h,
                std::int64_t first_key,
                std::int64_t key_count,
                const T* k_rows,
                const Chunk<T>& chunk,
                std::int64_t panel,
                const T* q_panel,
                T* s) {
  panel_product(k_rows, whole_vectors<T>(work.depth), key_count, work.depth, q_panel, chunk.vectors,
                s);
  if (work.bias.defined())
    add_bias(work, work.bias.sample_head(n, h), first_key, key_count, chunk, panel, s);
  if (work.mask.defined())
    apply_mask(work, work.mask.sample_head(n, h), first_key, key_count, chunk, panel, s);
  if (work.options.causal) {
    // Both positions grow, so the queries that do not see a key are the first ones of the panel.
    const std::int64_t start = chunk.first + panel * chunk.panel;
    const std::int64_t count = std::min(chunk.panel, chunk.count - panel * chunk.panel);
    std::int64_t blind = 0;
    for (std::int64_t j = 0; j < key_count; ++j) {
      const std::int64_t position = work.key_at[first_key + j];
      while (blind < count && work.query_at[start + blind] < position) ++blind;
      std::fill_n(s + j * chunk.panel, blind, static_cast<T>(-kInfinity));
    }
  }
}

template <class T>
void drop_tile(const AttentionWork& work,
               std::int64_t n,
               std::int64_t h,
               std::int64_t first_key,
               std::int64_t key_count,
               const Chunk<T>& chunk,
               std::int64_t panel,
               T* s) {
  constexpr std::int64_t kBlocks = kTileKeys / 4 + 1;
  const PhiloxKey key = work.options.key;
  const std::uint64_t threshold = drop_threshold(work.options.dropout);
  const T factor = static_cast<T>(1.0 / (1.0 - work.options.dropout));
  const std::int64_t sample_head = work.sample_at[n] * work.all_heads + h + work.head_range.lo;
  const std::int64_t start = chunk.first + panel * chunk.panel;
  const std::int64_t count = std::min(chunk.panel, chunk.count - panel * chunk.panel);
  std::uint32_t words[4][kBlocks];
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t row =
        (sample_head * work.all_queries + work.query_at[start + i]) * work.all_keys;
    for (std::int64_t j = 0; j < key_count;) {
      // A run of keys that follow each other in the global order.
      const std::int64_t position = work.key_at[first_key + j];
      std::int64_t run = 1;
      while (j + run < key_count && work.key_at[first_key + j + run] == position + run) ++run;
      const auto index = static_cast<std::uint64_t>(row + position);
      const auto skip = static_cast<std::int64_t>(index & 3);
      const std::int64_t blocks = (skip + run + 3) / 4;
#pragma omp simd
      for (std::int64_t b = 0; b < blocks; ++b) {
        const PhiloxBlock block =
            philox(key.key, key.stream, (index >> 2) + static_cast<std::uint64_t>(b));
        words[0][b] = block.word[0];
        words[1][b] = block.word[1];
        words[2][b] = block.word[2];
        words[3][b] = block.word[3];
      }
      for (std::int64_t r = 0; r < run; ++r, ++j) {
        const std::uint32_t word = words[(skip + r) & 3][(skip + r) / 4];
        T& value = s[j * chunk.panel + i];
        value = word < threshold ? T(0) : value * factor;
      }
    }
  }
}

#define TESSERA_INSTANTIATE(T)                                                                     \
  template struct Chunk<T>;                                                                        \
  template void pack_rows<T>(const TokenRows&, std::int64_t, std::int64_t, std::int64_t,           \
                             std::int64_t, std::int64_t, std::int64_t, T*);                        \
  template void transpose_panels<T>(const Chunk<T>&, const T*, std::int64_t, std::int64_t, T, T*); \
  template void column_panels<T>(const T*, std::int64_t, std::int64_t, T, T*);                     \
  template void panel_product<T>(const T*, std::int64_t, std::int64_t, std::int64_t, const T*,     \
                                 int, T*);                                                         \
  template void add_transposed_product<T>(const T*, std::int64_t, std::int64_t, std::int64_t,      \
                                          const T*, T*, std::int64_t);                             \
  template void score_tile<T>(const AttentionWork&, std::int64_t, std::int64_t, std::int64_t,      \
                              std::int64_t, const T*, const Chunk<T>&, std::int64_t, const T*,     \
                              T*);                                                                 \
  template void drop_tile<T>(const AttentionWork&, std::int64_t, std::int64_t, std::int64_t,       \
                             std::int64_t, const Chunk<T>&, std::int64_t, T*);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::cpu
