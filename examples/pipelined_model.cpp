// ranks: 1 2 4
// A transformer learns one step of diffusion: half of its blocks in each of two stages; in each
// stage the ranks split the grid, attention by heads, layers by channels, and share what weights
// are left whole.
#include <cmath>
#include <cstdio>
#include <tessera/tessera.hpp>
namespace ts = tessera;

int main(int argc, char** argv) {
  ts::Runtime runtime(argc, argv);
  const int stages = runtime.size() % 2 == 0 ? 2 : 1;
  const ts::Mesh mesh = runtime.mesh({{"pipe", stages}, {"h", runtime.size() / stages}});
  const ts::Mesh stage = ts::nn::Pipeline::stage_mesh(mesh);
  const ts::Layout fields = ts::Placement(stage).domain(0, "h").resolve({4, 24, 16, 1});
  const ts::Tensor before = ts::Tensor::from_function(
      fields, [](const ts::Index& i) { return std::sin(0.2617994 * double(i[1]) + double(i[0])); });
  const ts::Tensor after = before * std::exp(-0.2617994);

  ts::models::ViT model({.patch = {4}, .channels = 24, .depth = 4, .heads = 2}, stage);
  ts::nn::place(model, ts::models::tensor_parallel(model, "h"));
  ts::nn::shard(model, {.stage = 3});
  ts::nn::Pipeline pipeline(model, model.pipeline_blocks(), mesh, {.micro_batches = 4});
  ts::optim::AdamW optimizer(model.parameters(), {.lr = 3e-3});
  double loss = 0.0;
  for (int step = 0; step < 40; ++step) {
    loss = pipeline.step(
        before, after, [](const ts::Tensor& y, const ts::Tensor& t) { return ts::mse_loss(y, t); });
    ts::optim::clip_grad_norm(model.parameters(), 1.0);
    optimizer.step();
    if (runtime.rank() == 0) std::printf("step %2d  loss %.5f\n", step, loss);
  }
  return loss < 0.05 ? 0 : 1;
}
