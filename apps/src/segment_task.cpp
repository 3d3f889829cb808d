#include <fmt/format.h>

#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/loss.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/patches.hpp>

#include "grid_tasks.hpp"
#include "imitation.hpp"
#include "mesh_option.hpp"
#include "run_settings.hpp"

namespace tessera::app {
namespace {

/// The dimension of a volume's axis, which counts from the innermost.
int dim_of(const std::string& axis, int dims) {
  const int dim = dims - 1 - choose<int>("axis", axis, {{"x", 0}, {"y", 1}, {"z", 2}});
  if (dim < 0)
    throw UsageError(str("axis: the data have ", dims, " dimensions, so there is no ", axis, "."));
  return dim;
}

Tensor segment_loss(const RunSettings& settings, const Tensor& output, const Batch& batch) {
  return segmentation_loss(output, batch.target, GridSettings::of(settings).dice);
}

class SegmentTask : public Task {
 public:
  SegmentTask(const RunSettings& settings, const Mesh& mesh)
      : samples_(settings.batch),
        dtype_(settings.dtype()),
        data_(open_segmentation(settings, mesh)) {}

  Transform transform() const override {
    return {.dims = data_.dims(),
            .in_channels = data_.input_channels(),
            .out_channels = data_.classes(),
            .edges = edges()};
  }
  void place(const Mesh& mesh, std::int64_t stride) override {
    input_ = field_layout(mesh, samples_, data_.sample_shape(), data_.input_channels(), stride);
  }
  Batch batch(std::int64_t first) const override {
    const data::SegmentationBatch b = data_.batch(first, input_, dtype_);
    return {b.input, b.target, {}};
  }
  Tensor loss(const RunSettings& settings,
              const Tensor& output,
              const Batch& batch) const override {
    return segment_loss(settings, output, batch);
  }
  std::vector<EdgeRule> edges() const override {
    return std::vector<EdgeRule>(static_cast<std::size_t>(data_.dims()), EdgeRule::kReplicate);
  }
  io::Metadata numbers() const override {
    return {{"mean", fmt::format("{}", data_.scale().mean)},
            {"std", fmt::format("{}", data_.scale().std)}};
  }

 private:
  std::int64_t samples_;
  DType dtype_;
  mutable data::Segmentation data_;  // keeps what it reads
  Layout input_;
};

/// Made-up classes, in bands.
class ImitatedSegments : public Imitation {
 public:
  using Imitation::Imitation;
  Batch batch(std::int64_t first) const override {
    Batch made = Imitation::batch(first);
    const auto classes = static_cast<double>(transform().out_channels);
    made.target = Tensor::from_function(
        made.target.layout(),
        [&](const Index& i) {
          double sum = static_cast<double>(first);
          for (int d = 0; d < i.size(); ++d) sum += static_cast<double>(i[d]);
          return std::fmod(std::floor(sum / 3.0), classes);
        },
        DType::kInt32);
    return made;
  }
  Tensor loss(const RunSettings& settings,
              const Tensor& output,
              const Batch& batch) const override {
    return segment_loss(settings, output, batch);
  }
};

}  // namespace

void complete_segment(const GridSettings&, Transform&) {}

std::unique_ptr<Task> open_segment_task(const RunSettings& settings, const Mesh& mesh) {
  return std::make_unique<SegmentTask>(settings, mesh);
}

std::unique_ptr<Task> imitate_segment(const RunSettings& settings,
                                      const std::vector<std::int64_t>& size) {
  const GridSettings& grid = GridSettings::of(settings);
  const int dims = static_cast<int>(size.size());
  const auto classes = static_cast<std::int64_t>(std::max<std::size_t>(grid.classes.size(), 1)) + 1;
  const Transform transform = {.dims = dims,
                               .in_channels = 1 + (grid.coordinates ? dims : 0),
                               .out_channels = classes,
                               .edges = imitated_edges(grid.periodic, size.size())};
  const auto place = [samples = settings.batch, size, channels = transform.in_channels](
                         const Mesh& mesh, std::int64_t stride) {
    const Layout input = field_layout(mesh, samples, size, channels, stride);
    return Imitation::Layouts{input, data::Segmentation::target_layout(input)};
  };
  return std::make_unique<ImitatedSegments>(settings, transform, place);
}

data::Segmentation open_segmentation(const RunSettings& settings,
                                     const Mesh& mesh,
                                     const Trained* trained,
                                     const std::string& file) {
  const GridSettings& grid = GridSettings::of(settings);
  const io::Collective ranks = nn::collective(mesh);
  data::SegmentationOptions o;
  ranks.together([&] {
    o.volume = file.empty() ? grid.file : file;
    if (file.empty()) {
      if (grid.labels.empty())
        throw UsageError("data.labels: a segmentation needs labels. Give them with --labels.");
      o.labels = grid.labels;
    }
    for (const std::string& text : grid.classes)
      o.classes.push_back(data::parse_segment_class(text));
    o.trim = grid.trim;
    const int dims = [&] {
      int n = 0;
      for (const std::int64_t size : io::NiftiReader(o.volume).header().shape)
        n += n > 0 || size > 1 ? 1 : 0;
      return std::max(n, 1);
    }();
    if (!grid.slabs.empty()) {
      if (grid.slabs.size() != 3)
        throw UsageError(str("data.slabs: ", grid.slabs.size(),
                             " numbers. Give thickness, distance and margin, e.g. 20,60,4."));
      o.slabs = {.dim = dim_of(grid.slab_axis, dims),
                 .thickness = grid.slabs[0],
                 .every = grid.slabs[1],
                 .margin = grid.slabs[2]};
    }
    for (const std::string& axis : grid.mirror) o.mirrored.push_back(dim_of(axis, dims));
    o.crop = Dims::filled(dims, grid.crop);
  });
  o.coordinate_channels = grid.coordinates;
  o.seed = settings.seed;
  if (trained != nullptr)
    o.scale = data::IntensityScale{trained->number("mean"), trained->number("std")};
  return data::Segmentation(o, ranks);
}

std::vector<std::int32_t> segmented(const Trained& trained,
                                    data::Segmentation& data,
                                    const Layout& layout) {
  const NoGrad no_grad;
  const std::int64_t classes = trained.model->transform().out_channels;
  const Tensor input = data.whole(layout, trained.settings->dtype()).input;
  const Tensor logits = redistribute(trained(input), nn::domain_layout(layout, 1, classes));
  const Tensor dense = Tensor::from_local(logits.local(), logits.layout());
  std::vector<std::int32_t> best(static_cast<std::size_t>(dense.local().size() / classes));
  const View view = dense.local();
  visit_floating("segment", view.dtype, [&]<class T>() {
    const T* row = view.as<T>();
    for (std::int32_t& b : best) {
      std::int64_t largest = 0;
      for (std::int64_t c = 1; c < classes; ++c)
        if (static_cast<float>(row[c]) > static_cast<float>(row[largest])) largest = c;
      b = static_cast<std::int32_t>(largest);
      row += classes;
    }
  });
  return best;
}

}  // namespace tessera::app
