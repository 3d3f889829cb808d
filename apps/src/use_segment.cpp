#include <fmt/format.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/nifti.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "grid_tasks.hpp"
#include "mesh_option.hpp"
#include "pictures.hpp"
#include "run_settings.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

using Part = data::HeldOutSlabs::Part;

/// How often a class was there, was said, and both.
struct Overlap {
  std::vector<double> truth, said, both;

  explicit Overlap(std::int64_t classes)
      : truth(static_cast<std::size_t>(classes)), said(truth), both(truth) {}
  void add(std::int32_t is, std::int32_t says) {
    truth[static_cast<std::size_t>(is)] += 1.0;
    said[static_cast<std::size_t>(says)] += 1.0;
    if (is == says) both[static_cast<std::size_t>(is)] += 1.0;
  }
  void share(const io::Collective& ranks) {
    for (auto* counts : {&truth, &said, &both}) *counts = ranks.total(*counts);
  }
  /// 2 |A and B| / (|A| + |B|); NaN where the class is neither there nor said.
  double dice(std::size_t c) const { return 2.0 * both[c] / (truth[c] + said[c]); }
  /// Of the classes from `first` on that are there or said.
  double mean_dice(std::size_t first) const {
    double sum = 0.0;
    double count = 0.0;
    for (std::size_t c = first; c < truth.size(); ++c) {
      if (std::isnan(dice(c))) continue;
      sum += dice(c);
      count += 1.0;
    }
    return sum / count;
  }
};

/// This rank's part of a volume: points, without samples and channels.
Box points_of(const Layout& layout) {
  Box box = io::is_first_replica(layout) ? layout.local_box() : Box::whole({0, 0, 0, 0, 0});
  const int dims = layout.dims() - 2;
  box.lo.erase(0);
  box.hi.erase(0);
  box.lo.resize(dims);
  box.hi.resize(dims);
  return box;
}

/// One plane through the middle of the volume across each dimension, or through the held-out slab
/// that is nearest to it.
std::vector<std::int64_t> middle_planes(const data::Segmentation& data) {
  std::vector<std::int64_t> planes;
  const data::HeldOutSlabs& slabs = data.options().slabs;
  for (int d = 0; d < data.dims(); ++d) {
    std::int64_t plane = data.shape()[d] / 2;
    if (d == slabs.dim) {
      plane = plane / slabs.every * slabs.every + slabs.every / 2;
      plane = std::min(plane, data.shape()[d] - 1);
    }
    planes.push_back(plane);
  }
  return planes;
}

/// Planes of values that lie in parts of the ranks, on all of them.
std::vector<SegmentPlane> planes_of(const data::Segmentation& data,
                                    const Box& part,
                                    const std::vector<std::int32_t>* truth,
                                    const std::vector<std::int32_t>& model,
                                    const io::Collective& ranks) {
  std::vector<SegmentPlane> planes;
  if (data.dims() < 2) return planes;
  static constexpr std::array<const char*, 3> kNames = {"x", "y", "z"};
  const std::vector<std::int64_t> at = middle_planes(data);
  const int slab_dim = data.options().slabs.dim;
  for (int across = 0; across < (data.dims() == 3 ? 3 : 1); ++across) {
    SegmentPlane plane;
    if (data.dims() == 3) {
      plane.title = fmt::format("{} {}", kNames[static_cast<std::size_t>(2 - across)],
                                at[static_cast<std::size_t>(across)]);
    }
    std::vector<int> shown;
    for (int d = 0; d < data.dims(); ++d)
      if (data.dims() == 2 || d != across) shown.push_back(d);
    plane.size = {data.shape()[shown[0]], data.shape()[shown[1]]};
    plane.model.resize(static_cast<std::size_t>(plane.size.product()));
    if (truth != nullptr) {
      plane.truth.resize(plane.model.size());
      plane.errors.resize(plane.model.size());
    }
    std::size_t point = 0;
    for_each_index(part, [&](const Index& i) {
      const std::size_t p = point++;
      if (data.dims() == 3 && i[across] != at[static_cast<std::size_t>(across)]) return;
      const auto pixel = static_cast<std::size_t>(i[shown[0]] * plane.size[1] + i[shown[1]]);
      plane.model[pixel] = model[p];
      if (truth == nullptr) return;
      plane.truth[pixel] = (*truth)[p];
      const bool held = slab_dim >= 0 && data.part(i[slab_dim]) == Part::kHeldOut;
      plane.errors[pixel] =
          held ? (model[p] == (*truth)[p] ? 0.0 : 1.0) : std::numeric_limits<double>::quiet_NaN();
    });
    for (auto* values : {&plane.truth, &plane.model, &plane.errors}) ranks.combine(*values);
    planes.push_back(std::move(plane));
  }
  return planes;
}

}  // namespace

int evaluate_segment(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh) {
  const RunFiles files{options.run};
  const io::Collective ranks = nn::collective(mesh);
  data::Segmentation data = open_segmentation(*trained.settings, mesh, &trained);
  const data::HeldOutSlabs& slabs = data.options().slabs;
  if (slabs.dim < 0) {
    throw UsageError(str("evaluate: ", options.run,
                         " was trained on everything (data.slabs is empty). Train with --slabs."));
  }
  const Layout layout =
      field_layout(mesh, 1, data.shape(), data.input_channels(), trained.model->total_stride());
  const std::vector<std::int32_t> model = segmented(trained, data, layout);

  // The plain answer: the class at the nearest labelled plane, where the volume is not 0.
  const Box part = points_of(layout);
  Box along = part;
  if (!part.empty()) along.set(slabs.dim, {0, data.shape()[slabs.dim]});
  std::vector<std::int32_t> all;
  std::vector<float> intensities;
  ranks.together([&] {
    all = data.read_classes(along);
    intensities = data.read_intensities(part);
  });
  const Strides strides = row_major(along.shape());
  const auto class_at = [&](const Index& i, std::int64_t plane) {
    std::int64_t offset = 0;
    for (int d = 0; d < data.dims(); ++d)
      offset += strides[d] * (d == slabs.dim ? plane : i[d] - along.lo[d]);
    return all[static_cast<std::size_t>(offset)];
  };
  const std::int64_t classes = data.classes();
  Overlap by_model(classes), by_plane(classes), in_training(classes);
  std::vector<std::int32_t> truth;
  for_each_index(part, [&](const Index& i) {
    const std::size_t p = truth.size();
    const std::int64_t plane = i[slabs.dim];
    const std::int32_t is = truth.emplace_back(class_at(i, plane));
    const Part held = data.part(plane);
    if (held == Part::kTraining) in_training.add(is, model[p]);
    if (held != Part::kHeldOut) return;
    by_model.add(is, model[p]);
    const std::int64_t nearest = slabs.nearest_training(plane, data.shape()[slabs.dim]);
    const bool inside = intensities[p] != 0.0f && nearest >= 0;
    by_plane.add(is, inside ? class_at(i, nearest) : 0);
  });
  for (Overlap* o : {&by_model, &by_plane, &in_training}) o->share(ranks);
  const std::vector<SegmentPlane> planes = planes_of(data, part, &truth, model, ranks);

  ranks.together([&] {
    if (mesh.rank() != 0) return;
    fmt::print("{:<28} {:>10} {:>14} {:>16} {:>10}\n", "Dice on held-out slabs", "model",
               "nearest plane", "training part", "points");
    nlohmann::ordered_json json = {{"file", GridSettings::of(*trained.settings).file},
                                   {"weights", files.weights()}};
    const auto row = [&](const std::string& name, double a, double b, double c,
                         const std::string& points) {
      fmt::print("{:<28} {:>10.4f} {:>14.4f} {:>16.4f} {:>10}\n", name, a, b, c, points);
      json["dice"]["model"][name] = a;
      json["dice"]["nearest_plane"][name] = b;
      json["dice"]["model_on_training_part"][name] = c;
    };
    for (std::size_t c = 0; c < static_cast<std::size_t>(classes); ++c) {
      row(data.class_name(static_cast<std::int64_t>(c)), by_model.dice(c), by_plane.dice(c),
          in_training.dice(c), fmt::format("{:.0f}", by_model.truth[c]));
    }
    row("mean of all", by_model.mean_dice(0), by_plane.mean_dice(0), in_training.mean_dice(0), "");
    row("mean without background", by_model.mean_dice(1), by_plane.mean_dice(1),
        in_training.mean_dice(1), "");
    std::cout << std::flush;
    io::write_text(files.evaluation(), json.dump(2) + "\n");
    if (!planes.empty()) draw_segments(files.error_picture(), planes, classes);
  });
  return 0;
}

int predict_segment(const PredictOptions& options, const Trained& trained, const Mesh& mesh) {
  if (options.coarsen || !options.variable.empty()) {
    throw UsageError(
        "predict: a segmentation needs a volume alone. Leave out --variable and --coarsen.");
  }
  const io::Collective ranks = nn::collective(mesh);
  const std::string file =
      options.input.empty() ? GridSettings::of(*trained.settings).file : options.input;
  data::Segmentation data = open_segmentation(*trained.settings, mesh, &trained, file);
  const std::int64_t classes = trained.model->transform().out_channels;
  const Layout layout =
      field_layout(mesh, 1, data.shape(), data.input_channels(), trained.model->total_stride());
  std::vector<std::int32_t> model = segmented(trained, data, layout);
  const Box part = points_of(layout);

  const io::NiftiHeader& from = data.header();
  io::NiftiWriter writer(options.output,
                         {.shape = data.grid(),
                          .dtype = classes <= 256 ? DType::kUInt8 : DType::kInt32,
                          .spacing = from.spacing,
                          .affine = from.affine,
                          .description = "classes by tessera predict"},
                         ranks);
  // Planes that were trimmed are background, which rank 0 writes.
  if (mesh.rank() == 0) {
    for (const Box& rest : difference(Box::whole(data.grid()), data.box())) {
      std::vector<std::int32_t> zeros(static_cast<std::size_t>(rest.volume()), 0);
      writer.write_box(rest, View::dense(zeros.data(), DType::kInt32, rest.shape()));
    }
  }
  Box in_grid = part;
  for (int d = 0; d < data.dims() && !part.empty(); ++d) {
    in_grid.set(d, {part.lo[d] + data.box().lo[d], part.hi[d] + data.box().lo[d]});
  }
  writer.write_box(in_grid, View::dense(model.data(), DType::kInt32, in_grid.shape()));
  writer.commit();
  const std::vector<SegmentPlane> planes = planes_of(data, part, nullptr, model, ranks);
  ranks.together([&] {
    if (mesh.rank() == 0 && !planes.empty()) {
      draw_segments(std::filesystem::path(options.output).replace_extension(".png").string(),
                    planes, classes);
    }
  });
  return 0;
}

}  // namespace tessera::app
