#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tessera/nn/module.hpp>
#include <tessera/parallel/pipeline_schedule.hpp>
#include <vector>

namespace tessera::nn {

/// A stretch of a model, from tensors to tensors: what the next block needs, and what a later one
/// does (a skip connection), travels through every block between.
struct PipelineBlock {
  std::vector<Module*> modules;  ///< whose parameters, and those below, it reads
  RecomputedFunction run;
};

class Sequential;

/// A layer as a block: it changes the first tensor and hands the others on.
PipelineBlock pipeline_block(Layer& layer);
/// The layers of a list, one block each.
std::vector<PipelineBlock> pipeline_blocks(Sequential& layers);

/// Options of Pipeline.
struct PipelineOptions {
  std::string axis = "pipe";  ///< mesh axis of the stages
  int micro_batches = 1;
  parallel::PipelineSchedule schedule = parallel::PipelineSchedule::kOneForwardOneBackward;
  int chunks = 1;  ///< of each stage; more than one for kInterleaved
  /// One per block (planned_costs(), measured_costs()), the same on all processes; the largest part
  /// of the cut is then the smallest possible. Empty: all blocks cost the same.
  std::vector<double> costs = {};
  /// Parts keep their inputs alone and are computed again in backward (nn::recompute does so within
  /// blocks).
  bool recompute = false;
};

/// From the last block's first tensor and the target to a scalar: a mean over samples.
using PipelineLoss = std::function<Tensor(const Tensor& output, const Tensor& target)>;

/// A model whose blocks lie in stages along a mesh axis, each on its own slice of the mesh, split
/// there as ever over samples and the domain. A rank sends its own part of what leaves a stage to
/// the rank at the same place in the next one, and nothing else.
///
/// ```cpp
/// const Mesh mesh = runtime.mesh({{"pipe", 2}, {"data", 2}, {"h", 2}});
/// const Mesh stage = nn::Pipeline::stage_mesh(mesh);
/// const Placement fields = Placement(stage).batch("data").domain(0, "h");
/// models::ViT model(options, stage);
/// nn::Pipeline pipeline(model, model.pipeline_blocks(), mesh, {.micro_batches = 4});
/// optim::AdamW optimizer(model.parameters());
/// const double loss = pipeline.step(
///     input, target, [](const Tensor& y, const Tensor& t) { return mse_loss(y, t); });
/// optim::clip_grad_norm(model.parameters(), 1.0);
/// optimizer.step();
/// ```
///
/// A step gives the gradients of one rank that works through the same micro-batches, random draws
/// included. Every process describes the whole model, with the names and first values of ever, but
/// holds the values of its stage alone (Parameter::here()). Checkpoints hold the whole model, and
/// load with other stages or none. A pipeline of one stage is no special case.
class Pipeline {
 public:
  /// The slice of `mesh` that is this process's stage: the mesh to make the model and its inputs
  /// on.
  static Mesh stage_mesh(const Mesh& mesh, std::string_view axis = "pipe");

  /// `blocks` in the order of work. Place parameters, and set their types, before. The model has to
  /// stay where it is. Throws UsageError where blocks are fewer than parts, the schedule cannot do
  /// the sizes, or a parameter is in no block, in blocks of several stages, or not on stage_mesh().
  Pipeline(Module& model,
           std::vector<PipelineBlock> blocks,
           const Mesh& mesh,
           const PipelineOptions& options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;

  /// Forward and backward of all micro-batches, each a run of samples of the whole batch (given
  /// another layout where samples are split). Gradients are added to those there are, of the mean
  /// of the losses; returns that mean, on every process. `input` counts in the first stage only and
  /// `target` in the last, but every stage gives a tensor of the same shape and layout on its mesh
  /// (Tensor::empty will do). Throws ShapeError unless micro-batches divide the samples.
  double step(const Tensor& input, const Tensor& target, const PipelineLoss& loss);
  /// The same with one input and one target per micro-batch: nothing has to move.
  double step(std::span<const Tensor> inputs,
              std::span<const Tensor> targets,
              const PipelineLoss& loss);
  /// The loss alone, without gradients.
  double evaluate(const Tensor& input, const Tensor& target, const PipelineLoss& loss);
  double evaluate(std::span<const Tensor> inputs,
                  std::span<const Tensor> targets,
                  const PipelineLoss& loss);

  int stage() const;
  /// Part p, which lies in stage p % stages, holds blocks bounds()[p] up to bounds()[p + 1].
  const std::vector<int>& bounds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A model to plan: its blocks, and what the first one gets (values do not matter).
struct PlannedModel {
  std::unique_ptr<Module> model;
  std::vector<PipelineBlock> blocks;
  std::vector<Tensor> inputs;
};

/// Seconds that each block's forward and backward pass take where all runs at the speed of a
/// typical core, from the operations and bytes of its ops: a DryRun on one rank, so nothing is
/// computed and the same everywhere. Layouts divide all blocks alike, so any input of the right
/// proportions will do.
std::vector<double> planned_costs(const std::function<PlannedModel(const Mesh&)>& make);

/// Seconds that each block's forward and backward pass took: the median of `repeats` times of
/// process 0 alone, told to all. Needs the memory of the whole model and one block's activations.
std::vector<double> measured_costs(const std::function<PlannedModel(const Mesh&)>& make,
                                   int repeats = 3);

}  // namespace tessera::nn
