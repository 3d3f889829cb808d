#include "cpu/attention_tiles.hpp"

#include <algorithm>

#include "functors/philox.hpp"

namespace tessera::kernels::cpu {

namespace {

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
void pack_rows(const TokenRows& rows,
               std::int64_t n,
               std::int64_t first,
               std::int64_t count,
               std::int64_t head,
               std::int64_t width,
               std::int64_t stride,
               T* dst) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + kRowsAhead < count) rows.prefetch(n, first + i + kRowsAhead, head);
    T* const row = dst + i * stride;
    rows.load(n, first + i, head, row);
    std::fill(row + width, row + stride, T(0));
  }
}

template <class T>
void pack_panels(const TokenRows& rows,
                 std::int64_t n,
                 const Chunk<T>& chunk,
                 std::int64_t head,
                 std::int64_t width,
                 std::int64_t stride,
                 T scale,
                 T* row,
                 T* dst) {
  for (std::int64_t p = 0; p < chunk.panels; ++p) {
    const std::int64_t begin = chunk.begin(p), count = chunk.queries(p);
    const std::int64_t wide = chunk.begin(p + 1) - begin;
    pack_rows(rows, n, chunk.first + begin, count, head, width, stride, row);
    std::fill(row + count * stride, row + wide * stride, T(0));
    transpose(row, stride, wide, width, scale, dst + begin * width, wide);
  }
}

template <class T>
void ScoreTile<T>::add_bias() const {
  const PairView& bias = work.bias;
  const std::int64_t base = bias.sample_head(n, h);
  const auto size = static_cast<std::int64_t>(size_of(bias.view.dtype));
  T row[kTileKeys];
  const auto read = [&](std::int64_t query) {
    const char* const at = bias.view.as<char>() + (base + bias.rows[query]) * size;
    if (bias.columns.even()) {
      load(at + bias.columns[first_key] * size, bias.view.dtype, bias.columns.step(), keys, row);
    } else {
      for (std::int64_t j = 0; j < keys; ++j)
        load(at + bias.columns[first_key + j] * size, bias.view.dtype, 1, 1, row + j);
    }
    for (std::int64_t j = 0; j < keys; ++j) row[j] *= static_cast<T>(kLog2E);
  };
  const std::int64_t first = chunk.first + chunk.begin(panel), queries = chunk.queries(panel);
  if (bias.same_row) {
    read(0);
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t i = 0; i < queries; ++i) s[j * pitch + i] += row[j];
    return;
  }
  for (std::int64_t i = 0; i < queries; ++i) {
    read(first + i);
    for (std::int64_t j = 0; j < keys; ++j) s[j * pitch + i] += row[j];
  }
}

template <class T>
void ScoreTile<T>::apply_mask() const {
  const PairView& mask = work.mask;
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const std::int64_t first = chunk.first + chunk.begin(panel), queries = chunk.queries(panel);
  const auto* const allowed = mask.view.as<std::uint8_t>() + mask.sample_head(n, h);
  if (mask.same_row) {
    for (std::int64_t j = 0; j < keys; ++j) {
      if (allowed[mask.rows[0] + mask.columns[first_key + j]] == 0)
        std::fill_n(s + j * pitch, queries, kNever);
    }
    return;
  }
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::uint8_t* const row = allowed + mask.rows[first + i];
    for (std::int64_t j = 0; j < keys; ++j)
      if (row[mask.columns[first_key + j]] == 0) s[j * pitch + i] = kNever;
  }
}

template <class T>
void ScoreTile<T>::scores(const T* k_rows, const T* q_panel, const T* start) const {
  BlockProduct<T> g;
  g.a = k_rows;
  g.a_pitch = padded<T>(work.depth);
  g.b = q_panel;
  g.b_pitch = chunk.vectors(panel) * kVectorLanes<T>;
  g.c = s;
  g.c_pitch = pitch;
  g.rows = keys;
  g.depth = work.depth;
  g.start = start;
  multiply(Left::kRows, g, chunk.vectors(panel));
  if (work.bias.defined()) add_bias();
  if (work.mask.defined()) apply_mask();
  if (work.options.causal) {
    // Both positions grow, so the queries that do not see a key are the first ones of the panel.
    const std::int64_t first = chunk.first + chunk.begin(panel), queries = chunk.queries(panel);
    std::int64_t blind = 0;
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t position = work.key_at[first_key + j];
      while (blind < queries && work.query_at[first + blind] < position) ++blind;
      std::fill_n(s + j * pitch, blind, -std::numeric_limits<T>::infinity());
    }
  }
}

template <class T>
void ScoreTile<T>::drop(T* values) const {
  constexpr std::int64_t kBlocks = kTileKeys / 4 + 1;
  const PhiloxKey key = work.options.key;
  const std::uint64_t threshold = drop_threshold(work.options.dropout);
  const T factor = static_cast<T>(1.0 / (1.0 - work.options.dropout));
  const std::int64_t sample_head = work.sample_at[n] * work.all_heads + h + work.head_range.lo;
  const std::int64_t first = chunk.first + chunk.begin(panel);
  std::uint32_t words[4][kBlocks];
  for (std::int64_t i = 0; i < chunk.queries(panel); ++i) {
    const std::int64_t row =
        (sample_head * work.all_queries + work.query_at[first + i]) * work.all_keys;
    for (std::int64_t j = 0; j < keys;) {
      // A run of keys that follow each other in the global order.
      const std::int64_t position = work.key_at[first_key + j];
      std::int64_t run = 1;
      while (j + run < keys && work.key_at[first_key + j + run] == position + run) ++run;
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
        T& value = values[j * pitch + i];
        value = word < threshold ? T(0) : value * factor;
      }
    }
  }
}

#define TESSERA_INSTANTIATE(T)                                                                \
  template void pack_rows<T>(const TokenRows&, std::int64_t, std::int64_t, std::int64_t,      \
                             std::int64_t, std::int64_t, std::int64_t, T*);                   \
  template void pack_panels<T>(const TokenRows&, std::int64_t, const Chunk<T>&, std::int64_t, \
                               std::int64_t, std::int64_t, T, T*, T*);                        \
  template struct ScoreTile<T>;
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::cpu
