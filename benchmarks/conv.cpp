// Convolutions on dense channels-last f32 tensors, GFLOP/s of forward, input gradient and weight
// gradient, beside oneDNN (channels-last activations, weights in the format it likes best, packed
// outside the timing). Usage: bench_conv [threads] [case substring]
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/conv.hpp>
#include <vector>

namespace {

using tessera::Box;
using tessera::Dims;
using tessera::DType;
using tessera::Piece;
using tessera::Shape;
using tessera::View;

struct Case {
  const char* name;
  Dims domain;
  std::int64_t batch, in, out, kernel, stride, groups;
};

const Case kCases[] = {
    {"2d 3x3 64->64 256^2", {256, 256}, 1, 64, 64, 3, 1, 1},
    {"2d 3x3 128->128 64^2", {64, 64}, 1, 128, 128, 3, 1, 1},
    {"2d 3x3 32->32 8^2 b4", {8, 8}, 4, 32, 32, 3, 1, 1},
    {"2d 1x1 256->256 64^2", {64, 64}, 1, 256, 256, 1, 1, 1},
    {"2d 3x3/2 64->128 128^2", {128, 128}, 1, 64, 128, 3, 2, 1},
    {"2d 2x2/2 64->128 128^2", {128, 128}, 1, 64, 128, 2, 2, 1},
    {"2d 7x7/2 3->64 224^2", {224, 224}, 1, 3, 64, 7, 2, 1},
    {"2d 16x16/16 3->384 224^2", {224, 224}, 1, 3, 384, 16, 16, 1},
    {"3d 3x3x3 16->16 96^3", {96, 96, 96}, 1, 16, 16, 3, 1, 1},
    {"3d 3x3x3 32->32 64^3", {64, 64, 64}, 1, 32, 32, 3, 1, 1},
    {"3d 3x3x3 64->64 32^3", {32, 32, 32}, 1, 64, 64, 3, 1, 1},
    {"3d 3x3x3 128->128 16^3", {16, 16, 16}, 1, 128, 128, 3, 1, 1},
    {"3d 3x3x3 256->256 8^3", {8, 8, 8}, 1, 256, 256, 3, 1, 1},
    {"3d 3x3x3 48->48 48^3", {48, 48, 48}, 1, 48, 48, 3, 1, 1},
    {"3d 3x3x3 1->16 96^3", {96, 96, 96}, 1, 1, 16, 3, 1, 1},
    {"3d 1x1x1 16->1 96^3", {96, 96, 96}, 1, 16, 1, 1, 1, 1},
    {"2d depthwise 64 256^2", {256, 256}, 1, 64, 64, 3, 1, 64},
    {"2d 3x3 32 groups of 4, 64^2", {64, 64}, 1, 128, 128, 3, 1, 32},
};

double seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Medians of both after a warm-up, measured in turns.
std::pair<double, double> compare(const std::function<void()>& a,
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
  std::sort(ta.begin(), ta.end());
  std::sort(tb.begin(), tb.end());
  return {ta[ta.size() / 2], tb[tb.size() / 2]};
}

std::vector<float> random_values(std::int64_t count) {
  std::vector<float> v(static_cast<std::size_t>(count));
  std::uint32_t s = 1;
  for (float& x : v)
    x = static_cast<float>((s = s * 1664525u + 1013904223u) >> 8) / 8388608.0f - 1.0f;
  return v;
}

Piece piece(std::vector<float>& v, const Shape& shape) {
  return {View::dense(v.data(), DType::kFloat32, shape), Box::whole(shape), shape};
}

/// oneDNN on user memory; weights of the library's own format.
class Peer {
 public:
  using Tag = dnnl::memory::format_tag;

  Peer(const Case& c, const Shape& out_domain, std::vector<float>& x, std::vector<float>& y)
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

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string wanted = argc > 2 ? argv[2] : "";
  tessera::set_thread_count(threads);
  omp_set_num_threads(threads);
  double log_sum = 0;
  int measured = 0;
  double ours_total = 0, peer_total = 0;
  std::printf("%d thread(s), GFLOP/s: tessera / oneDNN\n%-30s%18s%18s%18s\n", threads, "",
              "forward", "input gradient", "weight gradient");
  for (const Case& c : kCases) {
    if (std::string(c.name).find(wanted) == std::string::npos) continue;
    const int dims = c.domain.size();
    const std::int64_t pad = c.stride == c.kernel ? 0 : c.kernel / 2;
    const tessera::kernels::ConvGeometry g{Dims::filled(dims, c.kernel),
                                           Dims::filled(dims, c.stride), Dims::filled(dims, pad),
                                           Dims::filled(dims, 1)};
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
    Peer peer(c, out_domain, x, y);
    std::printf("%-30s", c.name);
    const auto report = [&](const std::function<void()>& ours,
                            const std::function<void()>& theirs) {
      const auto [a, b] = compare(ours, theirs, flops);
      std::printf("%9.0f / %-6.0f", flops / a * 1e-9, flops / b * 1e-9);
      std::fflush(stdout);
      log_sum += std::log(b / a);
      ours_total += flops / a * 1e-9;
      peer_total += flops / b * 1e-9;
      ++measured;
    };
    report([&] { tessera::kernels::conv_forward(g, px, vw, std::nullopt, py); },
           [&] { peer.forward(); });
    report([&] { tessera::kernels::conv_input_grad(g, py, vw, px); }, [&] { peer.input_grad(); });
    report([&] { tessera::kernels::conv_weight_grad(g, px, py, vdw, false); },
           [&] { peer.weight_grad(); });
    std::printf("\n");
  }
  if (measured == 0) return 1;
  nlohmann::json line;
  line["benchmark"] = "conv";
  line["value"] = ours_total / measured;
  line["unit"] = "GFLOP/s, mean";
  line["peer"] = {{"name", "oneDNN"}, {"value", peer_total / measured}};
  line["ratio"] = std::exp(log_sum / measured);
  std::printf("%s\n", line.dump().c_str());
}
