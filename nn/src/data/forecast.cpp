#include <algorithm>
#include <cmath>
#include <numbers>
#include <tessera/kernels/random.hpp>
#include <tessera/nn/data/forecast.hpp>

#include "data/draws.hpp"
#include "io/lower.hpp"

namespace tessera::data {
namespace {

constexpr std::uint64_t kPairKey = 0x7061697273ull;  // "pairs": draws of their own

std::vector<GridField> open_fields(const ForecastOptions& o) {
  std::vector<std::string> names = o.variables;
  const auto file = io::open_fields(o.path);
  const io::FieldReader& reader = *file;
  if (names.empty()) {
    for (const io::FieldVariable& v : reader.variables())
      if (v.numeric && v.shape.size() >= 2 && io::find_dimension(v.dims, o.time) >= 0)
        names.push_back(v.name);
  }
  std::vector<GridField> fields;
  for (const std::string& name : names) {
    const io::FieldVariable& v = reader.variable(name);
    const int time = io::find_dimension(v.dims, o.time);
    const int domain = v.shape.size() - time - 1;
    if (time < 0 || domain < 1 || domain > 3)
      throw UsageError(str("data: variable \"", name, "\" of ", o.path, " is not (..., ", o.time,
                           ", grid...) with 1 to 3 grid dimensions. Name "
                           "other variables, or the time dimension."));
    if (v.shape != reader.variable(names.front()).shape)
      throw UsageError(str("data: variables \"", names.front(), "\" and \"", name,
                           "\" have different shapes. Name those of one shape."));
    fields.emplace_back(GridFieldOptions{
        .path = o.path, .variable = name, .domain_dims = domain, .periodic = o.periodic});
  }
  if (fields.empty())
    throw UsageError(str("data: ", o.path, " has no variable with a dimension \"", o.time,
                         "\". Name the time dimension."));
  return fields;
}

/// Writes row-major values into channel `c` of sample `n` of a local part.
void put(const Tensor& t, std::int64_t n, std::int64_t c, const std::vector<double>& values) {
  const View view = t.mutable_local();  // dense
  const std::int64_t channels = view.shape.back();
  std::int64_t at = n * static_cast<std::int64_t>(values.size()) * channels + c;
  visit_dtype(view.dtype, [&]<class T>() {
    for (const double v : values) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        view.as<T>()[at] = BFloat16(static_cast<float>(v));
      } else {
        view.as<T>()[at] = static_cast<T>(v);
      }
      at += channels;
    }
  });
}

}  // namespace

Forecast::Forecast(const ForecastOptions& options)
    : options_(options), fields_(open_fields(options)) {
  const ForecastOptions& o = options_;
  const io::FieldVariable& v = fields_.front().variable();
  frames_ = v.shape[io::find_dimension(v.dims, o.time)];
  sequences_ = fields_.front().fields() / frames_;
  if (o.history < 1 || o.lead < 1 || o.season < 0 || o.test < 0)
    throw UsageError(str("data: history ", o.history, ", lead ", o.lead, ", season ", o.season,
                         ", test ", o.test,
                         ". Use at least 1 for the first two, 0 for the others."));
  if (o.season_harmonics < 0 || (o.season_harmonics > 0 && 2 * o.season_harmonics >= o.season))
    throw UsageError(str("data: ", o.season_harmonics, " harmonics of a season of ", o.season,
                         " frames. Use less than half as many as there are frames."));
  const bool by_sequence = sequences_ > 1;
  const std::int64_t training_sequences = by_sequence ? sequences_ - o.test : 1;
  const std::int64_t training_frames = by_sequence ? frames_ : frames_ - o.test;
  for (std::int64_t s = 0; s < sequences_; ++s) {
    for (std::int64_t f = 0; f < frames_; ++f) {
      const bool training = s < training_sequences && f < training_frames;
      if (training) seen_.push_back({s, f});
      if (f < o.history - 1 + o.lead) continue;
      (training ? training_ : test_).push_back({s, f});
    }
  }
  if (training_.empty() || training_frames < std::max<std::int64_t>(o.season, 1))
    throw UsageError(str("data: nothing is left to train on: ", sequences_, " sequences of ",
                         frames_, " frames, of which ", o.test, " for the test; history ",
                         o.history, ", lead ", o.lead, ", season ", o.season,
                         ". Hold out less, or use a shorter history."));
}

int Forecast::input_channels() const {
  std::int64_t channels = variables() * options_.history;
  if (options_.season > 0) channels += variables() + 2;
  if (options_.coordinate_channels)
    for (int d = 0; d < dims(); ++d) channels += fields_.front().periodic(d) ? 0 : 1;
  return static_cast<int>(channels);
}

void Forecast::read(std::int64_t sequence,
                    std::int64_t frame,
                    int variable,
                    std::vector<double>& to) const {
  to.resize(static_cast<std::size_t>(part_.volume()));
  if (to.empty()) return;
  field(variable).read(record(sequence, frame), part_,
                       View::dense(to.data(), DType::kFloat64, part_.shape()));
  for (const double x : to)
    if (std::isnan(x))
      throw DataError(str("data: ", options_.path, " has missing points in \"",
                          field(variable).variable().name, "\". Fill them first."));
}

void Forecast::prepare(const Layout& layout,
                       const io::Collective& ranks,
                       const std::vector<ForecastScale>& scales) {
  const auto grid_part = [&](int rank) {
    const Box all = layout.owned(rank);
    Box part;
    for (int d = 1; d <= dims(); ++d) {
      part.lo.push_back(all.lo[d]);
      part.hi.push_back(all.hi[d]);
    }
    return part;
  };
  Shape shape = layout.shape();
  if (shape.size() != dims() + 2) throw ShapeError(str("data: layout ", layout.str(), "."));
  for (int d = 0; d < dims(); ++d)
    if (shape[d + 1] != grid()[d])
      throw ShapeError(str("data: layout of shape ", shape, " for the grid ", grid(), "."));
  layout_ = layout;
  part_ = grid_part(layout.mesh().rank());
  first_ = true;
  for (int r = 0; r < layout.mesh().rank(); ++r) first_ = first_ && grid_part(r) != part_;
  ranks.together([&] {
    compute_means();
    compute_damping();
  });
  scales_ = scales.empty() ? compute_scales(ranks) : scales;
}

void Forecast::compute_means() {
  const std::int64_t phases = std::max<std::int64_t>(options_.season, 1);
  means_.assign(static_cast<std::size_t>(variables() * phases),
                std::vector<double>(static_cast<std::size_t>(part_.volume()), 0.0));
  std::vector<std::int64_t> counts(static_cast<std::size_t>(phases), 0);
  for (const Pair& p : seen_) ++counts[static_cast<std::size_t>(phase(p.frame))];
  std::vector<double> x;
  for (int v = 0; v < variables(); ++v) {
    for (const Pair& p : seen_) {
      read(p.sequence, p.frame, v, x);
      std::vector<double>& mean = means_[static_cast<std::size_t>(v * phases + phase(p.frame))];
      const auto n = static_cast<double>(counts[static_cast<std::size_t>(phase(p.frame))]);
      for (std::size_t i = 0; i < x.size(); ++i) mean[i] += x[i] / n;
    }
  }
  if (options_.season_harmonics > 0) smooth_means(counts);
}

void Forecast::smooth_means(const std::vector<std::int64_t>& counts) {
  // Least squares over all frames, which share a phase's values of the basis: an orthonormal basis
  // of the harmonics under the scalar product sum_p counts[p] a[p] b[p].
  const std::size_t phases = counts.size();
  const auto dot = [&](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0.0;
    for (std::size_t p = 0; p < phases; ++p) sum += static_cast<double>(counts[p]) * a[p] * b[p];
    return sum;
  };
  std::vector<std::vector<double>> basis;
  for (std::int64_t k = 0; k <= 2 * options_.season_harmonics; ++k) {
    std::vector<double> wave(phases);
    for (std::size_t p = 0; p < phases; ++p) {
      const double angle = 2.0 * std::numbers::pi * static_cast<double>((k + 1) / 2) *
                           static_cast<double>(p) / static_cast<double>(phases);
      wave[p] = k % 2 == 0 ? std::cos(angle) : std::sin(angle);
    }
    for (const std::vector<double>& other : basis) {
      const double along = dot(wave, other);
      for (std::size_t p = 0; p < phases; ++p) wave[p] -= along * other[p];
    }
    const double norm = std::sqrt(dot(wave, wave));
    for (double& w : wave) w /= norm;
    basis.push_back(std::move(wave));
  }
  std::vector<double> of_phase(phases);
  for (std::size_t v = 0; v < means_.size(); v += phases) {
    for (std::size_t i = 0; i < means_[v].size(); ++i) {
      for (std::size_t p = 0; p < phases; ++p) {
        of_phase[p] = means_[v + p][i];
        means_[v + p][i] = 0.0;
      }
      for (const std::vector<double>& wave : basis) {
        const double along = dot(of_phase, wave);
        for (std::size_t p = 0; p < phases; ++p) means_[v + p][i] += along * wave[p];
      }
    }
  }
}

void Forecast::compute_damping() {
  damping_.assign(static_cast<std::size_t>(variables()), {});
  if (options_.season == 0) return;
  std::vector<double> x;
  std::vector<double> y;
  for (int v = 0; v < variables(); ++v) {
    std::vector<double> xx(static_cast<std::size_t>(part_.volume()), 0.0);
    std::vector<double> xy = xx;
    for (const Pair& p : training_) {
      read(p.sequence, p.frame - options_.lead, v, x);
      read(p.sequence, p.frame, v, y);
      const auto& mean_x =
          means_[static_cast<std::size_t>(v * options_.season + phase(p.frame - options_.lead))];
      const auto& mean_y = means_[static_cast<std::size_t>(v * options_.season + phase(p.frame))];
      for (std::size_t i = 0; i < x.size(); ++i) {
        xx[i] += (x[i] - mean_x[i]) * (x[i] - mean_x[i]);
        xy[i] += (x[i] - mean_x[i]) * (y[i] - mean_y[i]);
      }
    }
    for (std::size_t i = 0; i < xx.size(); ++i) xy[i] = xx[i] > 0.0 ? xy[i] / xx[i] : 0.0;
    damping_[static_cast<std::size_t>(v)] = std::move(xy);
  }
}

std::vector<ForecastScale> Forecast::compute_scales(const io::Collective& ranks) const {
  // Per variable: sum over points of the mean, of squared deviations, and of squared residuals.
  const std::int64_t season = options_.season;
  const auto points = static_cast<double>(grid().product());
  std::vector<ForecastScale> scales(static_cast<std::size_t>(variables()));
  // Ranks that hold a copy of another's part add nothing.
  const auto total = [&](std::vector<double> own) {
    if (!first_) own.assign(own.size(), 0.0);
    return ranks.total(own);
  };
  std::vector<double> sums(scales.size(), 0.0);
  const auto phases = static_cast<std::size_t>(std::max<std::int64_t>(season, 1));
  for (std::size_t v = 0; v < scales.size(); ++v)
    for (std::size_t k = 0; k < phases; ++k)
      for (const double m : means_[v * phases + k]) sums[v] += m;
  sums = total(sums);
  for (std::size_t v = 0; v < scales.size(); ++v)
    scales[v].mean = sums[v] / points / static_cast<double>(phases);

  std::vector<double> squares(2 * scales.size(), 0.0);
  ranks.together([&] {
    std::vector<double> x;
    std::vector<double> y;
    for (std::size_t v = 0; v < scales.size(); ++v) {
      const int variable = static_cast<int>(v);
      for (const Pair& p : training_) {
        read(p.sequence, p.frame - options_.lead, variable, x);
        read(p.sequence, p.frame, variable, y);
        const auto& my = means_[v * phases + static_cast<std::size_t>(phase(p.frame))];
        const auto& mx =
            means_[v * phases + static_cast<std::size_t>(phase(p.frame - options_.lead))];
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double deviation = y[i] - (season > 0 ? my[i] : scales[v].mean);
          const double residual =
              season > 0 ? deviation - damping_[v][i] * (x[i] - mx[i]) : y[i] - x[i];
          squares[2 * v] += deviation * deviation;
          squares[2 * v + 1] += residual * residual;
        }
      }
    }
  });
  squares = total(squares);
  const double count = points * static_cast<double>(training_.size());
  for (std::size_t v = 0; v < scales.size(); ++v) {
    const auto root = [&](double sum) { return sum > 0.0 ? std::sqrt(sum / count) : 1.0; };
    scales[v].std = root(squares[2 * v]);
    scales[v].residual = root(squares[2 * v + 1]);
  }
  return scales;
}

ForecastBatch Forecast::allocate(const Layout& layout, DType dtype) const {
  const int last = layout.dims() - 1;
  ForecastBatch batch;
  batch.input = Tensor::empty(layout.with_dim(last, input_channels(), {}), dtype);
  batch.target = Tensor::empty(layout.with_dim(last, variables(), {}), dtype);
  return batch;
}

void Forecast::fill(const Pair& pair, std::int64_t n, const ForecastBatch& batch) const {
  const ForecastOptions& o = options_;
  const std::int64_t phases = std::max<std::int64_t>(o.season, 1);
  const auto points = static_cast<std::size_t>(part_.volume());
  std::int64_t channel = 0;
  std::vector<double> x;
  std::vector<double> scaled(points);
  std::vector<std::vector<double>> last(fields_.size());  // the last frame seen
  const std::int64_t newest = pair.frame - o.lead;
  for (std::int64_t lag = 0; lag < o.history; ++lag) {
    for (int v = 0; v < variables(); ++v) {
      const std::int64_t frame = newest - lag;
      const ForecastScale& scale = scales_[static_cast<std::size_t>(v)];
      const auto& mean = means_[static_cast<std::size_t>(v * phases + phase(frame))];
      read(pair.sequence, frame, v, x);
      for (std::size_t i = 0; i < points; ++i) {
        scaled[i] = (x[i] - (o.season > 0 ? mean[i] : scale.mean)) / scale.std;
      }
      put(batch.input, n, channel++, scaled);
      if (lag == 0) last[static_cast<std::size_t>(v)] = x;
    }
  }
  for (int v = 0; v < variables(); ++v) {
    const auto k = static_cast<std::size_t>(v);
    std::vector<double> base = last[k];
    if (o.season > 0) {
      const auto& from = means_[static_cast<std::size_t>(v * phases + phase(newest))];
      const auto& to = means_[static_cast<std::size_t>(v * phases + phase(pair.frame))];
      for (std::size_t i = 0; i < points; ++i) {
        const double anomaly = damping_[k][i] * (last[k][i] - from[i]);
        base[i] = to[i] + anomaly;
        scaled[i] = anomaly / scales_[k].std;
      }
      put(batch.input, n, channel++, scaled);
      if (batch.climatology.defined()) put(batch.climatology, n, v, to);
    }
    if (batch.base.defined()) put(batch.base, n, v, base);
    if (!batch.target.defined()) continue;
    read(pair.sequence, pair.frame, v, x);
    if (batch.truth.defined()) {
      put(batch.truth, n, v, x);
      put(batch.persistence, n, v, last[k]);
    }
    for (std::size_t i = 0; i < points; ++i) x[i] = (x[i] - base[i]) / scales_[k].residual;
    put(batch.target, n, v, x);
  }
  if (o.season > 0) {
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(phase(pair.frame)) /
                         static_cast<double>(o.season);
    put(batch.input, n, channel++, std::vector<double>(points, std::cos(angle)));
    put(batch.input, n, channel++, std::vector<double>(points, std::sin(angle)));
  }
  for (int d = 0; d < dims() && o.coordinate_channels; ++d) {
    if (fields_.front().periodic(d)) continue;
    const std::vector<double>& at = fields_.front().coordinates(d);
    const auto [low, high] = std::minmax_element(at.begin(), at.end());
    std::size_t next = 0;
    for_each_index(part_, [&](const Index& i) {
      const double c = at[static_cast<std::size_t>(i[d])];
      scaled[next++] = *high > *low ? 2.0 * (c - *low) / (*high - *low) - 1.0 : 0.0;
    });
    put(batch.input, n, channel++, scaled);
  }
}

ForecastBatch Forecast::batch(std::int64_t first, DType dtype) const {
  const ForecastBatch batch = allocate(layout_, dtype);
  const Box& own = batch.input.local_box();
  if (own.empty()) return batch;
  for (std::int64_t n = own.lo[0]; n < own.hi[0]; ++n) {
    std::int64_t words[2];
    kernels::random_bits({options_.seed ^ kPairKey, static_cast<std::uint64_t>(first + n)},
                         {View::dense(words, DType::kInt64, {2}), Box({0}, {2}), {2}});
    const std::int64_t pair = scaled_draw(words, std::ssize(training_));
    fill(training_[static_cast<std::size_t>(pair)], n - own.lo[0], batch);
  }
  return batch;
}

ForecastBatch Forecast::single(const Pair& pair, DType dtype) const {
  // One sample, which every coordinate of an axis that splits samples holds.
  ForecastBatch batch = allocate(layout_.with_dim(0, 1, {}), dtype);
  const Layout out = batch.target.layout();
  batch.base = Tensor::empty(out, DType::kFloat64);
  if (pair.frame < frames_) {
    batch.truth = Tensor::empty(out, DType::kFloat64);
    batch.persistence = Tensor::empty(out, DType::kFloat64);
    if (options_.season > 0) batch.climatology = Tensor::empty(out, DType::kFloat64);
  } else {
    batch.target = {};
  }
  if (!batch.input.local_box().empty()) fill(pair, 0, batch);
  return batch;
}

ForecastBatch Forecast::training_pair(std::int64_t index, DType dtype) const {
  return single(training_.at(static_cast<std::size_t>(index)), dtype);
}

ForecastBatch Forecast::test_pair(std::int64_t index, DType dtype) const {
  return single(test_.at(static_cast<std::size_t>(index)), dtype);
}

ForecastBatch Forecast::next(std::int64_t sequence, DType dtype) const {
  return single({sequence, frames_ - 1 + options_.lead}, dtype);
}

std::string Forecast::test_title(std::int64_t index) const {
  const Pair& p = test_.at(static_cast<std::size_t>(index));
  return sequences_ > 1 ? str("sequence ", p.sequence, ", frame ", p.frame)
                        : str("frame ", p.frame);
}

}  // namespace tessera::data
