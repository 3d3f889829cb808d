#include "cpu/local_attention_tiles.hpp"

#include <algorithm>

#include "cpu/batch_gemm.hpp"

namespace tessera::kernels::cpu {

namespace {

/// Packed rows of a tile that stay in the cache of a core.
constexpr double kPackedBytes = 512 << 10;

void check_rows(const char* what, const Piece& piece, int dims) {
  if (on_cuda(piece.view)) {
    throw DeviceError(str("local_attention: ", what,
                          " lie on a GPU, where there is no kernel. Move them to the CPU."));
  }
  if (piece.view.dims() != dims + 3 || piece.global.size() != dims + 3 ||
      !(piece.box.shape() == piece.view.shape)) {
    throw ShapeError(str("local_attention: ", what, " ", piece.view.shape, " in the box ",
                         piece.box, " are no piece [N, domain..., heads, channels]."));
  }
}

/// Own coordinates per segment.
std::int64_t segment_length(const LocalOptions& options, int dims, double row_bytes) {
  std::int64_t length = dims == 1 ? 256 : dims == 2 ? 16 : 8;
  const auto bytes = [&] {
    double rows = row_bytes;
    for (int d = 0; d < dims; ++d) {
      const LocalRule& rule = options.rules[static_cast<std::size_t>(d)];
      rows *= static_cast<double>(rule.extent + (rule.blocks != 0 ? 0 : length - 1));
    }
    return rows;
  };
  while (length > 4 && bytes() > kPackedBytes) length /= 2;
  return length;
}

LocalAxis make_axis(const LocalRule& rule, Interval own, bool by_key, std::int64_t length) {
  LocalAxis axis;
  axis.step = rule.dilation;
  for (std::int64_t residue = 0; residue < rule.dilation; ++residue) {
    std::vector<LocalRun> reads;
    const std::int64_t skip = (residue - own.lo) % rule.dilation;
    const std::int64_t first = own.lo + (skip < 0 ? skip + rule.dilation : skip);
    const auto close = [&](std::int64_t end) {
      if (reads.empty()) return;
      LocalAxis::Segment s{end - static_cast<std::int64_t>(reads.size()) * rule.dilation,
                           static_cast<std::int64_t>(reads.size()), reads[0].first, 0,
                           axis.runs.size()};
      std::int64_t last = reads[0].first;
      for (const LocalRun& r : reads) {
        s.hull = std::min(s.hull, r.first);
        last = std::max(last, r.first + (r.count - 1) * rule.dilation);
      }
      s.hull_count = (last - s.hull) / rule.dilation + 1;
      for (std::size_t i = 0; i < reads.size(); ++i) {
        const std::int64_t x = s.first + static_cast<std::int64_t>(i) * rule.dilation;
        axis.runs.push_back({(reads[i].first - s.hull) / rule.dilation, reads[i].count,
                             (reads[i].first - x) / rule.dilation + rule.extent - 1});
        axis.most = std::max(axis.most, reads[i].count);
      }
      axis.most_own = std::max(axis.most_own, s.count);
      axis.most_hull = std::max(axis.most_hull, s.hull_count);
      axis.segments.push_back(s);
      reads.clear();
    };
    std::int64_t x = first;
    for (; x < own.hi; x += rule.dilation) {
      const LocalRun run = by_key ? rule.queries(x) : rule.keys(x);
      const bool other_block =
          rule.blocks != 0 && !reads.empty() && reads.back().first != run.first;
      if (other_block || static_cast<std::int64_t>(reads.size()) == length) close(x);
      reads.push_back(run);
    }
    close(x);
  }
  return axis;
}

}  // namespace

LocalRows::LocalRows(const Piece& piece, bool channels) : view_(piece.view) {
  const int dims = view_.dims() - (channels ? 3 : 2);
  sample_ = view_.strides[0];
  for (int d = 0; d < dims; ++d) {
    steps_[static_cast<std::size_t>(3 - dims + d)] = view_.strides[d + 1];
    origin_ -= piece.box.lo[d + 1] * view_.strides[d + 1];
  }
  head_ = view_.strides[dims + 1];
  origin_ -= piece.box.lo[dims + 1] * head_;
  size_ = static_cast<std::int64_t>(size_of(view_.dtype));
  if (channels) {
    width_ = view_.shape[dims + 2];
    if (width_ > 1) step_ = view_.strides[dims + 2];
  }
}

LocalWork::LocalWork(const LocalOperands& x, const LocalOptions& o, bool by_key)
    : dims(x.q.view.dims() - 3), options(o), bias(&x.bias) {
  if (dims < 1 || dims > 3) {
    throw ShapeError(str("local_attention: queries ", x.q.view.shape,
                         " are not [N, domain..., H, D] with 1 to 3 domain dimensions."));
  }
  check_rows("queries", x.q, dims);
  check_rows("keys", x.k, dims);
  check_rows("values", x.v, dims);
  compute = x.q.view.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  if (x.q.view.dtype != x.k.view.dtype || x.q.view.dtype != x.v.view.dtype ||
      !is_floating(x.q.view.dtype)) {
    throw DTypeError(str("local_attention: element types ", name(x.q.view.dtype), ", ",
                         name(x.k.view.dtype), " and ", name(x.v.view.dtype),
                         " are not one floating type. Use cast()."));
  }
  samples = x.q.view.shape[0];
  depth = x.q.view.shape[dims + 2];
  width = x.v.view.shape[dims + 2];
  heads = x.q.box[dims + 1];
  key_heads = x.k.box[dims + 1];
  const std::int64_t all_key_heads = x.k.global[dims + 1];
  group = all_key_heads > 0 ? x.q.global[dims + 1] / all_key_heads : 1;
  bool fits = x.q.box[0] == x.k.box[0] && group * all_key_heads == x.q.global[dims + 1] &&
              x.k.view.shape[dims + 2] == depth;
  for (int d = 0; d < dims + 2; ++d) fits = fits && x.k.box[d] == x.v.box[d];
  if (fits && !heads.empty())
    fits = key_heads.contains({heads.lo / group, (heads.hi - 1) / group + 1});
  for (int d = 0; d < dims; ++d) {
    const std::int64_t n = options.rules[static_cast<std::size_t>(d)].size;
    fits = fits && x.q.global[d + 1] == n && x.k.global[d + 1] == n;
  }
  if (!fits) {
    throw ShapeError(str("local_attention: queries ", x.q.box, " of ", x.q.global, ", keys ",
                         x.k.box, " of ", x.k.global, " and values ", x.v.box, " of ", x.v.global,
                         " do not belong together (one batch, one domain, equal keys and values, "
                         "heads of the queries a multiple of those of the keys)."));
  }
  const Piece& own = by_key ? x.k : x.q;
  const Piece& other = by_key ? x.q : x.k;
  empty = own.view.empty() || heads.empty();
  if (empty) return;
  const double row_bytes =
      static_cast<double>(depth + width) * static_cast<double>(size_of(compute));
  const std::int64_t length = segment_length(options, dims, row_bytes);
  axes.fill({1, 1, 1, 1, {{0, 1, 0, 1, 0}}, {{}}});
  for (int d = 0; d < dims; ++d) {
    const LocalRule& rule = options.rules[static_cast<std::size_t>(d)];
    LocalAxis& axis = axes[static_cast<std::size_t>(3 - dims + d)];
    axis = make_axis(rule, own.box[d + 1], by_key, length);
    table[static_cast<std::size_t>(3 - dims + d)] = 2 * rule.extent - 1;
    for (const LocalAxis::Segment& s : axis.segments) {
      const Interval reads{s.hull, s.hull + (s.hull_count - 1) * axis.step + 1};
      if (other.box[d + 1].contains(reads)) continue;
      throw ShapeError(str("local_attention: ", by_key ? "queries " : "keys ", other.box,
                           " lack some of [", reads.lo, ", ", reads.hi, ") of domain dimension ", d,
                           ", which [", s.first, ", ", s.first + (s.count - 1) * axis.step + 1,
                           ") reads."));
    }
  }
  if (!has_bias()) return;
  bool bias_fits = bias->view.dims() == dims + 1 && bias->box[0].contains(heads);
  for (int d = 0; bias_fits && d < dims; ++d) {
    bias_fits =
        bias->box[d + 1] == Interval{0, 2 * options.rules[static_cast<std::size_t>(d)].extent - 1};
  }
  if (!bias_fits || !is_floating(bias->view.dtype)) {
    throw ShapeError(str("local_attention: the bias ", name(bias->view.dtype), " ", bias->global,
                         " (part ", bias->box, ") is not floating [H, 2 extent - 1...]."));
  }
}

double LocalWork::pairs(std::int64_t own_heads) const {
  double count = static_cast<double>(samples * own_heads);
  for (const LocalAxis& axis : axes) {
    double along = 0.0;
    for (const LocalAxis::Run& run : axis.runs) along += static_cast<double>(run.count);
    count *= along;
  }
  return count;
}

template <class T>
void LocalWork::read_bias(std::int64_t head, bool flipped, T* table_of_head) const {
  const View& view = bias->view;
  Place steps{};
  for (int d = 0; d < dims; ++d)
    steps[static_cast<std::size_t>(3 - dims + d)] = view.strides[d + 1];
  const std::int64_t origin = (head - bias->box.lo[0]) * view.strides[0];
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t a = 0; a < table[0]; ++a) {
    for (std::int64_t b = 0; b < table[1]; ++b) {
      load(view.as<char>() + (origin + a * steps[0] + b * steps[1]) * size, view.dtype, steps[2],
           table[2], table_of_head + (a * table[1] + b) * table[2]);
    }
  }
  if (flipped) std::reverse(table_of_head, table_of_head + table_size());
}
template void LocalWork::read_bias<float>(std::int64_t, bool, float*) const;
template void LocalWork::read_bias<double>(std::int64_t, bool, double*) const;

LocalTile::LocalTile(const LocalWork& work, std::int64_t number) {
  for (std::size_t d = 3; d-- > 0;) {
    const auto count = static_cast<std::int64_t>(work.axes[d].segments.size());
    segments[d] = &work.axes[d].segments[static_cast<std::size_t>(number % count)];
    hull[d] = segments[d]->hull_count;
    number /= count;
  }
}

Piece rows_like(
    const char* what, const View& view, const Piece& like, std::int64_t width, DType dtype) {
  Piece piece{view, like.box, like.global};
  const int dims = like.view.dims() - 1;
  for (Dims* shape : {&piece.box.lo, &piece.box.hi, &piece.global}) shape->resize(dims);
  if (width > 0) {
    piece.box.lo.push_back(0);
    piece.box.hi.push_back(width);
    piece.global.push_back(width);
  }
  if (!(view.shape == piece.box.shape()))
    throw ShapeError(str("local_attention: ", what, " ", view.shape, " does not lie in the box ",
                         piece.box, "."));
  if (view.dtype != dtype)
    throw DTypeError(
        str("local_attention: ", what, " is ", name(view.dtype), ", not ", name(dtype), "."));
  return piece;
}

namespace {

/// Lanes l of a (bit `kHalf` of l clear) and b (set), each plus that of l ^ kHalf.
template <class T, int kHalf, int... kLane>
typename Simd<T>::Type halved(typename Simd<T>::Type a,
                              typename Simd<T>::Type b,
                              std::integer_sequence<int, kLane...>) {
  constexpr int kLanes = kVectorLanes<T>;
  const auto own =
      __builtin_shufflevector(a, b, ((kLane & kHalf) == 0 ? kLane : kLanes + kLane)...);
  const auto other = __builtin_shufflevector(
      a, b, ((kLane & kHalf) == 0 ? (kLane ^ kHalf) : kLanes + (kLane ^ kHalf))...);
  return own + other;
}

/// Lane l of sums<T, 1, 0, n>(f): the sum of the lanes of vector f(l % n), always in one order.
template <class T, int kHalf, int kVector, int kCount, class F>
typename Simd<T>::Type sums(const F& f) {
  constexpr int kLanes = kVectorLanes<T>;
  if constexpr (kHalf == kLanes) {
    return f(kVector);
  } else {
    const auto a = sums<T, 2 * kHalf, kVector, kCount>(f);
    const auto lanes = std::make_integer_sequence<int, kLanes>{};
    if constexpr (kHalf < kCount) {
      return halved<T, kHalf>(a, sums<T, 2 * kHalf, kVector + kHalf, kCount>(f), lanes);
    } else {
      return halved<T, kHalf>(a, a, lanes);
    }
  }
}

/// The products of kCount rows with x, then those of what is left in ever smaller blocks.
template <class T, int kVectors, bool kAdd, int kCount>
void dot_blocks(const typename Simd<T>::Type* x,
                const T* rows,
                const std::int64_t* offsets,
                std::int64_t count,
                T* s) {
  using S = Simd<T>;
  std::int64_t j = 0;
  for (; j + kCount <= count; j += kCount) {
    auto v = sums<T, 1, 0, kCount>([&](int i) {
      const T* const row = rows + offsets[j + i];
      auto sum = x[0] * S::load(row);
      for (int w = 1; w < kVectors; ++w) sum += x[w] * S::load(row + w * kVectorLanes<T>);
      return sum;
    });
    if constexpr (kCount == kVectorLanes<T>) {
      if constexpr (kAdd) v += S::load(s + j);
      S::store(s + j, v);
    } else {
      if constexpr (kAdd) v += S::load_first(s + j, kCount);
      S::store_first(s + j, v, kCount);
    }
  }
  if constexpr (kCount > 1) {
    if (j < count)
      dot_blocks<T, kVectors, kAdd, kCount / 2>(x, rows, offsets + j, count - j, s + j);
  }
}

template <class T, int kVectors, bool kAdd>
void dots(const T* x, const T* rows, const std::int64_t* offsets, std::int64_t count, T* s) {
  typename Simd<T>::Type vectors[kVectors];
  for (int w = 0; w < kVectors; ++w) vectors[w] = Simd<T>::load(x + w * kVectorLanes<T>);
  dot_blocks<T, kVectors, kAdd, kVectorLanes<T>>(vectors, rows, offsets, count, s);
}

template <class T, int kVectors>
void weighted_sum(const T* p,
                  const T* rows,
                  const std::int64_t* offsets,
                  std::int64_t count,
                  bool accumulate,
                  T* y) {
  using S = Simd<T>;
  using Vector = typename S::Type;
  // Enough sums at a time to cover the latency of a multiply-add.
  constexpr int kChains = kVectors >= 4 ? 2 : kVectors >= 2 ? 4 : 8;
  constexpr int kLane = kVectorLanes<T>;
  Vector sum[kChains][kVectors] = {};
  std::int64_t j = 0;
  for (; j + kChains <= count; j += kChains) {
    for (int c = 0; c < kChains; ++c) {
      const T* const row = rows + offsets[j + c];
      const Vector factor = Vector{} + p[j + c];
      for (int w = 0; w < kVectors; ++w) sum[c][w] += factor * S::load(row + w * kLane);
    }
  }
  for (int c = 0; c < kChains - 1; ++c) {
    if (j + c >= count) break;
    const T* const row = rows + offsets[j + c];
    const Vector factor = Vector{} + p[j + c];
    for (int w = 0; w < kVectors; ++w) sum[c][w] += factor * S::load(row + w * kLane);
  }
  for (int w = 0; w < kVectors; ++w) {
    Vector total = sum[0][w];
    for (int c = 1; c < kChains; ++c) total += sum[c][w];
    if (accumulate) total += S::load(y + w * kLane);
    S::store(y + w * kLane, total);
  }
}

/// f(first channel, std::integral_constant<int, registers>) for blocks of up to four registers.
template <class T, class F>
void for_channel_blocks(std::int64_t stride, const F& f) {
  constexpr std::int64_t kLane = kVectorLanes<T>;
  for (std::int64_t c = 0; c < stride; c += 4 * kLane) {
    with_rows<4>(static_cast<int>(std::min<std::int64_t>(4, (stride - c) / kLane)),
                 [&](auto vectors) { f(c, vectors); });
  }
}

}  // namespace

template <class T>
void window_dots(const T* x,
                 std::int64_t stride,
                 const T* rows,
                 const std::int64_t* offsets,
                 std::int64_t count,
                 T* s) {
  for_channel_blocks<T>(stride, [&](std::int64_t c, auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    if (c == 0) {
      dots<T, kVectors, false>(x, rows, offsets, count, s);
    } else {
      dots<T, kVectors, true>(x + c, rows + c, offsets, count, s);
    }
  });
}

template <class T>
void window_sum(const T* p,
                std::int64_t stride,
                const T* rows,
                const std::int64_t* offsets,
                std::int64_t count,
                bool accumulate,
                T* y) {
  for_channel_blocks<T>(stride, [&](std::int64_t c, auto vectors) {
    weighted_sum<T, decltype(vectors)::value>(p, rows + c, offsets, count, accumulate, y + c);
  });
}

#define TESSERA_INSTANTIATE(T)                                                                     \
  template void window_dots<T>(const T*, std::int64_t, const T*, const std::int64_t*,              \
                               std::int64_t, T*);                                                  \
  template void window_sum<T>(const T*, std::int64_t, const T*, const std::int64_t*, std::int64_t, \
                              bool, T*);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::cpu
