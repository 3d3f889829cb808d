// ranks: 1 2 3
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/data/forecast.hpp>
#include <tessera/nn/io/netcdf.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using data::Forecast;
using data::ForecastBatch;
using data::ForecastOptions;

constexpr std::int64_t kFrames = 14;
constexpr std::int64_t kRows = 5;
constexpr std::int64_t kColumns = 7;
constexpr std::int64_t kSeason = 3;
constexpr std::int64_t kTest = 4;
constexpr std::int64_t kTrain = kFrames - kTest;

double value(int variable, std::int64_t t, std::int64_t i, std::int64_t j) {
  const double x =
      static_cast<double>((t * 31 + i * 17 + j * 7 + variable * 5) * 2654435761 % 1000);
  return x / 100.0 + 3.0 * static_cast<double>(t % kSeason) + static_cast<double>(i);
}

/// A file with variables a and b; test frames hold 100 times the value where `wild`.
std::string write(const std::string& name, bool wild) {
  static const std::string folder = std::filesystem::temp_directory_path().string();
  const std::int64_t key =
      static_cast<std::int64_t>(from_process_0(static_cast<std::uint64_t>(getpid())));
  const std::string path = str(folder, "/tessera-forecast-", key, "-", name, ".nc");
  if (process().rank == 0) {
    io::NetcdfWriter writer(path,
                            {{.name = "Time", .size = kFrames},
                             {.name = "y", .size = kRows},
                             {.name = "x", .size = kColumns}},
                            {{.name = "a", .dims = {"Time", "y", "x"}, .dtype = DType::kFloat64},
                             {.name = "b", .dims = {"Time", "y", "x"}, .dtype = DType::kFloat64}});
    for (int v = 0; v < 2; ++v) {
      std::vector<double> all;
      for (std::int64_t t = 0; t < kFrames; ++t)
        for (std::int64_t i = 0; i < kRows; ++i)
          for (std::int64_t j = 0; j < kColumns; ++j)
            all.push_back(value(v, t, i, j) * (wild && t >= kTrain ? 100.0 : 1.0));
      writer.write_box(v == 0 ? "a" : "b", Box::whole({kFrames, kRows, kColumns}),
                       View::dense(all.data(), DType::kFloat64, {kFrames, kRows, kColumns}));
    }
    writer.commit();
  }
  nn::collective(Mesh::world({{"h", process().count}})).barrier();
  return path;
}

Layout layout_of(const Forecast& data, std::int64_t samples) {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  return Placement(mesh).domain(0, "h").resolve({samples, kRows, kColumns, data.input_channels()});
}

double mean(int v, std::int64_t phase, std::int64_t i, std::int64_t j) {
  double sum = 0.0;
  double count = 0.0;
  for (std::int64_t t = phase; t < kTrain; t += kSeason, count += 1.0) sum += value(v, t, i, j);
  return sum / count;
}

double anomaly(int v, std::int64_t t, std::int64_t i, std::int64_t j) {
  return value(v, t, i, j) - mean(v, t % kSeason, i, j);
}

}  // namespace

TEST_CASE("forecast pairs: anomalies, damped anomalies and the phase, of the training part alone") {
  for (const bool wild : {false, true}) {
    const std::string path = write(wild ? "wild" : "tame", wild);
    const io::Collective ranks = nn::collective(Mesh::world({{"h", process().count}}));
    Forecast data({.path = path, .history = 2, .season = kSeason, .test = kTest});
    CHECK(data.variables() == 2);
    CHECK(data.input_channels() == 2 * 2 + 2 + 2);
    CHECK(data.training_pairs() == kTrain - 2);
    CHECK(data.test_pairs() == kTest);
    data.prepare(layout_of(data, 3), ranks);

    const ForecastBatch b = data.training_pair(1, DType::kFloat64);
    const std::int64_t t = 3;  // the second frame that has two before it
    const DenseArray input = to_dense(b.input);
    const DenseArray target = to_dense(b.target);
    const DenseArray base = to_dense(b.base);
    for (int v = 0; v < 2; ++v) {
      double residuals = 0.0;
      double squares = 0.0;
      const auto k = static_cast<std::size_t>(v);
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < kColumns; ++j) {
          double xx = 0.0;
          double xy = 0.0;
          for (std::int64_t s = 2; s < kTrain; ++s) {
            xx += anomaly(v, s - 1, i, j) * anomaly(v, s - 1, i, j);
            xy += anomaly(v, s - 1, i, j) * anomaly(v, s, i, j);
          }
          for (std::int64_t s = 2; s < kTrain; ++s) {
            squares += std::pow(anomaly(v, s, i, j), 2);
            residuals += std::pow(anomaly(v, s, i, j) - xy / xx * anomaly(v, s - 1, i, j), 2);
          }
          const auto p = static_cast<std::size_t>(i * kColumns + j);
          const double scale = data.scales()[k].std;
          const double damped = xy / xx * anomaly(v, t - 1, i, j);
          CHECK(input.values[8 * p + k] == Approx(anomaly(v, t - 1, i, j) / scale).margin(1e-12));
          CHECK(input.values[8 * p + 2 + k] ==
                Approx(anomaly(v, t - 2, i, j) / scale).margin(1e-12));
          CHECK(input.values[8 * p + 4 + k] == Approx(damped / scale).margin(1e-12));
          CHECK(input.values[8 * p + 6] == Approx(1.0));  // phase 0: cosine, sine
          CHECK(input.values[8 * p + 7] == Approx(0.0).margin(1e-12));
          CHECK(base.values[2 * p + k] == Approx(mean(v, 0, i, j) + damped));
          CHECK(target.values[2 * p + k] * data.scales()[k].residual ==
                Approx(value(v, t, i, j) - mean(v, 0, i, j) - damped).margin(1e-12));
        }
      }
      const double count = static_cast<double>(kRows * kColumns * (kTrain - 2));
      CHECK(data.scales()[k].std == Approx(std::sqrt(squares / count)));
      CHECK(data.scales()[k].residual == Approx(std::sqrt(residuals / count)));
    }
    const DenseArray truth = to_dense(data.test_pair(0, DType::kFloat64).truth);
    CHECK(truth.values[0] == Approx(value(0, kTrain, 0, 0) * (wild ? 100.0 : 1.0)));
    ranks.barrier();
    if (process().rank == 0) std::filesystem::remove(path);
  }
}

TEST_CASE("a climatology of harmonics is their least-squares fit to the training part") {
  constexpr std::int64_t kCycle = 4;
  const std::string path = write("waves", false);
  const io::Collective ranks = nn::collective(Mesh::world({{"h", process().count}}));
  Forecast data({.path = path, .season = kCycle, .season_harmonics = 1, .test = kTest});
  data.prepare(layout_of(data, 1), ranks);
  // Normal equations of 1, cos, sin over the training frames, by elimination.
  const auto basis = [](std::int64_t t, int k) {
    const double angle = 2.0 * std::acos(-1.0) * static_cast<double>(t) / kCycle;
    return k == 0 ? 1.0 : k == 1 ? std::cos(angle) : std::sin(angle);
  };
  for (std::int64_t p = 0; p < kTest; ++p) {
    const DenseArray climatology = to_dense(data.test_pair(p, DType::kFloat64).climatology);
    for (int v = 0; v < 2; ++v) {
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t j = 0; j < kColumns; ++j) {
          double m[3][4] = {};
          for (std::int64_t t = 0; t < kTrain; ++t)
            for (int r = 0; r < 3; ++r)
              for (int c = 0; c < 4; ++c)
                m[r][c] += basis(t, r) * (c < 3 ? basis(t, c) : value(v, t, i, j));
          for (int r = 0; r < 3; ++r)
            for (int other = 0; other < 3; ++other) {
              const double f = other == r ? 0.0 : m[other][r] / m[r][r];
              for (int c = 0; c < 4; ++c) m[other][c] -= f * m[r][c];
            }
          double expected = 0.0;
          for (int k = 0; k < 3; ++k) expected += m[k][3] / m[k][k] * basis(kTrain + p, k);
          CHECK(climatology.values[static_cast<std::size_t>(2 * (i * kColumns + j) + v)] ==
                Approx(expected));
        }
      }
    }
  }
  CHECK_THROWS_AS(Forecast({.path = path, .season = 4, .season_harmonics = 2}), UsageError);
  CHECK_THROWS_AS(Forecast({.path = path, .season_harmonics = 1}), UsageError);
  ranks.barrier();
  if (process().rank == 0) std::filesystem::remove(path);
}

TEST_CASE("forecast pairs: without a season, persistence; draws depend on their number alone") {
  const std::string path = write("draws", false);
  const io::Collective ranks = nn::collective(Mesh::world({{"h", process().count}}));
  Forecast data({.path = path, .variables = {"b"}, .lead = 2, .test = 2, .seed = 5});
  CHECK(data.input_channels() == 1);
  data.prepare(layout_of(data, 4), ranks);
  const ForecastBatch pair = data.test_pair(1, DType::kFloat64);
  CHECK(!pair.climatology.defined());
  const DenseArray base = to_dense(pair.base);
  CHECK(base.values == to_dense(pair.persistence).values);
  CHECK(base.values[9] == Approx(value(1, kFrames - 3, 1, 2)));
  const ForecastBatch next = data.next(0, DType::kFloat64);
  CHECK(!next.truth.defined());
  CHECK(!next.target.defined());
  CHECK(to_dense(next.base).values[9] == Approx(value(1, kFrames - 1, 1, 2)));
  CHECK(to_dense(pair.truth).values[9] == Approx(value(1, kFrames - 1, 1, 2)));

  // Samples 2 and 3 of the first batch are samples 0 and 1 of the one that starts two later.
  const DenseArray first = to_dense(data.batch(0, DType::kFloat64).input);
  const DenseArray later = to_dense(data.batch(2, DType::kFloat64).input);
  const auto half = static_cast<std::ptrdiff_t>(first.values.size() / 2);
  CHECK(std::vector<double>(first.values.begin() + half, first.values.end()) ==
        std::vector<double>(later.values.begin(), later.values.begin() + half));
  CHECK(std::vector<double>(first.values.begin(), first.values.begin() + half) !=
        std::vector<double>(later.values.begin(), later.values.begin() + half));

  CHECK_THROWS_AS(Forecast({.path = path, .variables = {"c"}}), DataError);
  CHECK_THROWS_AS(Forecast({.path = path, .time = "month"}), UsageError);
  CHECK_THROWS_AS(Forecast({.path = path, .history = 0}), UsageError);
  CHECK_THROWS_AS(Forecast({.path = path, .history = 9, .test = 6}), UsageError);
  ranks.barrier();
  if (process().rank == 0) std::filesystem::remove(path);
}

}  // namespace tessera::test
