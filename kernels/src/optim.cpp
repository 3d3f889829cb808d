#include "functors/optim.hpp"

#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/optim.hpp>
#include <vector>

#include "device.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

void check(const char* op, std::span<const OptimSegment> segments, int states) {
  for (const OptimSegment& s : segments) {
    if (!is_floating(s.parameter.dtype)) {
      throw DTypeError(str(op, ": element type ", name(s.parameter.dtype), " is not floating."));
    }
    const View* const views[] = {&s.parameter, &s.gradient, &s.first, &s.second, &s.third};
    for (int k = 0; k < 2 + states; ++k) {
      const View& v = *views[k];
      if (v.dtype != s.parameter.dtype || v.size() != s.parameter.size() || !v.is_dense()) {
        throw ShapeError(str(op, ": a segment's views are not dense and alike (", s.parameter.shape,
                             " ", name(s.parameter.dtype), " and ", v.shape, " ", name(v.dtype),
                             "). Pass dense views of one type."));
      }
    }
  }
}

/// step(p, g, first, second, third) over one range of a segment; `states` of the last three are
/// there.
template <class T, class Step>
void run_range(
    const OptimSegment& s, int states, const Step& step, std::int64_t b, std::int64_t e) {
  alignas(64) T value[5][kBlock] = {};
  const View* const views[] = {&s.parameter, &s.gradient, &s.first, &s.second, &s.third};
  const auto bytes = static_cast<std::int64_t>(size_of(s.parameter.dtype));
  for (; b < e; b += kBlock) {
    const std::int64_t n = std::min(kBlock, e - b);
    for (int k = 0; k < 2 + states; ++k)
      load(views[k]->as<char>() + b * bytes, views[k]->dtype, 1, n, value[k]);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i)
      step(value[0][i], value[1][i], value[2][i], value[3][i], value[4][i]);
    for (int k = 0; k < 2 + states; ++k)
      if (k != 1) store(value[k], n, views[k]->as<char>() + b * bytes, views[k]->dtype, 1);
  }
}

/// All segments as one range of fixed chunks; make_step(T, segment).
template <class MakeStep>
void run(std::span<const OptimSegment> segments, int states, const MakeStep& make_step) {
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
      run_range<double>(s, states, make_step(double{}, s), piece.begin, piece.end);
    } else {
      run_range<float>(s, states, make_step(float{}, s), piece.begin, piece.end);
    }
  };
  const auto count = static_cast<std::int64_t>(pieces.size());
  if (total < kParallelElements) {
    for (std::int64_t i = 0; i < count; ++i) one(i);
  } else {
    parallel_for(count, one);
  }
}

bool any_on_cuda(std::span<const OptimSegment> segments) {
  return !segments.empty() && on_cuda(segments[0].parameter);
}

}  // namespace

void adamw_step(std::span<const OptimSegment> segments, const AdamWCoefficients& c) {
  if (dry_run()) return;
  const int states = !segments.empty() && segments[0].third.data != nullptr ? 3 : 2;
  check("adamw", segments, states);
  if (any_on_cuda(segments)) return cuda::adamw_step(segments, c);
  run(segments, states, [&]<class T>(T, const OptimSegment& s) { return adamw_step_of<T>(s, c); });
}

void sgd_step(std::span<const OptimSegment> segments, double momentum, bool nesterov) {
  if (dry_run()) return;
  const bool velocity = !segments.empty() && segments[0].first.data != nullptr;
  const int states = velocity ? 1 : 0;
  check("sgd", segments, states);
  if (any_on_cuda(segments)) return cuda::sgd_step(segments, momentum, nesterov);
  run(segments, states, [&]<class T>(T, const OptimSegment& s) {
    return SgdStep<T>{static_cast<T>(momentum), static_cast<T>(s.rate),
                      static_cast<T>(s.weight_decay), velocity, nesterov};
  });
}

void ema_step(std::span<const OptimSegment> segments, double decay) {
  if (dry_run()) return;
  check("ema", segments, 0);
  if (any_on_cuda(segments)) return cuda::ema_step(segments, decay);
  run(segments, 0,
      [&]<class T>(T, const OptimSegment&) { return EmaStep<T>{static_cast<T>(decay)}; });
}

double sum_of_squares(std::span<const View> views) {
  double total = 0.0;
  for (const View& v : views) {
    if (!is_floating(v.dtype) || !v.is_dense())
      throw ShapeError(
          str("sum_of_squares: view ", v.shape, " ", name(v.dtype), " is not dense and floating."));
    if (on_cuda(v)) {
      total += cuda::sum_of_squares(v);
      continue;
    }
    const std::int64_t n = v.size();
    const std::int64_t chunks = (n + kChunk - 1) / kChunk;
    std::vector<double> part(static_cast<std::size_t>(chunks));
    parallel_chunks(chunks, kChunk, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        alignas(64) double value[kBlock];
        double lanes[kLanes] = {};
        for (std::int64_t b = c * kChunk; b < std::min(n, (c + 1) * kChunk); b += kBlock) {
          const std::int64_t count = std::min(kBlock, std::min(n, (c + 1) * kChunk) - b);
          load(v.as<char>() + b * static_cast<std::int64_t>(size_of(v.dtype)), v.dtype, 1, count,
               value);
          std::fill(value + count, value + (count + kLanes - 1) / kLanes * kLanes, 0.0);
          for (std::int64_t i = 0; i < count; i += kLanes)
            for (int l = 0; l < kLanes; ++l) lanes[l] += value[i + l] * value[i + l];
        }
        for (const double lane : lanes) part[static_cast<std::size_t>(c)] += lane;
      }
    });
    for (const double p : part) total += p;
  }
  return total;
}

}  // namespace tessera::kernels
