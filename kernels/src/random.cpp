#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/random.hpp>

#include "device.hpp"
#include "functors/philox.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

constexpr int kBlocksAtOnce = 16;
constexpr int kWordsAtOnce = 4 * kBlocksAtOnce;

/// Words of the elements [4 first, 4 first + kWordsAtOnce).
void philox_words(PhiloxKey key, std::uint64_t first, std::uint32_t* words) {
  alignas(64) std::uint32_t lanes[4][kBlocksAtOnce];
#pragma omp simd
  for (int l = 0; l < kBlocksAtOnce; ++l) {
    const PhiloxBlock block = philox(key.key, key.stream, first + static_cast<std::uint64_t>(l));
    lanes[0][l] = block.word[0];
    lanes[1][l] = block.word[1];
    lanes[2][l] = block.word[2];
    lanes[3][l] = block.word[3];
  }
  for (int l = 0; l < kBlocksAtOnce; ++l)
    for (int w = 0; w < 4; ++w) words[4 * l + w] = lanes[w][l];
}

/// Calls emit(words, skip, n, offset of y, offset of x, row stride of y, of x) for runs of at most
/// kWordsAtOnce elements; the words of the run are words[skip ...].
template <class Emit>
void for_each_run(const char* op, PhiloxKey key, const View& x, const Piece& y, const Emit& emit) {
  if (!(y.view.shape == y.box.shape())) {
    throw ShapeError(str(op, ": the view ", y.view.shape, " is not its box ", y.box, "."));
  }
  View index = y.view;
  index.strides = row_major(y.global);
  std::int64_t origin = 0;
  for (int d = 0; d < y.box.dims(); ++d) origin += y.box.lo[d] * index.strides[d];

  const View* const views[] = {&index, &y.view, &x};
  const LoopNest nest = make_loop_nest(op, views, false);
  if (nest.total == 0) return;
  const int last = nest.dims - 1;
  const std::int64_t step = nest.stride[0][last];
  parallel_chunks(nest.total, 4, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::uint32_t words[kWordsAtOnce];
    while (begin < end) {
      const auto first = static_cast<std::uint64_t>(origin + nest_offset(nest, 0, begin));
      const std::int64_t skip = static_cast<std::int64_t>(first & 3);
      const std::int64_t row = std::min(end - begin, nest.size[last] - begin % nest.size[last]);
      const std::int64_t n = step == 1 ? std::min(row, kWordsAtOnce - skip) : 1;
      philox_words(key, first >> 2, words);
      emit(words, skip, n, nest_offset(nest, 1, begin), nest_offset(nest, 2, begin),
           nest.stride[1][last], nest.stride[2][last]);
      begin += n;
    }
  });
}

char* element(const View& view, std::int64_t offset) {
  return view.as<char>() + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

/// y = fn(words of 16 blocks -> values): T value[kWordsAtOnce].
template <class T, class Values>
void generate(const char* op, PhiloxKey key, const Piece& y, const Values& values) {
  for_each_run(op, key, y.view, y,
               [&](const std::uint32_t* words, std::int64_t skip, std::int64_t n, std::int64_t out,
                   std::int64_t, std::int64_t stride, std::int64_t) {
                 alignas(64) T value[kWordsAtOnce];
                 values(words, value);
                 store(value + skip, n, element(y.view, out), y.view.dtype, stride);
               });
}

void require_floating(const char* op, const View& y) {
  if (!is_floating(y.dtype))
    throw DTypeError(
        str(op, ": element type ", name(y.dtype), " is not a floating type. Cast the result."));
}

}  // namespace

void random_bits(PhiloxKey key, const Piece& y) {
  if (dry_run()) return;
  if (y.view.dtype != DType::kInt64)
    throw DTypeError(str("random_bits: element type ", name(y.view.dtype), ". Use i64."));
  if (on_cuda(y.view)) return cuda::random_bits(key, y);
  generate<std::int64_t>("random_bits", key, y,
                         [](const std::uint32_t* words, std::int64_t* value) {
                           for (int i = 0; i < kWordsAtOnce; ++i) value[i] = words[i];
                         });
}

void random_uniform(PhiloxKey key, double low, double high, const Piece& y) {
  if (dry_run()) return;
  require_floating("random_uniform", y.view);
  if (on_cuda(y.view)) return cuda::random_uniform(key, low, high, y);
  visit_compute_type(y.view.dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      const T origin = static_cast<T>(low);
      const T range = static_cast<T>(high - low);
      generate<T>("random_uniform", key, y, [=](const std::uint32_t* words, T* value) {
#pragma omp simd
        for (int i = 0; i < kWordsAtOnce; ++i)
          value[i] = origin + range * unit_interval(words[i], T{});
      });
    }
  });
}

void random_normal(PhiloxKey key, double mean, double stddev, const Piece& y) {
  if (dry_run()) return;
  require_floating("random_normal", y.view);
  if (on_cuda(y.view)) return cuda::random_normal(key, mean, stddev, y);
  generate<double>("random_normal", key, y, [=](const std::uint32_t* words, double* value) {
#pragma omp simd
    for (int i = 0; i < kWordsAtOnce / 2; ++i) {
      const NormalPair pair = box_muller(words[2 * i], words[2 * i + 1]);
      value[2 * i] = mean + stddev * pair.even;
      value[2 * i + 1] = mean + stddev * pair.odd;
    }
  });
}

void dropout(PhiloxKey key, double p, const View& x, const Piece& y) {
  require_floating("dropout", y.view);
  if (x.dtype != y.view.dtype)
    throw DTypeError(
        str("dropout: element types ", name(x.dtype), " and ", name(y.view.dtype), " mix."));
  if (!(p >= 0.0 && p <= 1.0))
    throw UsageError(str("dropout: probability ", p, " is outside [0, 1]."));
  if (on_cuda(y.view)) return cuda::dropout(key, p, x, y);
  const std::uint64_t threshold = drop_threshold(p);
  const double scale = p < 1.0 ? 1.0 / (1.0 - p) : 0.0;
  visit_compute_type(y.view.dtype, [&]<class T>() {
    for_each_run(
        "dropout", key, x, y,
        [&](const std::uint32_t* words, std::int64_t skip, std::int64_t n, std::int64_t out,
            std::int64_t in, std::int64_t out_stride, std::int64_t in_stride) {
          alignas(64) T value[kWordsAtOnce];
          load(element(x, in), x.dtype, in_stride, n, value);
          const T factor = static_cast<T>(scale);
          for (std::int64_t i = 0; i < n; ++i)
            value[i] = words[skip + i] < threshold ? T(0) : value[i] * factor;
          store(value, n, element(y.view, out), y.view.dtype, out_stride);
        });
  });
}

}  // namespace tessera::kernels
