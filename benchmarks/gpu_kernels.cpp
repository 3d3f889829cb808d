// Bandwidth of the GPU's kernels on 64 Mi f32 elements beside a device-to-device copy: GB/s of the
// bytes that must move (each input read once, each output written once), and TFLOP/s of products.
// Usage: bench_gpu_kernels [part of a name]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <tessera/core/error.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/gemm.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <tessera/kernels/index.hpp>
#include <tessera/kernels/optim.hpp>
#include <tessera/kernels/random.hpp>
#include <tessera/kernels/reduce.hpp>
#include <vector>

namespace {

using namespace tessera;
using kernels::BinaryKind;
using kernels::ReduceKind;
using kernels::UnaryKind;

constexpr Device kGpu{Device::kCuda, 0};
constexpr std::int64_t kElements = std::int64_t{1} << 26;

struct Memory {
  Ref<Buffer> buffer;
  View view;
  explicit Memory(const Shape& shape, DType dtype = DType::kFloat32)
      : buffer(MemoryPool::of(kGpu).allocate(static_cast<std::size_t>(shape.product()) *
                                             size_of(dtype))),
        view(View::dense(buffer->data(), dtype, shape, kGpu)) {
    if (is_floating(dtype)) {
      kernels::random_uniform({7, static_cast<std::uint64_t>(shape.product())}, -1, 1,
                              {view, Box::whole(shape), shape});
    } else {
      kernels::fill(view, 0.0);
    }
  }
  View as(const Shape& shape) const { return View::dense(buffer->data(), view.dtype, shape, kGpu); }
};

/// Seconds of one call: median of 7 rounds of 5, after two.
double seconds(const std::function<void()>& f) {
  const Stream& stream = Stream::current(kGpu);
  for (int i = 0; i < 2; ++i) f();
  stream.synchronize();
  std::vector<double> times;
  for (int round = 0; round < 7; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i) f();
    stream.synchronize();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count() / 5);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Result {
  double add = 0;
  double copy = 0;
};

Result run(const char* filter) {
  const Shape field{4, 512, 128, 256};
  const Shape rows{kElements / 64, 64};
  const Memory a(field), b(field), y(field);
  const Memory bias({256}), gamma({256}), beta({256});
  const Memory moments({4, 32, 3}, DType::kFloat64), sums({4, 32, 2}, DType::kFloat64);
  const Memory slope({256}), shift({256}), scalar({1, 1, 1, 1}), column({kElements / 64, 1});
  const Memory row_moments({kElements / 64, 1, 3}, DType::kFloat64);
  const kernels::GroupNormOptions groups{32, 1e-5, true, kernels::NormActivation::kSilu};
  const kernels::GroupNormOptions layer{1, 1e-5, true, kernels::NormActivation::kNone};
  const View bias_view = kernels::broadcast_to(bias.view, field);
  const View row_slope = View::dense(slope.buffer->data(), DType::kFloat32, {64}, kGpu);
  const View none;
  Result result;
  std::printf("%-28s %10s %10s\n", "", "ms", "GB/s");
  // `passes`: reads and writes of the whole field.
  const auto bandwidth = [&](const char* name, double passes, const std::function<void()>& f) {
    if (std::strstr(name, filter) == nullptr) return 0.0;
    const double time = seconds(f);
    const double rate = passes * 4.0 * static_cast<double>(kElements) / time / 1e9;
    std::printf("%-28s %10.3f %10.0f\n", name, time * 1e3, rate);
    return rate;
  };
  result.copy = bandwidth("copy", 2, [&] { kernels::copy(a.view, y.view); });
  bandwidth("copy transposed", 2, [&] {
    kernels::copy(kernels::permute(a.as({512, kElements / 512}), {1, 0}),
                  y.as({kElements / 512, 512}));
  });
  bandwidth("fill", 1, [&] { kernels::fill(y.view, 1.0); });
  result.add =
      bandwidth("add", 3, [&] { kernels::binary(BinaryKind::kAdd, a.view, b.view, y.view); });
  bandwidth("add bias", 2, [&] { kernels::binary(BinaryKind::kAdd, a.view, bias_view, y.view); });
  bandwidth("silu", 2, [&] { kernels::unary(UnaryKind::kSilu, 0, 0, a.view, y.view); });
  bandwidth("silu gradient", 3,
            [&] { kernels::mul_unary(UnaryKind::kSilu, 1, 0, b.view, a.view, y.view); });
  bandwidth("gelu", 2, [&] { kernels::unary(UnaryKind::kGelu, 0, 0, a.view, y.view); });
  bandwidth("dropout", 2, [&] {
    kernels::dropout({1, 2}, 0.1, a.view, {y.view, Box::whole(field), field});
  });
  bandwidth("sum to a scalar", 1, [&] { kernels::reduce(ReduceKind::kSum, a.view, scalar.view); });
  bandwidth("sum of rows of 64", 1,
            [&] { kernels::reduce(ReduceKind::kSum, a.as(rows), column.view); });
  bandwidth("sum over rows, 256 columns", 1, [&] {
    kernels::reduce(ReduceKind::kSum, a.as({kElements / 256, 256}), slope.as({1, 256}));
  });
  bandwidth("group moments", 1, [&] { kernels::group_moments(a.view, groups, moments.view); });
  bandwidth("group norm, silu", 2, [&] {
    kernels::group_norm(a.view, moments.view, gamma.view, beta.view, groups, y.view);
  });
  bandwidth("group norm sums", 2, [&] {
    kernels::group_norm_sums(a.view, b.view, moments.view, gamma.view, beta.view, groups, sums.view,
                             slope.view, shift.view);
  });
  bandwidth("group norm input gradient", 3, [&] {
    kernels::group_norm_input_grad(a.view, b.view, moments.view, gamma.view, beta.view, sums.view,
                                   groups, y.view);
  });
  bandwidth("layer moments, rows of 64", 1,
            [&] { kernels::group_moments(a.as(rows), layer, row_moments.view); });
  bandwidth("layer norm, rows of 64", 2, [&] {
    kernels::group_norm(a.as(rows), row_moments.view, row_slope, none, layer, y.as(rows));
  });
  const kernels::OptimSegment segment{a.view, b.view, y.view, y.view, 0.0, 0.0};
  bandwidth("adamw", 7, [&] { kernels::adamw_step({&segment, 1}, {}); });

  const Memory index({kElements / 64}, DType::kInt64);
  bandwidth("take rows of 64, one row", 1,
            [&] { kernels::take_rows(a.as(rows), index.view, 0, y.as(rows)); });

  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    const std::int64_t n = 4096;
    const Memory left({n, n}, dtype), right({n, n}, dtype), product({n, n}, dtype);
    const double time = seconds([&] { kernels::gemm(1, left.view, right.view, 0, product.view); });
    std::printf("product 4096^3 %-13s %10.3f %10.1f TFLOP/s\n", name(dtype), time * 1e3,
                2.0 * static_cast<double>(n * n * n) / time / 1e12);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Result result = run(argc > 1 ? argv[1] : "");
    std::printf(
        "{\"benchmark\": \"gpu_kernels\", \"value\": %.0f, \"unit\": \"GB/s\", \"peer\": "
        "\"device copy\", \"ratio\": %.3f}\n",
        result.add, result.copy > 0 ? result.add / result.copy : 0.0);
  } catch (const DeviceError& e) {
    std::printf(
        "skipped: %s\n{\"benchmark\": \"gpu_kernels\", \"value\": null, \"unit\": \"GB/s\", "
        "\"peer\": null, \"ratio\": null}\n",
        e.what());
  }
}
