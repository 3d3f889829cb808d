#pragma once

#include <algorithm>
#include <tessera/kernels/optim.hpp>
#include <vector>

#include "device.hpp"
#include "launch.hpp"

/// How an optimiser's update goes over its segments on the CPU.
namespace tessera::kernels::optim_run {

/// Parameter, gradient and the first `states` states must be there; a view without data beyond
/// these is an absent one.
inline void check(const char* op, std::span<const OptimSegment> segments, int states) {
  for (const OptimSegment& s : segments) {
    if (!is_floating(s.parameter.dtype)) {
      throw DTypeError(str(op, ": element type ", name(s.parameter.dtype), " is not floating."));
    }
    const View* const views[] = {&s.parameter, &s.gradient, &s.first, &s.second, &s.third};
    for (int k = 0; k < 5; ++k) {
      const View& v = *views[k];
      if (k >= 2 + states && v.data == nullptr) continue;
      if (v.dtype != s.parameter.dtype || v.size() != s.parameter.size() || !v.is_dense()) {
        throw ShapeError(str(op, ": a segment's views are not dense and alike (", s.parameter.shape,
                             " ", name(s.parameter.dtype), " and ", v.shape, " ", name(v.dtype),
                             "). Pass dense views of one type."));
      }
    }
  }
}

/// step(p, g, first, second, third) over one range of a segment; absent states read as 0.
template <class T, class Step>
void run_range(const OptimSegment& s, const Step& step, std::int64_t b, std::int64_t e) {
  alignas(64) T value[5][kBlock];
  const View* const views[] = {&s.parameter, &s.gradient, &s.first, &s.second, &s.third};
  const auto bytes = static_cast<std::int64_t>(size_of(s.parameter.dtype));
  for (int k = 0; k < 5; ++k)
    if (views[k]->data == nullptr) std::fill_n(value[k], std::min(kBlock, e - b), T(0));
  for (; b < e; b += kBlock) {
    const std::int64_t n = std::min(kBlock, e - b);
    for (int k = 0; k < 5; ++k)
      if (views[k]->data != nullptr)
        load(views[k]->as<char>() + b * bytes, views[k]->dtype, 1, n, value[k]);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i)
      step(value[0][i], value[1][i], value[2][i], value[3][i], value[4][i]);
    for (int k = 0; k < 5; ++k)
      if (k != 1 && views[k]->data != nullptr)
        store(value[k], n, views[k]->as<char>() + b * bytes, views[k]->dtype, 1);
  }
}

/// All segments as one range of fixed chunks; make_step(T, segment).
template <class MakeStep>
void run(std::span<const OptimSegment> segments, const MakeStep& make_step) {
  struct Piece {
    std::size_t segment;
    std::int64_t begin, end;
  };
  std::vector<Piece> pieces;
  std::int64_t total = 0;
  for (std::size_t k = 0; k < segments.size(); ++k) {
    const std::int64_t n = segments[k].parameter.size();
    for (std::int64_t b = 0; b < n; b += kChunk) pieces.push_back({k, b, std::min(n, b + kChunk)});
    total += n;
  }
  const auto one = [&](std::int64_t i) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    const OptimSegment& s = segments[piece.segment];
    if (s.parameter.dtype == DType::kFloat64) {
      run_range<double>(s, make_step(double{}, s), piece.begin, piece.end);
    } else {
      run_range<float>(s, make_step(float{}, s), piece.begin, piece.end);
    }
  };
  const auto count = static_cast<std::int64_t>(pieces.size());
  if (total < kParallelElements) {
    for (std::int64_t i = 0; i < count; ++i) one(i);
  } else {
    parallel_for(count, one);
  }
}

inline bool any_on_cuda(std::span<const OptimSegment> segments) {
  return !segments.empty() && on_cuda(segments[0].parameter);
}

}  // namespace tessera::kernels::optim_run
