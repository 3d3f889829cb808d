#pragma once

// One convolution on dense channels-last f32 tensors beside oneDNN's: what the programs that
// compare convolutions share.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <dnnl.hpp>
#include <functional>
#include <optional>
#include <string>
#include <tessera/kernels/conv.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "measure.hpp"

namespace tessera::bench {

/// A convolution; padding keeps the size where the stride is 1, none where it is the kernel.
struct ConvCase {
  const char* name;
  Dims domain;
  std::int64_t batch, in, out, kernel, stride, groups;
};

inline double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Medians of both after a warm-up, measured in turns.
inline std::pair<double, double> compare(const std::function<void()>& a,
                                         const std::function<void()>& b,
                                         double flops) {
  const int inner = static_cast<int>(std::clamp(2e8 / flops, 1.0, 1000.0));
  std::vector<double> ta, tb;
  for (int i = 0; i < 8; ++i) {
    const auto repeat = [inner](const std::function<void()>& f) {
      return seconds([&] {
               for (int k = 0; k < inner; ++k) f();
             }) /
             inner;
    };
    const double x = repeat(a), y = repeat(b);
    if (i == 0) continue;
    ta.push_back(x);
    tb.push_back(y);
  }
  return {median(ta), median(tb)};
}

inline std::vector<float> random_values(std::int64_t count) {
  std::vector<float> v(static_cast<std::size_t>(count));
  std::uint32_t s = 1;
  for (float& x : v)
    x = static_cast<float>((s = s * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
  return v;
}

inline Piece piece(std::vector<float>& v, const Shape& shape) {
  return {View::dense(v.data(), DType::kFloat32, shape), Box::whole(shape), shape};
}

/// oneDNN on user memory; weights of the library's own format.
class OneDnnConv {
 public:
  using Tag = dnnl::memory::format_tag;

  OneDnnConv(const ConvCase& c,
             const Shape& out_domain,
             std::vector<float>& x,
             std::vector<float>& y)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const auto dims = static_cast<std::size_t>(c.domain.size());
    const std::int64_t pad = c.stride == c.kernel ? 0 : c.kernel / 2;
    dnnl::memory::dims xs{c.batch, c.in}, ys{c.batch, c.out}, ws, strides(dims, c.stride),
        dilation(dims, 0), lo(dims, pad), hi;
    if (c.groups > 1) ws.push_back(c.groups);
    ws.push_back(c.out / c.groups);
    ws.push_back(c.in / c.groups);
    for (int d = 0; d < c.domain.size(); ++d) {
      xs.push_back(c.domain[d]);
      ys.push_back(out_domain[d]);
      ws.push_back(c.kernel);
      hi.push_back((out_domain[d] - 1) * c.stride + c.kernel - c.domain[d] - pad);
    }
    const Tag last = dims == 2 ? Tag::nhwc : Tag::ndhwc;
    const auto f32 = dnnl::memory::data_type::f32;
    const dnnl::memory::desc xd(xs, f32, last), yd(ys, f32, last), wd(ws, f32, Tag::any);
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const dnnl::convolution_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, algorithm, xd, wd, yd, strides, dilation, lo, hi},
        engine_);
    const dnnl::convolution_backward_data::primitive_desc input(
        {algorithm, xd, wd, yd, strides, dilation, lo, hi}, engine_, forward);
    const dnnl::convolution_backward_weights::primitive_desc weight(
        {algorithm, xd, wd, yd, strides, dilation, lo, hi}, engine_, forward);
    forward_ = dnnl::convolution_forward(forward);
    input_ = dnnl::convolution_backward_data(input);
    weight_ = dnnl::convolution_backward_weights(weight);
    const dnnl::memory mx(xd, engine_, x.data()), my(yd, engine_, y.data());
    const auto filled = [&](const dnnl::memory::desc& desc) {
      dnnl::memory m(desc, engine_);
      std::fill_n(static_cast<float*>(m.get_data_handle()), desc.get_size() / 4, 0.01f);
      return m;
    };
    forward_args_ = {
        {DNNL_ARG_SRC, mx}, {DNNL_ARG_WEIGHTS, filled(forward.weights_desc())}, {DNNL_ARG_DST, my}};
    input_args_ = {{DNNL_ARG_DIFF_DST, my},
                   {DNNL_ARG_WEIGHTS, filled(input.weights_desc())},
                   {DNNL_ARG_DIFF_SRC, mx}};
    weight_args_ = {{DNNL_ARG_SRC, mx},
                    {DNNL_ARG_DIFF_DST, my},
                    {DNNL_ARG_DIFF_WEIGHTS, filled(weight.diff_weights_desc())}};
  }

  void forward() { run(forward_, forward_args_); }
  void input_grad() { run(input_, input_args_); }
  void weight_grad() { run(weight_, weight_args_); }

 private:
  void run(const dnnl::primitive& p, const std::unordered_map<int, dnnl::memory>& args) {
    p.execute(stream_, args);
    stream_.wait();
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive forward_, input_, weight_;
  std::unordered_map<int, dnnl::memory> forward_args_, input_args_, weight_args_;
};

/// GFLOP/s of Tessera and of oneDNN.
struct ConvRate {
  double ours = 0, peer = 0;
};
struct ConvRates {
  ConvRate forward, input_grad, weight_grad;
};

inline ConvRates measure(const ConvCase& c) {
  const int dims = c.domain.size();
  const std::int64_t pad = c.stride == c.kernel ? 0 : c.kernel / 2;
  const tessera::kernels::ConvGeometry g{Dims::filled(dims, c.kernel), Dims::filled(dims, c.stride),
                                         Dims::filled(dims, pad), Dims::filled(dims, 1)};
  Shape x_shape{c.batch}, y_shape{c.batch}, w_shape{c.out}, out_domain;
  double flops = 2.0 * static_cast<double>(c.batch * c.out * c.in / c.groups);
  for (const std::int64_t n : c.domain) {
    x_shape.push_back(n);
    out_domain.push_back((n + 2 * pad - c.kernel) / c.stride + 1);
    y_shape.push_back(out_domain.back());
    w_shape.push_back(c.kernel);
    flops *= static_cast<double>(out_domain.back() * c.kernel);
  }
  x_shape.push_back(c.in);
  y_shape.push_back(c.out);
  w_shape.push_back(c.in / c.groups);
  std::vector<float> x = random_values(x_shape.product()), y = random_values(y_shape.product()),
                     w = random_values(w_shape.product()), dw(w.size());
  const Piece px = piece(x, x_shape), py = piece(y, y_shape);
  const View vw = View::dense(w.data(), DType::kFloat32, w_shape),
             vdw = View::dense(dw.data(), DType::kFloat32, w_shape);
  OneDnnConv peer(c, out_domain, x, y);
  const auto rate = [flops](const std::function<void()>& ours,
                            const std::function<void()>& theirs) {
    const auto [a, b] = compare(ours, theirs, flops);
    return ConvRate{flops / a * 1e-9, flops / b * 1e-9};
  };
  ConvRates rates;
  rates.forward = rate([&] { tessera::kernels::conv_forward(g, px, vw, std::nullopt, py); },
                       [&] { peer.forward(); });
  rates.input_grad =
      rate([&] { tessera::kernels::conv_input_grad(g, py, vw, px); }, [&] { peer.input_grad(); });
  rates.weight_grad = rate([&] { tessera::kernels::conv_weight_grad(g, px, py, vdw, false); },
                           [&] { peer.weight_grad(); });
  return rates;
}

/// Prints the rates of cases whose name contains `wanted`; returns the geometric mean of ours to
/// oneDNN's, their means, and how many were measured.
struct ConvSummary {
  double ratio = 0, ours = 0, peer = 0;
  int measured = 0;
};

template <class Cases>
ConvSummary print_rates(const Cases& cases, const std::string& wanted) {
  ConvSummary sum;
  double log_sum = 0;
  std::printf("GFLOP/s: tessera / oneDNN\n%-30s%18s%18s%18s\n", "", "forward", "input gradient",
              "weight gradient");
  for (const ConvCase& c : cases) {
    if (std::string(c.name).find(wanted) == std::string::npos) continue;
    const ConvRates rates = measure(c);
    std::printf("%-30s", c.name);
    for (const ConvRate& r : {rates.forward, rates.input_grad, rates.weight_grad}) {
      std::printf("%9.0f / %-6.0f", r.ours, r.peer);
      log_sum += std::log(r.ours / r.peer);
      sum.ours += r.ours;
      sum.peer += r.peer;
      ++sum.measured;
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  if (sum.measured > 0) {
    sum.ratio = std::exp(log_sum / sum.measured);
    sum.ours /= sum.measured;
    sum.peer /= sum.measured;
  }
  return sum;
}

}  // namespace tessera::bench
