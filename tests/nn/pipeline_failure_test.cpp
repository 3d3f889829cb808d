// ranks: none
// A stage that fails ends the job of all stages, with one report.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/parallel/runtime.hpp>

namespace tessera {

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
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = str(TESSERA_MPIEXEC, " -n 3 '", self, "' 'job: a block throws' 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> block;
  while (const std::size_t n = fread(block.data(), 1, block.size(), pipe))
    text.append(block.data(), n);
  const int status = pclose(pipe);
  INFO(text);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 74);
  const std::size_t said = text.find("the disk of one stage is full");
  CHECK(said != std::string::npos);
  CHECK(text.find("the disk of one stage is full", said + 1) == std::string::npos);
}

}  // namespace tessera
