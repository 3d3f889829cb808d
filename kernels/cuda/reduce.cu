#include "device.hpp"
#include "functors/binary.hpp"
#include "functors/reduce.hpp"
#include "launch.cuh"
#include "reduce_nest.hpp"

namespace tessera::kernels::cuda {

namespace {

constexpr std::int64_t kRowDepth = 8192;    // reduced elements of a block
constexpr std::int64_t kColumnDepth = 512;  // of a thread

/// partial[output * slices + slice]: a block each, its threads over the reduced elements.
template <class Op>
__global__ void reduce_rows(Memory x,
                            ReduceNest nest,
                            std::int64_t slices,
                            typename Op::Acc* partial) {
  using Acc = typename Op::Acc;
  const std::int64_t count = nest.kept.total * slices;
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const std::int64_t base = nest_offset(nest.kept, 0, i / slices);
    const std::int64_t begin = i % slices * kRowDepth;
    const std::int64_t end =
        begin + kRowDepth < nest.reduced.total ? begin + kRowDepth : nest.reduced.total;
    Acc acc = Op::identity();
    for (std::int64_t r = begin + threadIdx.x; r < end; r += blockDim.x) {
      std::int64_t offset[1];
      offsets_of(nest.reduced, r, offset);
      acc = Op::merge(acc, static_cast<Acc>(load_at<typename Op::Value>(x, base + offset[0])));
    }
    acc = block_fold<Op>(acc);
    if (threadIdx.x == 0) partial[i] = acc;
  }
}

/// The slices of an output into its first one: a block each, for many slices.
template <class Op>
__global__ void fold_slices(std::int64_t outputs, std::int64_t slices, typename Op::Acc* partial) {
  for (std::int64_t i = blockIdx.x; i < outputs; i += gridDim.x) {
    typename Op::Acc acc = Op::identity();
    for (std::int64_t s = threadIdx.x; s < slices; s += blockDim.x)
      acc = Op::merge(acc, partial[i * slices + s]);
    acc = block_fold<Op>(acc);
    if (threadIdx.x == 0) partial[i * slices] = acc;
  }
}

template <class Op>
void reduce_with(const char* op, const View& x, const View& y) {
  using Acc = typename Op::Acc;
  const ReduceNest nest = make_reduce_nest(op, x, y);
  if (nest.kept.total == 0) return;
  if (nest.reduced.total == 0)
    return map<Acc>(op, Constant<Acc>{result_of_nothing<Op>(y.dtype)}, y);
  const std::int64_t depth = nest.inner_kept ? kColumnDepth : kRowDepth;
  const std::int64_t slices = (nest.reduced.total + depth - 1) / depth;
  const Scratch<Acc> scratch(nest.kept.total * slices);
  Acc* const partial = scratch.get();
  const Memory in = memory(x), out = memory(y);
  if (nest.inner_kept) {
    const std::int64_t outputs = nest.kept.total;
    each(op, outputs * slices, [=] __device__(std::int64_t i) {
      const std::int64_t base = nest_offset(nest.kept, 0, i % outputs);
      const std::int64_t slice = i / outputs;
      const std::int64_t end = (slice + 1) * kColumnDepth < nest.reduced.total
                                   ? (slice + 1) * kColumnDepth
                                   : nest.reduced.total;
      Acc acc = Op::identity();
      for (std::int64_t r = slice * kColumnDepth; r < end; ++r) {
        std::int64_t offset[1];
        offsets_of(nest.reduced, r, offset);
        acc = Op::merge(acc, static_cast<Acc>(load_at<typename Op::Value>(in, base + offset[0])));
      }
      partial[i % outputs * slices + slice] = acc;
    });
  } else {
    reduce_rows<Op><<<blocks_for(nest.kept.total * slices, 1), kThreads, 0, stream()>>>(
        in, nest, slices, partial);
    check(cudaGetLastError(), op);
  }
  std::int64_t left = slices;
  if (slices > 32) {
    fold_slices<Op><<<blocks_for(nest.kept.total, 1), kThreads, 0, stream()>>>(nest.kept.total,
                                                                               slices, partial);
    check(cudaGetLastError(), op);
    left = 1;
  }
  each(op, nest.kept.total, [=] __device__(std::int64_t i) {
    Acc acc = Op::identity();
    for (std::int64_t s = 0; s < left; ++s) acc = Op::merge(acc, partial[i * slices + s]);
    store_at<Acc>(out, nest_offset(nest.kept, 1, i), acc);
  });
}

}  // namespace

void reduce(ReduceKind kind, const View& x, const View& y) {
  visit_compute(x.dtype, [&]<class T>() {
    switch (kind) {
      case ReduceKind::kSum:
        return reduce_with<SumOf<T>>(name(kind), x, y);
      case ReduceKind::kMax:
      case ReduceKind::kAny:
        return reduce_with<MaxOf<T>>(name(kind), x, y);
      case ReduceKind::kMin:
      case ReduceKind::kAll:
        return reduce_with<MinOf<T>>(name(kind), x, y);
    }
  });
}

}  // namespace tessera::kernels::cuda
