// ranks: none
// A stage that fails ends the job of all stages, with one report.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/parallel/runtime.hpp>

#include "support/run_job.hpp"

namespace tessera::test {

TEST_CASE("job: a block throws", "[.]") {
  std::exit(Runtime::guard([] {
    const Mesh mesh = Mesh::world({{"pipe", process().count}});
    const Mesh stage = nn::Pipeline::stage_mesh(mesh);
    nn::Sequential layers;
    for (int i = 0; i < 4; ++i) layers.add(nn::Linear({.in = 2, .out = 2}, stage));
    nn::initialize(layers, 0);
    std::vector<nn::PipelineBlock> blocks = nn::pipeline_blocks(layers);
    const auto run = blocks[2].run;
    int calls = 0;
    blocks[2].run = [run, &calls](std::span<const Tensor> in) {
      if (++calls == 3) throw IoError("the disk of one stage is full");
      return run(in);
    };
    nn::Pipeline pipeline(layers, blocks, mesh, {.micro_batches = 4});
    const Tensor x = Tensor::zeros(Layout::replicated(stage, {4, 2}));
    pipeline.step(x, x, [](const Tensor& y, const Tensor& t) { return mse_loss(y, t); });
  }));
}

TEST_CASE("pipeline: a stage that fails ends the job with one report") {
  const Outcome job = run_job(3, "a block throws");
  INFO(job.text);
  CHECK(job.code == 74);
  CHECK(job.count("the disk of one stage is full") == 1);
}

}  // namespace tessera::test
