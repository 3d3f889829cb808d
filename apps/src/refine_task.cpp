#include <fmt/format.h>

#include <tessera/nn/checkpoint.hpp>

#include "grid_tasks.hpp"
#include "imitation.hpp"
#include "mesh_option.hpp"
#include "run_settings.hpp"

namespace tessera::app {
namespace {

/// Edges of crops, which close a circle only where they go all around.
std::vector<EdgeRule> edges_of_crops(const data::SuperResolution& data) {
  std::vector<EdgeRule> edges = edges_of(data.field());
  for (std::size_t d = 0; d < edges.size(); ++d) {
    const int dim = static_cast<int>(d);
    if (data.options().crop[dim] < data.field().shape()[dim]) edges[d] = EdgeRule::kReplicate;
  }
  return edges;
}

class RefineTask : public Task {
 public:
  RefineTask(const RunSettings& settings, const Mesh& mesh)
      : samples_(settings.batch),
        dtype_(settings.dtype()),
        data_(open_refine_data(settings, refined_field(settings), mesh)) {}

  Transform transform() const override {
    return {.dims = data_.field().dims(),
            .in_channels = data_.input_channels(),
            .out_channels = 1,
            .edges = edges_of_crops(data_)};
  }
  void place(const Mesh& mesh, std::int64_t stride) override {
    input_ = field_placement(mesh, data_.field().dims())
                 .resolve(data_.input_shape(samples_), {.multiple = stride});
    target_ = data_.fine_layout(input_);
  }
  Batch batch(std::int64_t first) const override {
    const data::SuperResolutionBatch b = data_.batch(first, input_, target_, dtype_);
    return {b.input, b.target, b.mask};
  }
  std::vector<EdgeRule> edges() const override { return edges_of(data_.field()); }
  io::Metadata numbers() const override {
    const data::Normalization& n = data_.normalization();
    return {{"mean", fmt::format("{}", n.mean)},
            {"std", fmt::format("{}", n.std)},
            {"missing", n.missing ? "1" : "0"}};
  }

 private:
  std::int64_t samples_;
  DType dtype_;
  data::SuperResolution data_;
  Layout input_;
  Layout target_;
};

}  // namespace

RefinedField refined_field(const RunSettings& settings) {
  const GridSettings& grid = GridSettings::of(settings);
  return {.field = {.path = grid.file, .variable = grid.variable, .periodic = grid.periodic},
          .holdout = grid.holdout};
}

data::SuperResolution open_refine_data(const RunSettings& settings,
                                       const RefinedField& from,
                                       const Mesh& mesh,
                                       const std::optional<data::Normalization>& normalization) {
  const GridSettings& grid = GridSettings::of(settings);
  data::SuperResolutionOptions o;
  o.field = from.field;
  if (!from.holdout.empty()) {
    if (from.holdout.size() != 2) {
      throw UsageError(str("data.holdout: ", from.holdout.size(),
                           " numbers. Give two, from and to, e.g. 0,60."));
    }
    o.holdout_lo = from.holdout[0];
    o.holdout_hi = from.holdout[1];
  }
  o.factor = grid.factor;
  // The ranks agree that the file is usable before any of them relies on it.
  nn::collective(mesh).together(
      [&] { o.crop = Dims::filled(data::GridField(o.field).dims(), grid.crop); });
  o.seed = settings.seed;
  o.flips = grid.flips;
  o.coordinate_channels = grid.coordinates;
  o.normalization = normalization;
  return data::SuperResolution(o, nn::collective(mesh));
}

data::Normalization normalization_of(const Trained& trained) {
  return {.mean = trained.number("mean"),
          .std = trained.number("std"),
          .missing = trained.text("missing") == "1"};
}

std::vector<Tile> tiles_for(std::int64_t side, const Trained& trained, const Shape& coarse) {
  const GridSettings& grid = GridSettings::of(*trained.settings);
  if (side == 0 && trained.settings->entry.crops_only) side = grid.crop;
  std::vector<EdgeRule> edges = trained.model->transform().edges;
  std::vector<bool> periodic;
  for (const EdgeRule edge : edges) periodic.push_back(edge == EdgeRule::kCircular);
  if (side == 0) return tiles_of(coarse, coarse, periodic);
  if (side % grid.factor != 0) {
    throw UsageError(
        str("tile: ", side, " is not a multiple of data.factor = ", grid.factor, ". Change it."));
  }
  const std::int64_t points = side / grid.factor;
  for (std::size_t d = 0; d < edges.size(); ++d)
    if (points < coarse[static_cast<int>(d)]) edges[d] = EdgeRule::kReplicate;
  trained.model->set_edges(edges);
  return tiles_of(coarse, Dims::filled(coarse.size(), points), periodic);
}

void complete_refine(const GridSettings& settings, Transform& transform) {
  using models::InputSkip;
  transform.upscale = settings.factor;
  transform.input_skip = choose<InputSkip>("input_skip", settings.input_skip,
                                           {{"none", InputSkip::kNone},
                                            {"nearest", InputSkip::kNearest},
                                            {"linear", InputSkip::kLinear},
                                            {"cubic", InputSkip::kCubic}});
  transform.conserve_means = settings.conserve_means;
  transform.detail_scale = settings.detail_scale;
}

std::unique_ptr<Task> open_refine(const RunSettings& settings, const Mesh& mesh) {
  return std::make_unique<RefineTask>(settings, mesh);
}

std::unique_ptr<Task> imitate_refine(const RunSettings& settings,
                                     const std::vector<std::int64_t>& size) {
  const GridSettings& grid = GridSettings::of(settings);
  const std::int64_t factor = grid.factor;
  for (const std::int64_t n : size) {
    if (n < factor || n % factor != 0) {
      throw UsageError(str("size: ", n, " is not a multiple of data.factor = ", factor,
                           " (the input is coarser by it). Change one of them."));
    }
  }
  Transform transform = {.dims = static_cast<int>(size.size()),
                         .edges = imitated_edges(grid.periodic, size.size())};
  if (grid.coordinates) {
    for (const EdgeRule edge : transform.edges)
      transform.in_channels += edge != EdgeRule::kCircular ? 1 : 0;
  }
  std::vector<std::int64_t> coarse = size;
  for (std::int64_t& n : coarse) n /= factor;
  const auto place = [samples = settings.batch, coarse, channels = transform.in_channels, factor](
                         const Mesh& mesh, std::int64_t stride) {
    const Layout input = field_layout(mesh, samples, coarse, channels, stride);
    const int dims = input.dims() - 2;
    Layout target = input;
    for (int d = 1; d <= dims; ++d) {
      DimSplit split = input.split(d);
      for (std::int64_t& bound : split.bounds) bound *= factor;
      target = target.with_dim(d, input.shape()[d] * factor, split);
    }
    return Imitation::Layouts{input, target.with_dim(dims + 1, 1, {})};
  };
  return std::make_unique<Imitation>(settings, transform, place, factor);
}

}  // namespace tessera::app
