#include <algorithm>
#include <map>
#include <optional>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/backward_through.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/pipeline.hpp>
#include <tessera/parallel/communicator.hpp>

#include "pipeline_channel.hpp"

namespace tessera::nn {
namespace {

using parallel::PipelineAction;
using parallel::PipelineSchedule;
using Kind = PipelineAction::Kind;

/// What one micro-batch is made of; tensors are asked for where they are needed only.
struct Batch {
  std::vector<TensorInfo> inputs;  // known in every stage
  std::function<Tensor(int)> input;
  std::function<Tensor(int)> target;
};

/// Samples of micro-batch `m` of `x`, spread over the ranks as those of `x` are.
Tensor samples(const Tensor& x, int m, const Layout& layout) {
  const NoGrad guard;
  const std::int64_t n = layout.shape()[0];
  return redistribute(slice(x, 0, m * n, (m + 1) * n), layout);
}

Layout samples_layout(const char* what, const Tensor& x, int micro_batches) {
  if (x.dims() == 0 || x.size(0) % micro_batches != 0) {
    throw ShapeError(str("pipeline: ", what, " ", x.shape(), " cannot be cut into ", micro_batches,
                         " micro-batches (they must divide the samples). Change the size of the "
                         "batch, or micro_batches."));
  }
  const std::int64_t n = x.size(0) / micro_batches;
  DimSplit split = x.layout().split(0);
  if (!split.axes.empty()) split.bounds = balanced_bounds(n, x.layout().parts(0));
  return x.layout().dual().with_dim(0, n, split);
}

void check_mesh(const char* what, const Tensor& x, const Mesh& mesh) {
  if (x.mesh() == mesh) return;
  throw UsageError(str("pipeline: ", what, " ", x.str(), " lies on mesh ", x.mesh().str(),
                       ", the stage on ", mesh.str(),
                       ". Make it on nn::Pipeline::stage_mesh(mesh)."));
}

/// Sets the micro-batch of random draws; leaves it as it was.
class MicroBatchScope {
 public:
  explicit MicroBatchScope(RandomContext& context)
      : context_(context), before_(context.micro_batch) {}
  ~MicroBatchScope() { context_.micro_batch = before_; }
  MicroBatchScope(const MicroBatchScope&) = delete;
  void set(int m) { context_.micro_batch = static_cast<std::uint64_t>(m); }

 private:
  RandomContext& context_;
  std::uint64_t before_;
};

}  // namespace

struct Pipeline::Impl {
  Module& model;
  std::vector<PipelineBlock> blocks;
  PipelineOptions options;
  Mesh whole_mesh;
  Mesh mesh;  // of the stage
  parallel::Group stages;
  std::vector<int> bounds;
  PipelineChannel channel;

  /// Where a part begins and ends on the tape, from the forward pass of a micro-batch to its
  /// backward pass; values are kept by those that need them. Only tensors with gradients.
  struct Held {
    std::vector<Tensor> inputs;
    std::vector<Tensor> outputs;
  };

  Impl(Module& m, std::vector<PipelineBlock> b, const Mesh& whole, const PipelineOptions& o)
      : model(m),
        blocks(std::move(b)),
        options(o),
        whole_mesh(whole),
        mesh(stage_mesh(whole, o.axis)),
        stages(parallel::Group::of(whole, AxisMask{1} << whole.axis(o.axis))),
        channel(stages) {
    pipeline_schedule(options.schedule, shape(), 0);  // throws where the sizes do not fit
    std::vector<double> costs = options.costs;
    if (costs.empty()) costs.assign(blocks.size(), 1.0);
    if (costs.size() != blocks.size()) {
      throw UsageError(str("pipeline: ", costs.size(), " costs for ", blocks.size(),
                           " blocks. Give one for each, or none."));
    }
    bounds = parallel::balanced_runs(costs, parts());
    give_parameters();
  }

  int parts() const { return stages.size() * options.chunks; }
  int part_of(int chunk) const { return chunk * stages.size() + stages.rank(); }
  parallel::PipelineShape shape() const {
    return {
        .stages = stages.size(), .chunks = options.chunks, .micro_batches = options.micro_batches};
  }

  /// Tells each parameter in which stage it lives; all are checked before any is told.
  void give_parameters() {
    std::map<std::string, int> stage_of;
    for (int p = 0; p < parts(); ++p) {
      const int stage = p % stages.size();
      for (int b = bounds[static_cast<std::size_t>(p)]; b < bounds[static_cast<std::size_t>(p) + 1];
           ++b) {
        for (Module* module : blocks[static_cast<std::size_t>(b)].modules) {
          for (const Parameter& parameter : module->parameters()) {
            const auto [at, fresh] = stage_of.try_emplace(parameter.path(), stage);
            if (fresh || at->second == stage) continue;
            throw UsageError(str("pipeline: parameter ", parameter.path(), " is read in stages ",
                                 at->second, " and ", stage,
                                 " (it can live in one only). Give it to blocks that lie "
                                 "together, or to one block."));
          }
        }
      }
    }
    if (const auto buffers = model.named_buffers(); !buffers.empty() && stages.size() > 1) {
      throw NotSupported(str("pipeline: the model has a buffer, ", buffers[0].first,
                             " (nothing says in which stage it changes). Make it a parameter that "
                             "is not trained, or a plain member."));
    }
    const auto parameters = model.named_parameters();
    for (const auto& [path, parameter] : parameters) {
      if (!stage_of.contains(parameter.path())) {
        throw UsageError(str("pipeline: parameter ", path,
                             " is in no block (nothing would train it). Name its module in the "
                             "block that reads it."));
      }
      if (!(parameter.mesh() == mesh)) {
        throw UsageError(str("pipeline: parameter ", path, " lies on mesh ", parameter.mesh().str(),
                             ", the stage on ", mesh.str(),
                             ". Make the model on nn::Pipeline::stage_mesh(mesh)."));
      }
    }
    for (auto [path, parameter] : parameters)
      parameter.set_stage(whole_mesh, whole_mesh.axis(options.axis), stage_of.at(parameter.path()));
  }

  std::vector<Tensor> run_part(int part, const std::vector<Tensor>& inputs) const {
    const auto run = [this, part](std::span<const Tensor> in) {
      std::vector<Tensor> tensors(in.begin(), in.end());
      for (int b = bounds[static_cast<std::size_t>(part)];
           b < bounds[static_cast<std::size_t>(part) + 1]; ++b) {
        tensors = blocks[static_cast<std::size_t>(b)].run(tensors);
        if (tensors.empty())
          throw UsageError(str("pipeline: block ", b, " returned no tensor. Return at least one."));
      }
      for (Tensor& t : tensors) t = reduced(t);
      return tensors;
    };
    return options.recompute ? tessera::recompute(run, inputs) : run(inputs);
  }

  double work(PipelineSchedule schedule, const Batch& batch, const PipelineLoss& loss) {
    if (dry_run() && stages.size() > 1) {
      throw NotSupported(
          "pipeline: a dry run of several stages (a stage learns from the one before what it "
          "gets). Plan one stage, or the model without a pipeline.");
    }
    const std::vector<PipelineAction> actions = pipeline_schedule(schedule, shape(), stages.rank());
    const int count = options.micro_batches;
    std::map<std::pair<int, int>, Held> held;
    std::vector<Tensor> losses;
    MicroBatchScope random(model.random());

    // Whether all that this piece of work needs is on its way.
    const auto expect = [&](const PipelineAction& action) {
      const int part = part_of(action.chunk);
      const int m = action.micro_batch;
      if (action.kind == Kind::kForward)
        return part == 0 ||
               channel.expect_values(part, m, batch.inputs[static_cast<std::size_t>(m)]);
      if (part + 1 == parts()) return true;
      const auto it = held.find({action.chunk, m});
      if (it == held.end()) return false;
      channel.expect_gradients(part + 1, m, it->second.outputs);
      return true;
    };
    const auto forward = [&](int chunk, int m) {
      const int part = part_of(chunk);
      const TensorInfo& key = batch.inputs[static_cast<std::size_t>(m)];
      random.set(m);
      const std::vector<Tensor> inputs =
          part == 0 ? std::vector<Tensor>{batch.input(m)} : channel.take_values(part, m, key, mesh);
      std::vector<Tensor> outputs = run_part(part, inputs);
      if (part + 1 < parts()) {
        channel.send_values(part + 1, m, key, outputs);
      } else {
        const Tensor value = loss(outputs[0], batch.target(m));
        if (value.numel() != 1) {
          throw ShapeError(str("pipeline: the loss ", value.str(), " has ", value.numel(),
                               " elements. Reduce it to one."));
        }
        losses.push_back(value.detach());
        outputs = {value * (1.0 / count)};
      }
      if (schedule == PipelineSchedule::kForward) return;
      Held& h = held[{chunk, m}];
      for (const Tensor& t : inputs)
        if (part > 0 && requires_grad(t)) h.inputs.push_back(without_values(t));
      for (const Tensor& t : outputs)
        if (requires_grad(t)) h.outputs.push_back(without_values(t));
    };
    const auto backward = [&](int chunk, int m) {
      const int part = part_of(chunk);
      const Held h = std::move(held.at({chunk, m}));
      held.erase({chunk, m});
      std::vector<Tensor> gradients;
      if (part + 1 < parts()) {
        gradients = channel.take_gradients(part + 1, m, h.outputs);
      } else {
        for (const Tensor& t : h.outputs)
          gradients.push_back(Tensor::full(t.layout().dual(), 1.0, t.dtype()));
      }
      std::vector<Tensor> results =
          backward_through(h.outputs, gradients, h.inputs, m + 1 == count);
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (!results[i].defined())
          results[i] = Tensor::zeros(h.inputs[i].layout(), h.inputs[i].dtype());
      }
      if (part > 0) channel.send_gradients(part, m, results);
    };

    for (std::size_t i = 0; i < actions.size(); ++i) {
      const PipelineAction& now = actions[i];
      // What the next piece of work needs travels under this one. Messages of a kind keep their
      // order, so it must not be asked for first.
      if (expect(now) && i + 1 < actions.size()) expect(actions[i + 1]);
      if (now.kind == Kind::kForward) {
        forward(now.chunk, now.micro_batch);
      } else {
        backward(now.chunk, now.micro_batch);
      }
    }
    finish_gradients();
    double mean = 0.0;
    for (const Tensor& value : losses) mean += reduced(value).item() / count;
    if (stages.size() > 1) {
      parallel::broadcast(stages, &mean, sizeof mean, stages.size() - 1, {.op = "pipeline loss"})
          .wait();
    }
    return mean;
  }

  double work(PipelineSchedule schedule,
              const Tensor& input,
              const Tensor& target,
              const PipelineLoss& loss) {
    check_mesh("input", input, mesh);
    check_mesh("target", target, mesh);
    const Layout in = samples_layout("input", input, options.micro_batches);
    const Layout out = samples_layout("target", target, options.micro_batches);
    return work(schedule,
                {.inputs = std::vector<TensorInfo>(static_cast<std::size_t>(options.micro_batches),
                                                   {in, input.dtype(), grad_enabled()}),
                 .input = [&](int m) { return samples(input, m, in); },
                 .target = [&](int m) { return samples(target, m, out); }},
                loss);
  }

  double work(PipelineSchedule schedule,
              std::span<const Tensor> inputs,
              std::span<const Tensor> targets,
              const PipelineLoss& loss) {
    const auto count = static_cast<std::size_t>(options.micro_batches);
    if (inputs.size() != count || targets.size() != count) {
      throw UsageError(str("pipeline: ", inputs.size(), " inputs and ", targets.size(),
                           " targets for ", count, " micro-batches. Give one of each."));
    }
    Batch batch{.inputs = {},
                .input = [&](int m) { return inputs[static_cast<std::size_t>(m)]; },
                .target = [&](int m) { return targets[static_cast<std::size_t>(m)]; }};
    for (const Tensor& t : inputs) {
      check_mesh("input", t, mesh);
      batch.inputs.push_back({t.layout(), t.dtype(), grad_enabled()});
    }
    for (const Tensor& t : targets) check_mesh("target", t, mesh);
    return work(schedule, batch, loss);
  }
};

PipelineBlock pipeline_block(Layer& layer) {
  return {.modules = {&layer}, .run = [&layer](std::span<const Tensor> in) {
            std::vector<Tensor> out(in.begin(), in.end());
            out[0] = layer(in[0]);
            return out;
          }};
}

std::vector<PipelineBlock> pipeline_blocks(Sequential& layers) {
  std::vector<PipelineBlock> blocks;
  for (std::size_t i = 0; i < layers.size(); ++i) blocks.push_back(pipeline_block(layers[i]));
  return blocks;
}

Mesh Pipeline::stage_mesh(const Mesh& mesh, std::string_view axis) {
  const int rank = mesh.rank();
  if (rank < 0) {
    throw UsageError(str("pipeline: process ", process().rank, " is not part of the mesh (",
                         mesh.str(), "). Call it on the members only."));
  }
  return mesh.slice(axis, mesh.coordinate(rank, mesh.axis(axis)));
}

Pipeline::Pipeline(Module& model,
                   std::vector<PipelineBlock> blocks,
                   const Mesh& mesh,
                   const PipelineOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(blocks), mesh, options)) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;

double Pipeline::step(const Tensor& input, const Tensor& target, const PipelineLoss& loss) {
  return impl_->work(impl_->options.schedule, input, target, loss);
}

double Pipeline::step(std::span<const Tensor> inputs,
                      std::span<const Tensor> targets,
                      const PipelineLoss& loss) {
  return impl_->work(impl_->options.schedule, inputs, targets, loss);
}

double Pipeline::evaluate(const Tensor& input, const Tensor& target, const PipelineLoss& loss) {
  const NoGrad guard;
  return impl_->work(PipelineSchedule::kForward, input, target, loss);
}

double Pipeline::evaluate(std::span<const Tensor> inputs,
                          std::span<const Tensor> targets,
                          const PipelineLoss& loss) {
  const NoGrad guard;
  return impl_->work(PipelineSchedule::kForward, inputs, targets, loss);
}

int Pipeline::stage() const { return impl_->stages.rank(); }
const std::vector<int>& Pipeline::bounds() const { return impl_->bounds; }

}  // namespace tessera::nn
