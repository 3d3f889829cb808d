#include "cpu/local_attention_tiles.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cpu/batch_gemm.hpp"

namespace tessera::kernels::cpu {

namespace {

/// Packed keys and values of a tile, of one head and of all: they stay in the cache of a core.
constexpr double kHeadBytes = 512 << 10;
constexpr double kPackedBytes = 1 << 20;
/// Own rows of a tile along the outer axes.
constexpr std::int64_t kMostRows[] = {1, 32, 8};

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

/// Lanes run along the innermost dimension, or another one that fills them better. Global sizes
/// alone decide, so that sums have one order for every cut.
AxisOrder axis_order(const LocalOptions& options, int dims) {
  const auto length = [&](int d) {
    const LocalRule& rule = options.rules[static_cast<std::size_t>(d)];
    return std::min<std::int64_t>(rule.size / rule.dilation, 16);
  };
  int lanes = dims - 1;
  for (int d = dims - 2; d >= 0; --d)
    if (length(d) > length(lanes)) lanes = d;
  AxisOrder order{-1, -1, lanes};
  for (int d = dims - 1, axis = 1; d >= 0; --d)
    if (d != lanes) order[static_cast<std::size_t>(axis--)] = d;
  return order;
}

LocalAxis make_axis(
    const LocalRule& rule, Interval own, bool by_key, std::int64_t length, bool lanes) {
  LocalAxis axis;
  axis.step = rule.dilation;
  std::vector<LocalRun> reads;
  const auto close = [&](std::int64_t end) {
    if (reads.empty()) return;
    const auto count = static_cast<std::int64_t>(reads.size());
    LocalAxis::Segment s{
        end - count * axis.step, count, reads[0].first, 0, axis.runs.size(), rule.extent, 0, false};
    std::int64_t last = reads[0].first, farthest = -rule.extent;
    for (std::int64_t i = 0; i < count; ++i) {
      const LocalRun& r = reads[static_cast<std::size_t>(i)];
      const std::int64_t distance = (r.first - s.first) / axis.step - i;
      s.hull = std::min(s.hull, r.first);
      s.nearest = std::min(s.nearest, distance);
      last = std::max(last, r.first + (r.count - 1) * axis.step);
      farthest = std::max(farthest, distance + r.count);
      axis.most = std::max(axis.most, r.count);
    }
    s.hull_count = (last - s.hull) / axis.step + 1;
    s.distances = farthest - s.nearest;
    for (std::int64_t i = 0; i < count; ++i) {
      const LocalRun& r = reads[static_cast<std::size_t>(i)];
      const std::int64_t distance = (r.first - s.first) / axis.step - i;
      s.masked |= distance != s.nearest || r.count != s.distances;
      axis.runs.push_back({(r.first - s.hull) / axis.step, r.count, distance + rule.extent - 1});
    }
    if (lanes) axis.most = std::max(axis.most, s.distances);
    axis.most_hull = std::max(axis.most_hull, s.hull_count);
    axis.most_own = std::max(axis.most_own, count);
    axis.segments.push_back(s);
    reads.clear();
  };
  for (std::int64_t residue = 0; residue < rule.dilation; ++residue) {
    std::int64_t x = own.lo + (residue - own.lo % rule.dilation + rule.dilation) % rule.dilation;
    for (; x < own.hi; x += axis.step) {
      const LocalRun run = by_key ? rule.queries(x) : rule.keys(x);
      const bool other_block =
          rule.blocks != 0 && !lanes && !reads.empty() && reads.back().first != run.first;
      if (other_block || static_cast<std::int64_t>(reads.size()) == length) close(x);
      reads.push_back(run);
    }
    close(x);
  }
  return axis;
}

}  // namespace

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
  order = axis_order(options, dims);
  empty = own.view.empty() || heads.empty();
  if (empty) return;

  const auto row_bytes =
      static_cast<double>((depth + width) * static_cast<std::int64_t>(size_of(compute)));
  std::int64_t rows = kMostRows[dims - 1];
  for (std::size_t axis = 3; axis-- > 0;) {
    const int d = order[axis];
    if (d < 0) {
      axes[axis].segments = {{0, 1, 0, 1, 0, 0, 1, false}};
      axes[axis].runs = {{}};
      continue;
    }
    const LocalRule& rule = options.rules[static_cast<std::size_t>(d)];
    table[axis] = 2 * rule.extent - 1;
    if (axis == 2) {
      axes[2] = make_axis(rule, own.box[d + 1], by_key, lanes(), true);
      const auto packed = [&] {
        double bytes = row_bytes * static_cast<double>(most_places());
        for (const int outer : {order[0], order[1]}) {
          if (outer < 0) continue;
          const LocalRule& r = options.rules[static_cast<std::size_t>(outer)];
          bytes *= static_cast<double>(r.extent + (r.blocks != 0 ? 0 : rows - 1));
        }
        return bytes;
      };
      while (rows > 4 && packed() > kHeadBytes) rows /= 2;
    } else {
      axes[axis] = make_axis(rule, own.box[d + 1], by_key, rows, false);
    }
    for (const LocalAxis::Segment& s : axes[axis].segments) {
      const Interval reads{s.hull, s.hull + (s.hull_count - 1) * axes[axis].step + 1};
      if (other.box[d + 1].contains(reads)) continue;
      throw ShapeError(str("local_attention: ", by_key ? "queries " : "keys ", other.box,
                           " lack some of [", reads.lo, ", ", reads.hi, ") of domain dimension ", d,
                           ", which coordinates from ", s.first, " on read."));
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

std::int64_t LocalWork::block_heads() const {
  const double head = static_cast<double>(hull_rows() * most_places() * (depth + width)) *
                      static_cast<double>(size_of(compute));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(kPackedBytes / std::max(head, 1.0)));
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

namespace {

/// f(element of the table, offset in elements in `view`) for one head of a table of biases.
template <class F>
void for_each_bias(const LocalWork& work, const View& view, std::int64_t head, const F& f) {
  Place steps{};
  for (std::size_t axis = 0; axis < 3; ++axis)
    if (work.order[axis] >= 0) steps[axis] = view.strides[work.order[axis] + 1];
  std::int64_t element = 0;
  for (std::int64_t a = 0; a < work.table[0]; ++a) {
    for (std::int64_t b = 0; b < work.table[1]; ++b) {
      for (std::int64_t c = 0; c < work.table[2]; ++c, ++element)
        f(element, (head - work.bias->box.lo[0]) * view.strides[0] + a * steps[0] + b * steps[1] +
                       c * steps[2]);
    }
  }
}

}  // namespace

template <class T>
void LocalWork::read_bias(std::int64_t head, bool flipped, T* table_of_head) const {
  const View& view = bias->view;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for_each_bias(*this, view, head, [&](std::int64_t element, std::int64_t offset) {
    load(view.as<char>() + offset * size, view.dtype, 1, 1, table_of_head + element);
  });
  if (flipped) std::reverse(table_of_head, table_of_head + table_size());
}

template <class T>
void LocalWork::add_bias_gradient(std::int64_t head,
                                  const T* table_of_head,
                                  const View& dbias) const {
  for_each_bias(*this, dbias, head, [&](std::int64_t element, std::int64_t offset) {
    dbias.as<T>()[offset] += table_of_head[element];
  });
}

LocalTile::LocalTile(const LocalWork& work, std::int64_t number) : work_(&work) {
  for (std::size_t axis = 3; axis-- > 0;) {
    const auto count = static_cast<std::int64_t>(work.axes[axis].segments.size());
    segments_[axis] = &work.axes[axis].segments[static_cast<std::size_t>(number % count)];
    number /= count;
  }
}

template <class T>
void LocalTile::make_mask(T* mask) const {
  const LocalAxis::Segment& s = *segments_[2];
  std::fill_n(mask, distances() * kVectorLanes<T>, T(0));
  for (std::int64_t i = 0; i < s.count; ++i) {
    const LocalAxis::Run& run = work_->axes[2].runs[s.run + static_cast<std::size_t>(i)];
    const std::int64_t first = run.bias - bias_offset();
    for (std::int64_t t = 0; t < s.distances; ++t) {
      if (t < first || t >= first + run.count)
        mask[t * kVectorLanes<T> + i] = -std::numeric_limits<T>::infinity();
    }
  }
}

template <class T>
void LocalTile::pack(const LocalRows& rows, std::int64_t n, Interval heads, T scale, T* dst) const {
  const LocalAxis::Segment& lane = *segments_[2];
  const std::int64_t channels = rows.width(), stride = places();
  const std::int64_t before = (lane.hull - lane.first) / work_->axes[2].step - lane.nearest;
  const std::int64_t inner = segments_[1]->hull_count;
  const std::int64_t count = segments_[0]->hull_count * inner;
  const auto offset = [&](std::int64_t row) {
    return rows.at(n,
                   {segments_[0]->hull + row / inner * work_->axes[0].step,
                    segments_[1]->hull + row % inner * work_->axes[1].step, lane.hull},
                   heads.lo);
  };
  for (std::int64_t row = 0; row < count; ++row) {
    if (row + 1 < count)
      rows.touch(offset(row + 1), lane_step(rows), lane.hull_count, heads.size());
    for (std::int64_t h = 0; h < heads.size(); ++h) {
      T* const to = dst + (h * work_->hull_rows() + row) * channels * stride;
      rows.read_columns(offset(row) + h * rows.head_step(), lane_step(rows),
                        {before, before + lane.hull_count}, stride, scale, to, stride);
    }
  }
}

void LocalTile::find_rows(std::vector<OwnRows>& rows) const {
  const std::int64_t groups = (segments_[1]->count + kOwnRows - 1) / kOwnRows;
  rows.resize(static_cast<std::size_t>(segments_[0]->count * groups));
  std::size_t number = 0;
  for (std::int64_t a = 0; a < segments_[0]->count; ++a)
    for (std::int64_t b = 0; b < segments_[1]->count; b += kOwnRows) find(a, b, rows[number++]);
}

void LocalTile::find(std::int64_t a, std::int64_t b, OwnRows& own) const {
  const auto run_of = [&](std::size_t axis, std::int64_t i) -> const LocalAxis::Run& {
    return work_->axes[axis].runs[segments_[axis]->run + static_cast<std::size_t>(i)];
  };
  own.count = static_cast<int>(std::min<std::int64_t>(kOwnRows, segments_[1]->count - b));
  own.rows.clear();
  const LocalAxis::Run& outer = run_of(0, a);
  std::int64_t lo = run_of(1, b).start, hi = lo;
  for (int o = 0; o < own.count; ++o) {
    const LocalAxis::Run& inner = run_of(1, b + o);
    own.at[o] = {segments_[0]->first + a * work_->axes[0].step,
                 segments_[1]->first + (b + o) * work_->axes[1].step, segments_[2]->first};
    own.reads[o] = outer.count * inner.count;
    lo = std::min(lo, inner.start);
    hi = std::max(hi, inner.start + inner.count);
  }
  for (std::int64_t i = 0; i < outer.count; ++i) {
    for (std::int64_t j = lo; j < hi; ++j) {
      OwnRows::Row row{(outer.start + i) * segments_[1]->hull_count + j, 0, 0, {}, {}};
      for (int o = 0; o < own.count; ++o) {
        const LocalAxis::Run& inner = run_of(1, b + o);
        const std::int64_t at = j - inner.start;
        if (at < 0 || at >= inner.count) continue;
        if (row.count == 0) row.first = o;
        ++row.count;
        row.place[o] = i * inner.count + at;
        row.bias[o] = ((outer.bias + i) * work_->table[1] + inner.bias + at) * work_->table[2];
      }
      if (row.count > 0) own.rows.push_back(row);
    }
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

#define TESSERA_INSTANTIATE(T)                                                              \
  template void LocalWork::read_bias<T>(std::int64_t, bool, T*) const;                      \
  template void LocalWork::add_bias_gradient<T>(std::int64_t, const T*, const View&) const; \
  template void LocalTile::make_mask<T>(T*) const;                                          \
  template void LocalTile::pack<T>(const LocalRows&, std::int64_t, Interval, T, T*) const;
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels::cpu
