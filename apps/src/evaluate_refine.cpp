#include <fmt/format.h>

#include <array>
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

/// A box of coarse points in fine points.
Box finer(Box box, std::int64_t factor) {
  for (int d = 0; d < box.dims(); ++d) box.set(d, {box.lo[d] * factor, box.hi[d] * factor});
  return box;
}

/// The scored part in fine points of the grid.
Box scored_part(const data::SuperResolution& data) {
  Box part = data.holdout();
  if (part.empty()) part = Box::whole(data.coarse_shape());
  return finer(part, data.options().factor);
}

/// Whether a point of the tile lies in `part`, both in fine points of a grid of `size`.
bool touches(const Box& tile, const Box& part, const Shape& size) {
  for (int d = 0; d < tile.dims(); ++d) {
    bool any = false;
    for (std::int64_t i = tile.lo[d]; i < tile.hi[d] && !any; ++i)
      any = inside(part[d], i, size[d]);
    if (!any) return false;
  }
  return true;
}

/// Calls f(local offset, grid index) for each point of this rank's part of [1, window..., 1] that
/// lies in both `tile` and `part`; the tensor's point 0 is the grid's point `origin`.
template <class F>
void for_each_scored(const Tensor& t,
                     const Dims& origin,
                     const Box& tile,
                     const Box& part,
                     const Shape& size,
                     F&& f) {
  std::int64_t next = 0;
  for_each_index(t.local_box(), [&](const Index& i) {
    const std::int64_t offset = next++;
    Index grid;
    for (int d = 1; d + 1 < i.size(); ++d) {
      const std::int64_t at = origin[d - 1] + i[d];
      if (!tile[d - 1].contains({at, at + 1}) || !inside(part[d - 1], at, size[d - 1])) return;
      grid.push_back(at);
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

/// Values on a box of the grid, [rows, columns], put together by all ranks.
class Shown {
 public:
  Shown(const Box& box, const Shape& size) : box_(box), size_(size) {}
  void add(const Index& grid, double value) {
    if (values_.empty()) values_.assign(static_cast<std::size_t>(box_.volume()), 0.0);
    std::int64_t at = 0;
    for (int d = 0; d < box_.dims(); ++d) {
      // The box may run on beyond the end of a circle.
      std::int64_t i = grid[d] - box_.lo[d];
      if (i < 0) i += size_[d];
      if (i < 0 || i >= box_[d].size()) return;
      at = at * box_[d].size() + i;
    }
    values_[static_cast<std::size_t>(at)] = value;
  }
  std::vector<double> collect(const io::Collective& ranks) {
    values_.resize(static_cast<std::size_t>(box_.volume()), 0.0);
    ranks.combine(values_);
    return values_;
  }

 private:
  Box box_;
  Shape size_;
  std::vector<double> values_;
};

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

  const std::int64_t factor = data.options().factor;
  const std::vector<Tile> tiles = tiles_for(options.tile, trained, data.coarse_shape());
  const Box part = scored_part(data);
  Shape size;  // of the grid that is refined
  for (const std::int64_t n : data.coarse_shape()) size.push_back(n * factor);
  const Box picture_box = tile_to_show(part);

  constexpr std::array<const char*, 3> kNames = {"model", "bicubic", "bilinear"};
  std::vector<std::pair<std::string, ReliefScores>> table;
  for (const char* name : kNames) table.emplace_back(name, ReliefScores{});
  std::array<Shown, 3> shown = {Shown(picture_box, size), Shown(picture_box, size),
                                Shown(picture_box, size)};  // truth, model, bicubic
  const NoGrad no_grad;
  for (std::int64_t f = 0; f < data.field().fields(); ++f) {
    std::array<ReliefScores, 3> own;
    for (const Tile& tile : tiles) {
      const Box kept = finer(tile.part, factor);
      if (!touches(kept, part, size)) continue;
      const Layout input = field_layout(mesh, 1, tile.window.shape(), data.input_channels(),
                                        trained.model->total_stride());
      const Layout fine = data.fine_layout(input);
      const data::SuperResolutionBatch batch =
          data.window(tile.window, input, fine, settings.dtype(), f);
      const Tensor coarse = slice(batch.input, -1, 0, 1);
      const auto& edges = trained.model->transform().edges;
      const std::array<Tensor, 3> predictions = {
          options.mirrors ? trained.over_mirrors(batch.input) : trained(batch.input),
          nn::upsample(coarse, factor, InterpolateMode::kCubic, edges),
          nn::upsample(coarse, factor, InterpolateMode::kLinear, edges)};
      const View tv = batch.target.local();
      const View mv = batch.mask.defined() ? batch.mask.local() : View{};
      const auto value = [&](const View& v, std::int64_t offset) {
        return load_as_double(v.data, v.dtype, offset) * norm.std + norm.mean;
      };
      const Dims origin = finer(tile.window, factor).lo;
      for (std::size_t k = 0; k < predictions.size(); ++k) {
        const Tensor y = dense(redistribute(predictions[k], fine));
        const View yv = y.local();
        for_each_scored(
            batch.target, origin, kept, part, size, [&](std::int64_t offset, const Index& grid) {
              if (f == 0) {
                if (k == 0) shown[0].add(grid, value(tv, offset));
                if (k < 2) shown[k + 1].add(grid, value(yv, offset));
              }
              if (mv.data != nullptr && load_as_double(mv.data, mv.dtype, offset) == 0.0) return;
              own[k].add(value(yv, offset), value(tv, offset));
            });
      }
    }
    for (std::size_t k = 0; k < own.size(); ++k) table[k].second += total(own[k], ranks);
  }

  nlohmann::ordered_json scores;
  for (const auto& [name, s] : table) scores[name] = to_json(s);
  const double gain = 1.0 - table[0].second.all.rmse() / table[1].second.all.rmse();
  PredictionPicture picture = {.tile = picture_box, .truth = {}, .model = {}, .bicubic = {}};
  if (dims == 2) {
    picture.truth = shown[0].collect(ranks);
    picture.model = shown[1].collect(ranks);
    picture.bicubic = shown[2].collect(ranks);
  }
  ranks.together([&] {
    if (!first) return;
    nlohmann::ordered_json json = {{"file", settings.data->file_name()},
                                   {"variable", data.field().variable().name},
                                   {"factor", factor},
                                   {"holdout", GridSettings::of(settings).holdout},
                                   {"weights", files.weights()},
                                   {"mirrors", options.mirrors},
                                   {"scores", scores},
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
