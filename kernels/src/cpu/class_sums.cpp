#include <algorithm>
#include <cmath>
#include <tessera/kernels/class_sums.hpp>
#include <vector>

#include "launch.hpp"
#include "math.hpp"

namespace tessera::kernels {

namespace {

constexpr std::int64_t kSamples = 4096;  // summed up at a time, so that threads change no sum
constexpr int kSums = 4;

/// Loops over samples; views of logits [..., C] beside targets [...].
struct Samples {
  const View& logits;
  const View& target;
  LoopNest nest;
  std::int64_t classes = 0;
  std::int64_t count = 0;

  Samples(const char* op, const View& x, const View& t, const View* y) : logits(x), target(t) {
    Shape samples = x.shape;
    if (x.dims() > 0) samples.resize(x.dims() - 1);
    if (x.dims() < 1 || !(t.shape == samples) || (y != nullptr && !(y->shape == x.shape)))
      throw ShapeError(str(op, ": logits ", x.shape, " and targets ", t.shape, "."));
    if (t.dtype != DType::kInt32 && t.dtype != DType::kInt64)
      throw DTypeError(str(op, ": targets are ", name(t.dtype), ", not i32 or i64."));
    const auto lead = [&](View v) {
      v.shape.resize(samples.size());
      v.strides.resize(samples.size());
      return v;
    };
    const View views[] = {lead(x), t, y != nullptr ? lead(*y) : lead(x)};
    const View* const pointers[] = {&views[0], &views[1], &views[2]};
    classes = x.shape.back();
    nest = make_loop_nest(op, {pointers, 3}, false);
    count = classes > 0 ? nest.total : 0;
  }
  /// -1: no class.
  std::int64_t target_of(std::int64_t sample) const {
    const std::int64_t at = nest_offset(nest, 1, sample);
    const std::int64_t t = target.dtype == DType::kInt64 ? target.as<std::int64_t>()[at]
                                                         : target.as<std::int32_t>()[at];
    return t >= 0 && t < classes ? t : -1;
  }
  char* row(const View& v, int k, std::int64_t sample) const {
    return v.as<char>() +
           nest_offset(nest, k, sample) * static_cast<std::int64_t>(size_of(v.dtype));
  }
};

/// Some samples side by side, so that each step is one vector instruction: [class][lane]. Lanes
/// beyond the last sample have no class.
template <class T>
struct Lanes {
  explicit Lanes(const Samples& of)
      : samples(of),
        row(static_cast<std::size_t>(of.classes)),
        p(row.size() * kLanes),
        d(row.size() * kLanes) {}

  /// Softmax of samples first, first + 1, ... below `end`.
  void take(std::int64_t first, std::int64_t end) {
    const std::int64_t stride = samples.logits.strides[samples.logits.dims() - 1];
    const std::size_t classes = row.size();
    for (int l = 0; l < kLanes; ++l) {
      const std::int64_t s = std::min(first + l, end - 1);
      target[l] = first + l < end ? samples.target_of(s) : -1;
      valid[l] = target[l] < 0 ? T(0) : T(1);
      load(samples.row(samples.logits, 0, s), samples.logits.dtype, stride, samples.classes,
           row.data());
      for (std::size_t c = 0; c < classes; ++c)
        p[c * kLanes + static_cast<std::size_t>(l)] = row[c];
      logit[l] = row[static_cast<std::size_t>(std::max<std::int64_t>(target[l], 0))];
    }
    T most[kLanes];
    std::copy_n(p.begin(), kLanes, most);
    for (std::size_t c = 1; c < classes; ++c) {
      const T* const x = p.data() + c * kLanes;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) most[l] = x[l] > most[l] ? x[l] : most[l];
    }
    T sum[kLanes] = {};
    for (std::size_t c = 0; c < classes; ++c) {
      T* const x = p.data() + c * kLanes;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) {
        x[l] = m::exp(x[l] - most[l]);
        sum[l] += x[l];
      }
    }
    for (std::size_t c = 0; c < classes; ++c) {
      T* const x = p.data() + c * kLanes;
#pragma omp simd
      for (int l = 0; l < kLanes; ++l) x[l] /= sum[l];
    }
    for (int l = 0; l < kLanes; ++l) entropy[l] = most[l] + std::log(sum[l]) - logit[l];
  }
  T of_target(int l) const {
    return p[static_cast<std::size_t>(target[l]) * kLanes + static_cast<std::size_t>(l)];
  }

  const Samples& samples;
  std::vector<T> row;
  std::vector<T> p;
  std::vector<T> d;
  std::int64_t target[kLanes];
  T valid[kLanes];
  T logit[kLanes];
  T entropy[kLanes];
};

template <class F>
void in_compute_type(const char* op, DType dtype, const F& f) {
  if (dtype == DType::kFloat64) {
    f.template operator()<double>();
  } else if (is_floating(dtype)) {
    f.template operator()<float>();
  } else {
    throw DTypeError(str(op, ": ", name(dtype), " is not floating."));
  }
}

}  // namespace

void class_sums(const View& logits, const View& target, const View& sums) {
  const Samples samples("class_sums", logits, target, nullptr);
  const auto classes = static_cast<std::size_t>(samples.classes);
  const std::int64_t blocks = (samples.count + kSamples - 1) / kSamples;
  std::vector<double> partial(kSums * classes * static_cast<std::size_t>(blocks), 0.0);
  in_compute_type("class_sums", logits.dtype, [&]<class T>() {
    parallel_for(blocks, [&](std::int64_t b) {
      double* const all = partial.data() + static_cast<std::size_t>(b) * kSums * classes;
      double* const hit = all + classes;
      double* const there = hit + classes;
      double* const entropy = there + classes;
      std::vector<double> lane_sums(classes * kLanes, 0.0);
      Lanes<T> lanes(samples);
      const std::int64_t end = std::min(samples.count, (b + 1) * kSamples);
      for (std::int64_t s = b * kSamples; s < end; s += kLanes) {
        lanes.take(s, end);
        for (std::size_t c = 0; c < classes; ++c) {
          const T* const p = lanes.p.data() + c * kLanes;
          double* const to = lane_sums.data() + c * kLanes;
#pragma omp simd
          for (int l = 0; l < kLanes; ++l) to[l] += static_cast<double>(p[l] * lanes.valid[l]);
        }
        for (int l = 0; l < kLanes; ++l) {
          const std::int64_t t = lanes.target[l];
          if (t < 0) continue;
          hit[t] += static_cast<double>(lanes.of_target(l));
          there[t] += 1.0;
          entropy[t] += static_cast<double>(lanes.entropy[l]);
        }
      }
      for (std::size_t c = 0; c < classes; ++c)
        for (std::size_t l = 0; l < kLanes; ++l) all[c] += lane_sums[c * kLanes + l];
    });
  });
  for (std::size_t k = 0; k < kSums; ++k) {
    for (std::size_t c = 0; c < classes; ++c) {
      double sum = 0.0;
      for (std::size_t b = 0; b < static_cast<std::size_t>(blocks); ++b)
        sum += partial[(b * kSums + k) * classes + c];
      sums.as<double>()[static_cast<std::int64_t>(k) * sums.strides[0] +
                        static_cast<std::int64_t>(c) * sums.strides[1]] = sum;
    }
  }
}

void class_sums_grad(const View& logits, const View& target, const View& g, const View& dx) {
  const Samples samples("class_sums_grad", logits, target, &dx);
  const auto classes = static_cast<std::size_t>(samples.classes);
  in_compute_type("class_sums_grad", logits.dtype, [&]<class T>() {
    const auto row_of = [&](std::int64_t k) {
      std::vector<T> values;
      for (std::int64_t c = 0; c < samples.classes; ++c)
        values.push_back(static_cast<T>(g.as<double>()[k * g.strides[0] + c * g.strides[1]]));
      return values;
    };
    const std::vector<T> all = row_of(0), hit = row_of(1), entropy = row_of(3);
    const std::int64_t blocks = (samples.count + kSamples - 1) / kSamples;
    parallel_for(blocks, [&](std::int64_t b) {
      Lanes<T> lanes(samples);
      const std::int64_t end = std::min(samples.count, (b + 1) * kSamples);
      for (std::int64_t s = b * kSamples; s < end; s += kLanes) {
        lanes.take(s, end);
        T shift[kLanes] = {};  // what is taken off each class
        for (std::size_t c = 0; c < classes; ++c) {
          const T* const p = lanes.p.data() + c * kLanes;
#pragma omp simd
          for (int l = 0; l < kLanes; ++l) shift[l] += all[c] * p[l];
        }
        T own[kLanes] = {};  // what the target gets beside
        for (int l = 0; l < kLanes; ++l) {
          if (lanes.target[l] < 0) continue;
          const auto t = static_cast<std::size_t>(lanes.target[l]);
          const T of_hit = hit[t] * lanes.of_target(l);
          shift[l] += of_hit - entropy[t];
          own[l] = of_hit - entropy[t];
        }
        for (std::size_t c = 0; c < classes; ++c) {
          const T* const p = lanes.p.data() + c * kLanes;
          T* const d = lanes.d.data() + c * kLanes;
#pragma omp simd
          for (int l = 0; l < kLanes; ++l) d[l] = lanes.valid[l] * p[l] * (all[c] - shift[l]);
        }
        for (int l = 0; l < kLanes && s + l < end; ++l) {
          const auto lane = static_cast<std::size_t>(l);
          for (std::size_t c = 0; c < classes; ++c) lanes.row[c] = lanes.d[c * kLanes + lane];
          if (lanes.target[l] >= 0) lanes.row[static_cast<std::size_t>(lanes.target[l])] += own[l];
          store(lanes.row.data(), samples.classes, samples.row(dx, 2, s + l), dx.dtype,
                dx.strides[dx.dims() - 1]);
        }
      }
    });
  });
}

}  // namespace tessera::kernels
