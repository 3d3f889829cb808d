#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tessera/autograd/autograd.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/nearest.hpp>
#include <tessera/nn/data/scores.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/plot.hpp>

#include "least_squares.hpp"
#include "output_file.hpp"
#include "pictures.hpp"
#include "point_data.hpp"
#include "run_settings.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

using data::ErrorSums;

/// What the model says at all points of a sample, [points, targets] in the file's units, on every
/// rank.
std::vector<double> predicted(const Trained& trained,
                              const data::PointCloud& cloud,
                              std::int64_t sample,
                              const Mesh& mesh) {
  const Layout layout = point_layout(mesh, 1, cloud.points(), cloud.input_channels());
  const NoGrad no_grad;
  const Tensor y = trained(cloud.whole(sample, layout, trained.settings->dtype()).input);
  const auto targets = static_cast<std::int64_t>(cloud.targets());
  std::vector<double> values(static_cast<std::size_t>(cloud.points() * targets), 0.0);
  if (io::is_first_replica(y.layout())) {
    const View view = y.local();
    const Box& part = y.local_box();
    for_each_index(part, [&](const Index& i) {
      const std::int64_t offset = (i[0] - part.lo[0]) * view.strides[0] +
                                  (i[1] - part.lo[1]) * view.strides[1] +
                                  (i[2] - part.lo[2]) * view.strides[2];
      const data::PointScale& scale = cloud.target_scale(static_cast<int>(i[2]));
      values[static_cast<std::size_t>(i[1] * targets + i[2])] =
          load_as_double(view.data, view.dtype, offset) * scale.std + scale.mean;
    });
  }
  nn::collective(mesh).combine(values);
  return values;
}

/// Each target as a linear function of the input's channels and 1, fitted to the training points.
class LinearPoints {
 public:
  explicit LinearPoints(const data::PointCloud& cloud)
      : cloud_(cloud), features_(static_cast<std::size_t>(cloud.input_channels()) + 1, 1.0) {
    const std::size_t n = features_.size();
    for (int t = 0; t < cloud.targets(); ++t) {
      std::vector<double> rows(n * (n + 1), 0.0);
      for (std::int64_t s = 0; s < cloud.samples(); ++s) {
        for (const std::int64_t point : cloud.training()) {
          const double y = normalized(s, t, point);
          if (std::isnan(y)) continue;
          fill(s, point);
          for (std::size_t r = 0; r < n; ++r) {
            for (std::size_t c = 0; c < n; ++c)
              rows[r * (n + 1) + c] += features_[r] * features_[c];
            rows[r * (n + 1) + n] += features_[r] * y;
          }
        }
      }
      weights_.push_back(solve_normal(std::move(rows), n, 1));
    }
  }
  double operator()(std::int64_t sample, int target, std::int64_t point) {
    fill(sample, point);
    const std::vector<double>& w = weights_[static_cast<std::size_t>(target)];
    const double y = std::inner_product(w.begin(), w.end(), features_.begin(), 0.0);
    return y * cloud_.target_scale(target).std + cloud_.target_scale(target).mean;
  }

 private:
  double normalized(std::int64_t sample, int target, std::int64_t point) const {
    const data::PointScale& scale = cloud_.target_scale(target);
    return (cloud_.target(sample, target, point) - scale.mean) / scale.std;
  }
  void fill(std::int64_t sample, std::int64_t point) {
    cloud_.input(sample, point, std::span(features_).first(features_.size() - 1));
  }

  const data::PointCloud& cloud_;
  std::vector<double> features_;
  std::vector<std::vector<double>> weights_;
};

/// Which point stands at each pixel of a map: the nearest one.
std::vector<std::int64_t> map_of_points(const data::PointCloud& cloud, const Shape& size) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(cloud.points()));
  std::iota(all.begin(), all.end(), 0);
  const data::NearestPoints nearest(cloud.positions(), cloud.position_dims(), all);
  std::vector<std::int64_t> pixels;
  for (std::int64_t r = 0; r < size[0]; ++r) {
    for (std::int64_t c = 0; c < size[1]; ++c) {
      const double x = (static_cast<double>(c) + 0.5) / static_cast<double>(size[1]);
      const double y = 1.0 - (static_cast<double>(r) + 0.5) / static_cast<double>(size[0]);
      pixels.push_back(nearest.nearest(cloud.position_on_map(x, y)));
    }
  }
  return pixels;
}

/// Truth, model and errors of the first target and sample on a map; errors at all points.
void draw_points(const std::string& path,
                 const data::PointCloud& cloud,
                 const std::vector<double>& model,
                 LinearPoints& linear) {
  constexpr double kColumns = 360.0;
  const double rows = std::clamp(kColumns * cloud.map_aspect(), 0.25 * kColumns, kColumns);
  const Shape size = {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(kColumns)};
  std::array<std::vector<double>, 4> maps;
  ErrorSums errors[2];
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const std::int64_t point : map_of_points(cloud, size)) {
    const double truth = cloud.target(0, 0, point);
    const double values[] = {truth, model[static_cast<std::size_t>(point * cloud.targets())],
                             linear(0, 0, point)};
    maps[0].push_back(values[0]);
    maps[1].push_back(values[1]);
    maps[2].push_back(values[1] - truth);
    maps[3].push_back(values[2] - truth);
    errors[0].add(values[1], truth);
    errors[1].add(values[2], truth);
    if (std::isnan(truth)) continue;
    low = std::min(low, truth);
    high = std::max(high, truth);
  }
  const std::string unit = unit_of(cloud.target_variable(0));
  const double range = 3.0 * errors[1].rmse();
  const auto panel = [&](std::size_t map, const std::string& title) {
    const bool error = map > 1;
    return io::FieldPanel{.values = View::dense(maps[map].data(), DType::kFloat64, size),
                          .title = title,
                          .map = error ? io::ColorMap::kDiverging : io::ColorMap::kViridis,
                          .low = error ? -range : low,
                          .high = error ? range : high,
                          .unit = unit};
  };
  io::draw_fields(
      {panel(0, "Truth"), panel(1, "Model"), panel(2, "Model - truth"), panel(3, "Linear - truth")},
      {.title = cloud.target_variable(0).name, .columns = 2})
      .save(path);
}

}  // namespace

int PointSettings::evaluate(const EvaluateOptions& options,
                            const Trained& trained,
                            const Mesh& mesh) const {
  const RunFiles files{options.run};
  const data::PointCloud cloud = open_points(*trained.settings, mesh, point_scales(trained));
  if (cloud.training_points() == cloud.points()) {
    throw UsageError(str("evaluate: ", options.run,
                         " was trained on all points (data.holdout is 0). Train with --holdout."));
  }
  LinearPoints linear(cloud);
  const auto outputs = static_cast<std::size_t>(cloud.targets());
  constexpr std::array<const char*, 4> kNames = {"model", "linear", "nearest", "mean"};
  std::array<std::vector<ErrorSums>, 4> sums;
  for (auto& s : sums) s.resize(outputs);
  std::vector<double> shown;
  for (std::int64_t sample = 0; sample < cloud.samples(); ++sample) {
    const std::vector<double> model = predicted(trained, cloud, sample, mesh);
    for (std::size_t t = 0; t < outputs; ++t) {
      const int target = static_cast<int>(t);
      std::vector<std::int64_t> known;  // of the training
      for (const std::int64_t point : cloud.training())
        if (!std::isnan(cloud.target(sample, target, point))) known.push_back(point);
      if (known.empty()) continue;
      const auto dims = static_cast<std::size_t>(cloud.position_dims());
      const data::NearestPoints nearest(cloud.positions(), cloud.position_dims(), known);
      for (std::int64_t point = 0; point < cloud.points(); ++point) {
        if (!cloud.held_out(point)) continue;
        const double truth = cloud.target(sample, target, point);
        const std::int64_t next = nearest.nearest(
            cloud.positions().subspan(static_cast<std::size_t>(point) * dims, dims));
        const double answers[] = {model[static_cast<std::size_t>(point) * outputs + t],
                                  linear(sample, target, point), cloud.target(sample, target, next),
                                  cloud.target_scale(target).mean};
        for (std::size_t k = 0; k < kNames.size(); ++k) sums[k][t].add(answers[k], truth);
      }
    }
    if (sample == 0) shown = model;
  }

  nn::collective(mesh).together([&] {
    if (mesh.rank() != 0) return;
    nlohmann::ordered_json json = {{"file", file},
                                   {"points", cloud.points()},
                                   {"held_out", cloud.points() - cloud.training_points()},
                                   {"weights", files.weights()}};
    fmt::print("{:<24}",
               fmt::format("RMSE, {} held-out points", cloud.points() - cloud.training_points()));
    for (std::size_t t = 0; t < outputs; ++t)
      fmt::print(" {:>12}", cloud.target_variable(static_cast<int>(t)).name);
    fmt::print(" {:>24}\n", "skill of the model");
    for (std::size_t k = 0; k < kNames.size(); ++k) {
      fmt::print("{:<24}", kNames[k]);
      double skill = 0.0;  // 1 - MSE / MSE, the mean over the targets
      for (std::size_t t = 0; t < outputs; ++t) {
        const double rmse = sums[k][t].rmse();
        fmt::print(" {:>12.5g}", rmse);
        json["rmse"][kNames[k]][cloud.target_variable(static_cast<int>(t)).name] = rmse;
        skill += (1.0 - std::pow(sums[0][t].rmse() / rmse, 2)) / static_cast<double>(outputs);
      }
      if (k > 0) {
        json["skill_over"][kNames[k]] = skill;
        fmt::print(" {:>24}", fmt::format("{:.1f} %", 100.0 * skill));
      }
      fmt::print("\n");
    }
    std::cout << std::flush;
    io::write_text(files.evaluation(), json.dump(2) + "\n");
    draw_points(files.error_picture(), cloud, shown, linear);
  });
  return 0;
}

int PointSettings::predict(const PredictOptions& options,
                           const Trained& trained,
                           const Mesh& mesh) const {
  if (options.coarsen || !options.variable.empty() ||
      (!options.input.empty() && options.input != file)) {
    throw UsageError(str("predict: the network of ", options.run,
                         " predicts at all points of the file of its training. Leave out --input, "
                         "--variable and --coarsen."));
  }
  const data::PointCloud cloud = open_points(*trained.settings, mesh, point_scales(trained));
  std::vector<io::NetcdfDimension> dimensions;
  if (cloud.samples() > 1) dimensions.push_back({.name = "sample", .size = cloud.samples()});
  dimensions.push_back({.name = cloud.dimension(), .size = cloud.points()});
  std::vector<io::NetcdfVariableSpec> variables;
  for (int t = 0; t < cloud.targets(); ++t) {
    io::NetcdfVariableSpec spec = {.name = cloud.target_variable(t).name, .dims = {}};
    for (const io::NetcdfDimension& d : dimensions) spec.dims.push_back(d.name);
    if (const std::string unit = unit_of(cloud.target_variable(t)); !unit.empty())
      spec.attributes["units"] = unit;
    variables.push_back(spec);
  }
  OutputFile writer(mesh, options.output, dimensions, variables,
                    {{"history", std::string("predicted by tessera predict")}});
  const Interval mine = mesh.rank() == 0 ? Interval{0, cloud.points()} : Interval{};
  for (std::int64_t sample = 0; sample < cloud.samples(); ++sample) {
    std::vector<double> values = predicted(trained, cloud, sample, mesh);
    for (int t = 0; t < cloud.targets(); ++t) {
      View view = View::dense(values.data() + t, DType::kFloat64, {mine.size()});
      view.strides[0] = cloud.targets();
      Box box({mine.lo}, {mine.hi});
      if (cloud.samples() > 1) {
        view.shape.insert(0, 1);
        view.strides.insert(0, 0);
        box = Box({sample, mine.lo}, {sample + 1, mine.hi});
      }
      writer.write_box(variables[static_cast<std::size_t>(t)].name, box, view);
    }
  }
  writer.commit();
  return 0;
}

}  // namespace tessera::app
