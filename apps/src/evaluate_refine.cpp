#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/scores.hpp>
#include <tessera/nn/io/jsonl.hpp>

#include "grid_tasks.hpp"
#include "mesh_option.hpp"
#include "pictures.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

using data::ErrorSums;
using data::ReliefScores;

/// Largest side of the part that is shown, in fine points.
constexpr std::int64_t kShown = 320;

/// Whether grid point `i` of `n` along a dimension lies in `part`, which may run on beyond n.
bool inside(Interval part, std::int64_t i, std::int64_t n) {
  return part.contains({i, i + 1}) || part.contains({i + n, i + n + 1});
}

/// The scored part in fine points of the grid.
Box scored_part(const data::SuperResolution& data) {
  Box part = data.holdout();
  if (part.empty()) part = Box::whole(data.coarse_shape());
  for (int d = 0; d < part.dims(); ++d) {
    part.set(d, {part.lo[d] * data.options().factor, part.hi[d] * data.options().factor});
  }
  return part;
}

/// Calls f(local offset, grid index) for each point of this rank's part of [1, grid..., 1] that
/// lies in `part`.
template <class F>
void for_each_scored(const Tensor& t, const Box& part, F&& f) {
  const Box& owned = t.local_box();
  std::int64_t next = 0;
  for_each_index(owned, [&](const Index& i) {
    const std::int64_t offset = next++;
    Index grid;
    for (int d = 1; d + 1 < i.size(); ++d) {
      if (!inside(part[d - 1], i[d], t.size(d))) return;
      grid.push_back(i[d]);
    }
    f(offset, grid);
  });
}

/// A copy whose local offsets are those of `for_each_scored`.
Tensor dense(const Tensor& t) { return Tensor::from_local(t.local(), t.layout()); }

/// The sums of all ranks.
ReliefScores total(ReliefScores scores, const io::Collective& ranks) {
  ErrorSums* const parts[] = {&scores.all, &scores.land, &scores.ocean};
  std::vector<double> numbers;
  for (const ErrorSums* p : parts)
    numbers.insert(numbers.end(),
                   {static_cast<double>(p->count), p->squares, p->absolute, p->bias});
  numbers = ranks.total(numbers);
  const double* n = numbers.data();
  for (ErrorSums* p : parts) {
    *p = {static_cast<std::int64_t>(n[0]), n[1], n[2], n[3]};
    n += 4;
  }
  return scores;
}

nlohmann::ordered_json to_json(const ReliefScores& scores) {
  nlohmann::ordered_json json;
  const auto put = [&](const char* name, const ErrorSums& e) {
    json[name] = {{"rmse", e.rmse()}, {"mae", e.mae()}, {"bias", e.mean()}, {"points", e.count}};
  };
  put("overall", scores.all);
  put("land", scores.land);
  put("ocean", scores.ocean);
  return json;
}

/// The middle of the scored part.
Box tile_to_show(const Box& part) {
  Box tile = part;
  for (int d = 0; d < part.dims(); ++d) {
    const std::int64_t side = std::min(kShown, part[d].size());
    const std::int64_t start = part.lo[d] + (part[d].size() - side) / 2;
    tile.set(d, {start, start + side});
  }
  return tile;
}

/// Values of a tile on every rank, [rows, columns], in the field's unit.
std::vector<double> values_of(const Tensor& t, const Box& tile, const data::Normalization& norm) {
  Tensor part = t;
  for (int d = 0; d < tile.dims(); ++d) {
    const std::int64_t start = tile.lo[d] % t.size(d + 1);
    part = slice(part, d + 1, start, std::min(start + tile[d].size(), t.size(d + 1)));
  }
  part = replicate(part);
  const View view = part.local();
  std::vector<double> values;
  for_each_index(Box::whole(part.shape()), [&](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < i.size(); ++d) offset += i[d] * view.strides[d];
    values.push_back(load_as_double(view.data, view.dtype, offset) * norm.std + norm.mean);
  });
  return values;
}

}  // namespace

int evaluate_refine(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh) {
  const RunFiles files{options.run};
  const RunSettings& settings = *trained.settings;
  const bool first = mesh.rank() == 0;
  const io::Collective ranks = nn::collective(mesh);
  const data::Normalization norm = normalization_of(trained);
  const data::SuperResolution data =
      open_refine_data(settings, refined_field(settings), mesh, norm);
  const int dims = data.field().dims();

  Shape shape = {1};
  for (const std::int64_t n : data.coarse_shape()) shape.push_back(n);
  shape.push_back(data.input_channels());
  const Layout input =
      field_placement(mesh, dims).resolve(shape, {.multiple = trained.model->total_stride()});
  const Layout fine = data.fine_layout(input);
  const Box part = scored_part(data);

  nlohmann::ordered_json scores;
  std::vector<std::pair<std::string, ReliefScores>> table;
  std::vector<Tensor> shown;
  Tensor truth;
  for (std::int64_t f = 0; f < data.field().fields(); ++f) {
    const data::SuperResolutionBatch batch =
        data.window(Box::whole(data.coarse_shape()), input, fine, settings.dtype(), f);
    const NoGrad no_grad;
    const Tensor coarse = slice(batch.input, -1, 0, 1);
    const auto& edges = trained.model->transform().edges;
    const std::vector<std::pair<std::string, Tensor>> predictions = {
        {"model", trained(batch.input)},
        {"bicubic", nn::upsample(coarse, data.options().factor, InterpolateMode::kCubic, edges)},
        {"bilinear", nn::upsample(coarse, data.options().factor, InterpolateMode::kLinear, edges)}};
    if (table.empty()) {
      for (const auto& [name, t] : predictions) table.emplace_back(name, ReliefScores{});
      truth = batch.target;
      for (const auto& [name, t] : predictions) shown.push_back(t);
    }
    for (std::size_t k = 0; k < predictions.size(); ++k) {
      const Tensor y = dense(redistribute(predictions[k].second, fine));
      const View yv = y.local();
      const View tv = batch.target.local();
      const View mv = batch.mask.defined() ? batch.mask.local() : View{};
      ReliefScores own;
      for_each_scored(batch.target, part, [&](std::int64_t offset, const Index&) {
        if (mv.data != nullptr && load_as_double(mv.data, mv.dtype, offset) == 0.0) return;
        own.add(load_as_double(yv.data, yv.dtype, offset) * norm.std + norm.mean,
                load_as_double(tv.data, tv.dtype, offset) * norm.std + norm.mean);
      });
      table[k].second += total(own, ranks);
    }
  }

  for (const auto& [name, s] : table) scores[name] = to_json(s);
  const double gain = 1.0 - table[0].second.all.rmse() / table[1].second.all.rmse();
  const Box tile = tile_to_show(part);
  PredictionPicture picture = {.tile = tile, .truth = {}, .model = {}, .bicubic = {}};
  if (dims == 2) {
    picture.truth = values_of(truth, tile, norm);
    picture.model = values_of(shown[0], tile, norm);
    picture.bicubic = values_of(shown[1], tile, norm);
  }
  ranks.together([&] {
    if (!first) return;
    nlohmann::ordered_json json = {
        {"file", settings.data->file_name()}, {"variable", data.field().variable().name},
        {"factor", data.options().factor},    {"holdout", GridSettings::of(settings).holdout},
        {"weights", files.weights()},         {"scores", scores},
        {"gain_over_bicubic", gain}};
    io::write_text(files.evaluation(), json.dump(2) + "\n");
    if (dims == 2) draw_prediction(files.error_picture(), picture, data.field());
    fmt::print("{:<10} {:>12} {:>12} {:>12}\n", "RMSE", "overall", "land", "ocean");
    for (const auto& [name, s] : table) {
      fmt::print("{:<10} {:>12.2f} {:>12.2f} {:>12.2f}\n", name, s.all.rmse(), s.land.rmse(),
                 s.ocean.rmse());
    }
    fmt::print("The model's error is {:.1f} % below bicubic interpolation's.\n", 100.0 * gain);
  });
  return 0;
}

}  // namespace tessera::app
