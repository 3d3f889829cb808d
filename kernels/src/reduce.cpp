#include "functors/reduce.hpp"

#include <algorithm>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/reduce.hpp>
#include <vector>

#include "device.hpp"
#include "functors/binary.hpp"
#include "launch.hpp"
#include "reduce_nest.hpp"

namespace tessera::kernels {

const char* name(ReduceKind kind) {
  static constexpr const char* names[] = {"sum", "max", "min", "all", "any"};
  return names[static_cast<std::size_t>(kind)];
}

ReduceNest make_reduce_nest(const char* op, const View& x, const View& y) {
  View out = y;
  bool fits = x.dims() == y.dims();
  for (int d = 0; fits && d < x.dims(); ++d) {
    if (y.shape[d] == x.shape[d]) continue;
    fits = y.shape[d] == 1;
    out.strides[d] = 0;
  }
  if (!fits) {
    throw ShapeError(str(op, ": ", x.shape, " does not reduce to ", y.shape,
                         " (reduced dimensions have size 1, the others stay)."));
  }
  out.shape = x.shape;
  const View* const views[] = {&x, &out};
  const LoopNest nest = make_loop_nest(op, views);

  ReduceNest split;
  split.inner_kept = nest.dims > 0 && nest.stride[1][nest.dims - 1] != 0;
  for (int d = 0; d < nest.dims; ++d) {
    LoopNest& to = nest.stride[1][d] != 0 ? split.kept : split.reduced;
    to.size[to.dims] = nest.size[d];
    to.stride[0][to.dims] = nest.stride[0][d];
    to.stride[1][to.dims] = nest.stride[1][d];
    to.total *= nest.size[d];
    ++to.dims;
  }
  if (nest.total == 0) {  // its dimensions are not merged then
    split.kept.total = y.size();
    split.reduced.total = y.empty() ? 0 : x.size() / y.size();
  }
  return split;
}

namespace {

constexpr std::int64_t kColumns = 512;

template <class Op>
using ValueOf = typename Op::Value;
template <class Op>
using AccOf = typename Op::Acc;

/// n values from memory; in place when they lie densely in the right type.
template <class T>
const T* values(
    const View& x, std::int64_t offset, std::int64_t stride, std::int64_t n, T* buffer) {
  const char* const at = x.as<char>() + offset * static_cast<std::int64_t>(size_of(x.dtype));
  if (x.dtype == dtype_of<T> && stride == 1) return reinterpret_cast<const T*>(at);
  load(at, x.dtype, stride, n, buffer);
  return buffer;
}

template <class Op>
AccOf<Op> fold_lanes(AccOf<Op>* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lanes[l] = Op::merge(lanes[l], lanes[l + width]);
  return lanes[0];
}

template <class Op>
void add_values(const ValueOf<Op>* v, std::int64_t n, AccOf<Op>* lanes) {
  using Acc = AccOf<Op>;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int l = 0; l < kLanes; ++l) lanes[l] = Op::merge(lanes[l], static_cast<Acc>(v[i + l]));
  }
  for (int l = 0; i < n; ++i, ++l) lanes[l] = Op::merge(lanes[l], static_cast<Acc>(v[i]));
}

/// One output: elements [begin, end) of the reduced loops, the fastest dimension of x among them.
template <class Op>
AccOf<Op> fold_rows(
    const View& x, std::int64_t base, const LoopNest& r, std::int64_t begin, std::int64_t end) {
  using T = ValueOf<Op>;
  alignas(64) AccOf<Op> lanes[kLanes];
  std::fill_n(lanes, kLanes, Op::identity());
  alignas(64) T buffer[kBlock];
  const std::int64_t inner = r.size[r.dims - 1];
  const std::int64_t stride = r.stride[0][r.dims - 1];
  while (begin < end) {
    const std::int64_t n = std::min({end - begin, inner - begin % inner, kBlock});
    const std::int64_t offset = base + nest_offset(r, 0, begin);
    add_values<Op>(values<T>(x, offset, stride, n, buffer), n, lanes);
    begin += n;
  }
  return fold_lanes<Op>(lanes);
}

/// `columns` neighbouring outputs: rows [begin, end) of the reduced loops into acc.
template <class Op>
void fold_columns(const View& x,
                  std::int64_t base,
                  std::int64_t stride,
                  std::int64_t columns,
                  const LoopNest& r,
                  std::int64_t begin,
                  std::int64_t end,
                  AccOf<Op>* acc) {
  using T = ValueOf<Op>;
  using Acc = AccOf<Op>;
  std::fill_n(acc, columns, Op::identity());
  alignas(64) T buffer[kColumns];
  // Few columns whose rows follow each other densely are taken several rows at a time.
  const std::int64_t inner = r.dims > 0 ? r.size[r.dims - 1] : 1;
  const bool dense = r.dims > 0 && stride == 1 && r.stride[0][r.dims - 1] == columns;
  const std::int64_t group = dense && columns <= 32 ? 64 / columns : 1;
  const std::int64_t width = group * columns;
  Acc wide[64];
  if (group > 1) std::fill_n(wide, width, Op::identity());
  while (begin < end) {
    const std::int64_t offset = base + nest_offset(r, 0, begin);
    if (group > 1 && begin + group <= end && begin % inner + group <= inner) {
      const T* const v = values<T>(x, offset, 1, width, buffer);
#pragma omp simd
      for (std::int64_t j = 0; j < width; ++j) wide[j] = Op::merge(wide[j], static_cast<Acc>(v[j]));
      begin += group;
    } else {
      const T* const v = values<T>(x, offset, stride, columns, buffer);
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) acc[j] = Op::merge(acc[j], static_cast<Acc>(v[j]));
      ++begin;
    }
  }
  if (group > 1) {
    for (std::int64_t g = 0; g < group; ++g)
      for (std::int64_t j = 0; j < columns; ++j) acc[j] = Op::merge(acc[j], wide[g * columns + j]);
  }
}

template <class Op>
void fill_identity(const View& y) {
  map_functor<AccOf<Op>>("reduce", Constant<AccOf<Op>>{result_of_nothing<Op>(y.dtype)}, y);
}

template <class Op>
void reduce_with(const char* op, const View& x, const View& y) {
  using Acc = AccOf<Op>;
  const ReduceNest nest = make_reduce_nest(op, x, y);
  const auto out = [&](std::int64_t output) {
    return y.as<char>() +
           nest_offset(nest.kept, 1, output) * static_cast<std::int64_t>(size_of(y.dtype));
  };
  if (nest.kept.total == 0) return;
  if (nest.reduced.total == 0) return fill_identity<Op>(y);

  // Slices of the reduced loops, of fixed size, are the units of work and of rounding.
  const int last = nest.kept.dims - 1;
  const std::int64_t inner = nest.inner_kept ? nest.kept.size[last] : 1;
  const std::int64_t columns = std::min(inner, kColumns);
  const std::int64_t blocks = (inner + columns - 1) / columns;
  const std::int64_t depth = std::max<std::int64_t>(1, kChunk / columns);
  const std::int64_t slices = (nest.reduced.total + depth - 1) / depth;
  const std::int64_t outer = nest.kept.total / inner;

  // acc[0 .. count) of outputs (o, column block b), slice s.
  const auto fold = [&](std::int64_t o, std::int64_t b, std::int64_t s, Acc* acc) {
    const std::int64_t begin = s * depth;
    const std::int64_t end = std::min(nest.reduced.total, begin + depth);
    const std::int64_t base = nest_offset(nest.kept, 0, o * inner + b * columns);
    if (nest.inner_kept) {
      const std::int64_t count = std::min(columns, inner - b * columns);
      fold_columns<Op>(x, base, nest.kept.stride[0][last], count, nest.reduced, begin, end, acc);
    } else {
      acc[0] = fold_rows<Op>(x, base, nest.reduced, begin, end);
    }
  };
  const auto finish = [&](std::int64_t o, std::int64_t b, const Acc* acc) {
    const std::int64_t count = nest.inner_kept ? std::min(columns, inner - b * columns) : 1;
    const std::int64_t stride = nest.inner_kept ? nest.kept.stride[1][last] : 1;
    store<Acc>(acc, count, out(o * inner + b * columns), y.dtype, stride);
  };

  if (slices == 1) {
    parallel_chunks(outer * blocks, columns * nest.reduced.total,
                    [&](std::int64_t begin, std::int64_t end) {
                      alignas(64) Acc acc[kColumns];
                      for (std::int64_t i = begin; i < end; ++i) {
                        fold(i / blocks, i % blocks, 0, acc);
                        finish(i / blocks, i % blocks, acc);
                      }
                    });
    return;
  }
  std::vector<Acc> partial(static_cast<std::size_t>(outer * blocks * slices * columns));
  const auto part = [&](std::int64_t i) { return partial.data() + i * columns; };
  parallel_chunks(outer * blocks * slices, columns * depth,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      const std::int64_t block = i / slices;
                      fold(block / blocks, block % blocks, i % slices, part(i));
                    }
                  });
  for (std::int64_t block = 0; block < outer * blocks; ++block) {
    Acc* const acc = part(block * slices);
    for (std::int64_t s = 1; s < slices; ++s) {
      const Acc* const next = part(block * slices + s);
      for (std::int64_t j = 0; j < columns; ++j) acc[j] = Op::merge(acc[j], next[j]);
    }
    finish(block / blocks, block % blocks, acc);
  }
}

}  // namespace

void reduce(ReduceKind kind, const View& x, const View& y) {
  const char* const op = name(kind);
  const bool sum = kind == ReduceKind::kSum;
  const bool logic = kind == ReduceKind::kAll || kind == ReduceKind::kAny;
  const bool fits = sum ? is_floating(x.dtype) == is_floating(y.dtype) && y.dtype != DType::kBool
                    : logic ? x.dtype == DType::kBool && y.dtype == DType::kBool
                            : x.dtype == y.dtype;
  if (!fits) {
    throw DTypeError(str(op, ": element type ", name(x.dtype), " does not reduce to ",
                         name(y.dtype), ". Cast the input or the result."));
  }
  if (on_cuda(y)) return cuda::reduce(kind, x, y);
  visit_compute_type(x.dtype, [&]<class T>() {
    switch (kind) {
      case ReduceKind::kSum:
        return reduce_with<SumOf<T>>(op, x, y);
      case ReduceKind::kMax:
      case ReduceKind::kAny:
        return reduce_with<MaxOf<T>>(op, x, y);
      case ReduceKind::kMin:
      case ReduceKind::kAll:
        return reduce_with<MinOf<T>>(op, x, y);
    }
  });
}

}  // namespace tessera::kernels
