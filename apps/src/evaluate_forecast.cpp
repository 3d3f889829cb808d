#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/scores.hpp>
#include <tessera/nn/io/jsonl.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "grid_tasks.hpp"
#include "least_squares.hpp"
#include "pictures.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

using data::ErrorSums;

/// Training pairs that the linear baseline is fitted to, at most.
constexpr std::int64_t kFitted = 48;

/// This rank's values of a tensor, row-major; empty where a lower rank holds the same.
std::vector<double> local_values(const Tensor& t) {
  if (!io::is_first_replica(t.layout())) return {};
  const Tensor dense = Tensor::from_local(t.local(), t.layout());
  const View view = dense.local();
  std::vector<double> values(static_cast<std::size_t>(view.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_as_double(view.data, view.dtype, static_cast<std::int64_t>(i));
  }
  return values;
}

/// Least squares: what is to be added to the base as a linear function of all variables of the last
/// frame seen, their Laplacians, and 1.
class LinearForecast {
 public:
  LinearForecast(const data::Forecast& data, std::vector<EdgeRule> edges, DType dtype)
      : variables_(data.variables()), edges_(std::move(edges)), dtype_(dtype) {}

  void fit(const data::Forecast& data, const io::Collective& ranks) {
    const auto n = static_cast<std::size_t>(2 * variables_ + 1);
    const auto v = static_cast<std::size_t>(variables_);
    std::vector<double> sums(n * (n + v), 0.0);  // rows of [normal matrix | right-hand sides]
    const std::int64_t pairs = std::min(kFitted, data.training_pairs());
    for (std::int64_t p = 0; p < pairs; ++p) {
      const data::ForecastBatch b = data.training_pair(p * data.training_pairs() / pairs, dtype_);
      const std::vector<std::vector<double>> f = features(b.input);
      const std::vector<double> target = local_values(b.target);
      for (std::size_t i = 0; i < f[0].size(); ++i) {
        for (std::size_t r = 0; r < n; ++r) {
          double* const row = sums.data() + r * (n + v);
          for (std::size_t c = 0; c < n; ++c) row[c] += f[r][i] * f[c][i];
          for (std::size_t c = 0; c < v; ++c) row[n + c] += f[r][i] * target[i * v + c];
        }
      }
    }
    sums = ranks.total(sums);
    weights_ = solve_normal(sums, n, v);
  }

  /// Values of [N, grid..., V], normalised as targets are.
  std::vector<double> operator()(const Tensor& input) const {
    const std::vector<std::vector<double>> f = features(input);
    const auto v = static_cast<std::size_t>(variables_);
    std::vector<double> y(f[0].size() * v, 0.0);
    for (std::size_t i = 0; i < f[0].size(); ++i)
      for (std::size_t r = 0; r < f.size(); ++r)
        for (std::size_t c = 0; c < v; ++c) y[i * v + c] += weights_[r * v + c] * f[r][i];
    return y;
  }

 private:
  std::vector<std::vector<double>> features(const Tensor& input) const {
    const int dims = input.dims() - 2;
    Shape shape = {1};
    for (int d = 0; d < dims; ++d) shape.push_back(3);
    shape.push_back(1);
    const Tensor laplacian = Tensor::from_function(
        Layout::replicated(input.mesh(), shape),
        [&](const Index& i) {
          std::int64_t away = 0;
          for (int d = 1; d <= dims; ++d) away += std::abs(i[d] - 1);
          return away == 0 ? -2.0 * dims : away == 1 ? 1.0 : 0.0;
        },
        input.dtype());
    const Dims one = Dims::filled(dims, 1);
    std::vector<std::vector<double>> f;
    for (std::int64_t c = 0; c < variables_; ++c) {
      const Tensor x = slice(input, -1, c, c + 1);
      f.push_back(local_values(x));
      f.push_back(local_values(conv(x, laplacian, {}, {.pad_lo = one, .edges = edges_})));
    }
    f.emplace_back(f[0].size(), 1.0);
    return f;
  }

  std::int64_t variables_;
  std::vector<EdgeRule> edges_;
  DType dtype_;
  std::vector<double> weights_;  // [feature, variable]
};

/// Errors of one way to forecast, per variable.
struct Scored {
  std::string name;
  std::vector<ErrorSums> sums;
  std::vector<double> by_area = {};  // sums of area * error^2, [forecast, variable]

  /// `values` and `truth` are [points, variables] of one forecast, `area` [points] or empty.
  void add(const std::vector<double>& values,
           const std::vector<double>& truth,
           const std::vector<double>& area) {
    const std::size_t v = sums.size();
    by_area.resize(by_area.size() + v, 0.0);
    double* const squares = by_area.data() + by_area.size() - v;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      sums[i % v].add(values[i], truth[i]);
      if (!area.empty()) squares[i % v] += area[i / v] * std::pow(values[i] - truth[i], 2);
    }
  }
  void share(const io::Collective& ranks) {
    std::vector<double> own = by_area;
    for (const ErrorSums& s : sums) {
      own.insert(own.end(), {static_cast<double>(s.count), s.squares, s.absolute, s.bias});
    }
    own = ranks.total(own);
    std::copy_n(own.begin(), by_area.size(), by_area.begin());
    const double* of = own.data() + by_area.size();
    for (ErrorSums& s : sums) {
      s = {static_cast<std::int64_t>(of[0]), of[1], of[2], of[3]};
      of += 4;
    }
  }
  /// The mean over all forecasts of the root of the mean square error over the globe.
  double rmse_by_area(std::size_t variable, double globe) const {
    double sum = 0.0;
    for (std::size_t i = variable; i < by_area.size(); i += sums.size())
      sum += std::sqrt(by_area[i] / globe);
    return sum / static_cast<double>(by_area.size() / sums.size());
  }
};

/// Cosine of the latitude of this rank's points, in the order of local_values(); empty without a
/// latitude.
std::vector<double> areas(const data::Forecast& data, const Layout& layout) {
  std::vector<double> area;
  for (int d = 0; d < data.dims(); ++d) {
    if (!is_degrees(data.field(0).coordinate_attribute(d, "units"), 'n')) continue;
    if (!io::is_first_replica(layout)) return {};
    const std::vector<double>& latitude = data.field(0).coordinates(d);
    Box points = layout.local_box();
    points.hi[points.dims() - 1] = std::min<std::int64_t>(points.hi[points.dims() - 1], 1);
    for_each_index(points, [&](const Index& i) {
      const double angle = latitude[static_cast<std::size_t>(i[d + 1])] * std::numbers::pi / 180.0;
      area.push_back(std::max(std::cos(angle), 0.0));
    });
    return area;
  }
  return area;
}

/// Variable 0 of a test pair on every rank, [rows, columns]; of a volume its middle section.
std::vector<double> shown_values(const Tensor& t) {
  Tensor part = slice(t, -1, 0, 1);
  if (t.dims() == 5) part = slice(part, 1, t.size(1) / 2, t.size(1) / 2 + 1);
  part = replicate(part);
  const Tensor dense = Tensor::from_local(part.local(), part.layout());
  std::vector<double> values;
  for (std::int64_t i = 0; i < dense.numel(); ++i) {
    values.push_back(load_as_double(dense.local().data, dense.dtype(), i));
  }
  return values;
}

}  // namespace

int evaluate_forecast(const EvaluateOptions& options, const Trained& trained, const Mesh& mesh) {
  const RunFiles files{options.run};
  const GridSettings& settings = GridSettings::of(*trained.settings);
  const std::vector<data::ForecastScale> scales = forecast_scales(trained);
  const io::Collective ranks = nn::collective(mesh);
  const DType dtype = trained.settings->dtype();
  data::Forecast data = open_forecast(*trained.settings, mesh);
  if (data.test_pairs() == 0) {
    throw UsageError(str("evaluate: ", options.run,
                         " was trained on everything (data.test is 0). Train with --test."));
  }
  place_forecast(data, mesh, 1, trained.model->total_stride(), scales);
  const auto variables = static_cast<std::size_t>(data.variables());
  const NoGrad no_grad;
  LinearForecast linear(data, trained.model->transform().edges, dtype);
  linear.fit(data, ranks);

  const bool season = settings.season > 0;
  std::vector<Scored> scored;
  for (const char* name : {"model", "linear", "damped anomaly", "climatology", "persistence"}) {
    const std::string text = name;
    if (!season && (text == "damped anomaly" || text == "climatology")) continue;
    scored.push_back({text, std::vector<ErrorSums>(variables)});
  }
  if (options.last > data.test_pairs()) {
    throw UsageError(str("evaluate: the last ", options.last, " of ", data.test_pairs(),
                         " held-out frames. Ask for fewer."));
  }
  const std::int64_t first = options.last > 0 ? data.test_pairs() - options.last : 0;
  const std::int64_t forecasts = data.test_pairs() - first;
  const std::int64_t shown = first + forecasts / 2;
  std::vector<double> area;
  std::vector<std::vector<double>> picture;  // truth, model, base
  for (std::int64_t p = first; p < data.test_pairs(); ++p) {
    const data::ForecastBatch b = data.test_pair(p, dtype);
    if (p == first) area = areas(data, b.truth.layout());
    const Tensor y = redistribute(cast(trained(b.input), DType::kFloat64), b.base.layout());
    const std::vector<double> truth = local_values(b.truth);
    const std::vector<double> base = local_values(b.base);
    const auto corrected = [&](std::vector<double> residual) {
      for (std::size_t i = 0; i < residual.size(); ++i) {
        residual[i] = base[i] + residual[i] * scales[i % variables].residual;
      }
      return residual;
    };
    for (Scored& s : scored) {
      if (s.name == "model") s.add(corrected(local_values(y)), truth, area);
      if (s.name == "linear") s.add(corrected(linear(b.input)), truth, area);
      if (s.name == "damped anomaly") s.add(base, truth, area);
      if (s.name == "climatology") s.add(local_values(b.climatology), truth, area);
      if (s.name == "persistence") s.add(local_values(b.persistence), truth, area);
    }
    if (p == shown && data.dims() > 1) {
      picture = {shown_values(b.truth), shown_values(b.base + y * scales[0].residual),
                 shown_values(b.base)};
    }
  }
  for (Scored& s : scored) s.share(ranks);
  const double globe =
      ranks.total(std::vector<double>{std::accumulate(area.begin(), area.end(), 0.0)})[0];

  ranks.together([&] {
    if (mesh.rank() != 0) return;
    nlohmann::ordered_json json = {{"file", settings.file},
                                   {"lead", settings.lead},
                                   {"test_pairs", forecasts},
                                   {"weights", files.weights()}};
    std::string header = fmt::format("RMSE, {} forecasts", forecasts);
    fmt::print("{:<24}", header);
    for (std::size_t v = 0; v < variables; ++v) {
      fmt::print(" {:>12}", data.field(static_cast<int>(v)).variable().name);
    }
    fmt::print(" {:>24}\n", "skill of the model");
    for (const Scored& s : scored) {
      fmt::print("{:<24}", s.name);
      double skill = 0.0;  // 1 - MSE / MSE, the mean over the variables
      for (std::size_t v = 0; v < variables; ++v) {
        const double rmse = s.sums[v].rmse();
        fmt::print(" {:>12.5g}", rmse);
        json["rmse"][s.name][data.field(static_cast<int>(v)).variable().name] = rmse;
        skill +=
            (1.0 - std::pow(scored[0].sums[v].rmse() / rmse, 2)) / static_cast<double>(variables);
      }
      if (s.name != "model") {
        json["skill_over"][s.name] = skill;
        fmt::print(" {:>24}", fmt::format("{:.1f} %", 100.0 * skill));
      }
      fmt::print("\n");
    }
    if (globe > 0.0) {
      fmt::print("{:<24}\n", "The same weighted by area, the mean over the forecasts");
      for (const Scored& s : scored) {
        fmt::print("{:<24}", s.name);
        for (std::size_t v = 0; v < variables; ++v) {
          const double rmse = s.rmse_by_area(v, globe);
          fmt::print(" {:>12.5g}", rmse);
          json["rmse_by_area"][s.name][data.field(static_cast<int>(v)).variable().name] = rmse;
        }
        fmt::print("\n");
      }
    }
    std::cout << std::flush;
    io::write_text(files.evaluation(), json.dump(2) + "\n");
    if (!picture.empty()) {
      draw_forecast(files.error_picture(),
                    {.truth = picture[0],
                     .model = picture[1],
                     .base = picture[2],
                     .base_name = season ? "Damped anomaly" : "Persistence",
                     .title = data.test_title(shown)},
                    data.field(0));
    }
  });
  return 0;
}

}  // namespace tessera::app
