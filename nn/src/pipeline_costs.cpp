#include <algorithm>
#include <chrono>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/backward_through.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/profile.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::nn {
namespace {

/// Of a typical core beside its memory: multiply-adds on registers, and streams.
constexpr double kFlopsPerSecond = 100e9;
constexpr double kBytesPerSecond = 10e9;
/// Backward takes the gradients of input and weight where forward takes one product.
constexpr double kPasses = 3.0;

/// Forward and backward of one block; leaves its outputs.
double seconds_of(const PipelineBlock& block,
                  const std::vector<Tensor>& inputs,
                  std::vector<Tensor>& outputs) {
  std::vector<Tensor> leaves, wanted, ends, gradients;
  for (const Tensor& t : inputs) {
    leaves.push_back(is_floating(t.dtype()) ? require_grad(t.detach()) : t);
    if (requires_grad(leaves.back())) wanted.push_back(leaves.back());
  }
  const auto start = std::chrono::steady_clock::now();
  outputs = block.run(leaves);
  for (const Tensor& t : outputs) {
    if (!requires_grad(t)) continue;
    ends.push_back(t);
    gradients.push_back(Tensor::full(t.layout().dual(), 1.0, t.dtype()));
  }
  backward_through(ends, gradients, wanted, true);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<double> planned_costs(const std::function<PlannedModel(const Mesh&)>& make) {
  const DryRun dry(1);
  const NoGrad no_grad;
  PlannedModel planned = make(dry.mesh({}, 0));
  std::vector<double> costs;
  for (const PipelineBlock& block : planned.blocks) {
    Profile profile;
    profile.start();
    planned.inputs = block.run(planned.inputs);
    profile.stop();
    double seconds = 0.0;
    for (const ProfileEvent& event : profile.events()) {
      if (event.kind != ProfileKind::kOp) continue;
      seconds += std::max(event.flops / kFlopsPerSecond,
                          static_cast<double>(event.bytes) / kBytesPerSecond);
    }
    costs.push_back(kPasses * seconds);
  }
  return costs;
}

std::vector<double> measured_costs(const std::function<PlannedModel(const Mesh&)>& make,
                                   int repeats) {
  if (repeats < 1)
    throw UsageError(str("measured_costs: ", repeats, " repeats. Ask for at least 1."));
  std::vector<double> costs;
  if (process().rank == 0) {
    PlannedModel planned = make(Mesh::self());
    for (const PipelineBlock& block : planned.blocks) {
      std::vector<double> seconds;
      seconds.reserve(static_cast<std::size_t>(repeats));
      std::vector<Tensor> outputs;
      for (int i = 0; i < repeats; ++i)
        seconds.push_back(seconds_of(block, planned.inputs, outputs));
      std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
      costs.push_back(seconds[static_cast<std::size_t>(repeats / 2)]);
      for (Module* module : block.modules)
        for (const Parameter& p : module->parameters())
          if (p.requires_grad()) clear_gradient(p.value());
      planned.inputs.clear();
      for (const Tensor& t : outputs) planned.inputs.push_back(t.detach());
    }
  }
  auto count = static_cast<std::int64_t>(costs.size());
  const parallel::Group world = parallel::Group::world();
  parallel::broadcast(world, &count, sizeof count, 0, {.op = "measured_costs"}).wait();
  costs.resize(static_cast<std::size_t>(count));
  parallel::broadcast(world, costs.data(), count * static_cast<std::int64_t>(sizeof(double)), 0,
                      {.op = "measured_costs"})
      .wait();
  return costs;
}

}  // namespace tessera::nn
