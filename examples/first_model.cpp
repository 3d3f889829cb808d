// ranks: 1
// A small convolutional network learns one step of diffusion on a periodic grid, on one rank.
#include <cmath>
#include <cstdio>
#include <tessera/tessera.hpp>
namespace ts = tessera;

struct Net : ts::nn::Module {
  ts::nn::Conv in, out;
  explicit Net(const ts::Mesh& mesh)
      : in({.dims = 2, .in = 1, .out = 16, .edges = {ts::EdgeRule::kCircular}}, mesh),
        out({.dims = 2, .in = 16, .out = 1, .edges = {ts::EdgeRule::kCircular}}, mesh) {
    ts::nn::initialize(*this, /*seed=*/1);
  }
  void fields(ts::nn::Fields& f) override { f("in", in), f("out", out); }
  ts::Tensor operator()(const ts::Tensor& x) const { return out(ts::silu(in(x))); }
};

int main(int argc, char** argv) {
  ts::Runtime runtime(argc, argv);
  const ts::Mesh mesh = runtime.mesh({});
  const ts::Layout fields = ts::Placement(mesh).resolve({2, 90, 60, 1});
  const auto wave = [](const ts::Index& i) {
    return std::sin(0.4188790 * double(i[1]) + double(i[0]));
  };
  const ts::Tensor before = ts::Tensor::from_function(fields, wave);
  const ts::Tensor after = before * std::exp(-0.4188790 * 0.4188790);
  Net model(mesh);
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  ts::Tensor loss;
  for (int step = 0; step < 60; ++step) {
    loss = ts::mse_loss(model(before), after);
    ts::backward(loss);
    optimizer.step();
    if (runtime.rank() == 0) std::printf("step %2d  loss %.5f\n", step, loss.item());
  }
  return loss.item() < 0.01 ? 0 : 1;
}
