#include <algorithm>
#include <cmath>
#include <numbers>
#include <tessera/nn/data/statistics.hpp>

#include "io/blocks.hpp"

namespace tessera::data {
namespace {

constexpr std::int64_t kBlockPoints = 1 << 20;
constexpr std::size_t kNumbers = 7;  // that the ranks exchange of a block

/// Weights of the points of a box, row-major.
void weights_of(const Box& box,
                const std::vector<std::vector<double>>& weights,
                std::vector<double>& result) {
  result.assign(static_cast<std::size_t>(box.volume()), 1.0);
  std::int64_t inner = 1;
  for (int d = box.dims() - 1; d >= 0; --d) {
    const std::vector<double>& w = weights[static_cast<std::size_t>(d)];
    const std::int64_t n = box[d].size();
    if (!w.empty())
      for (std::size_t i = 0; i < result.size(); ++i)
        result[i] *=
            w[static_cast<std::size_t>(box.lo[d] + static_cast<std::int64_t>(i) / inner % n)];
    inner *= n;
  }
}

}  // namespace

Moments Moments::of(std::span<const double> values, std::span<const double> weights) {
  Moments m;
  const auto weight = [&](std::size_t i) { return weights.empty() ? 1.0 : weights[i]; };
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ++m.missing;
    } else if (weight(i) > 0.0) {
      ++m.count;
      m.weight += weight(i);
      sum += weight(i) * values[i];
      m.min = std::min(m.min, values[i]);
      m.max = std::max(m.max, values[i]);
    }
  }
  if (m.count == 0) return m;
  m.mean = sum / m.weight;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isnan(values[i]) && weight(i) > 0.0)
      m.m2 += weight(i) * (values[i] - m.mean) * (values[i] - m.mean);
  return m;
}

void Moments::merge(const Moments& other) {
  missing += other.missing;
  if (other.count == 0) return;
  const double total = weight + other.weight;
  const double delta = other.mean - mean;
  mean += delta * other.weight / total;
  m2 += other.m2 + delta * delta * weight * other.weight / total;
  weight = total;
  count += other.count;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
}

double Moments::std() const {
  const double deviation = std::sqrt(m2 / weight);
  return deviation > 0.0 ? deviation : 1.0;
}

std::vector<double> area_weights(const std::vector<double>& latitudes_in_degrees) {
  std::vector<double> weights;
  for (const double latitude : latitudes_in_degrees)
    weights.push_back(std::max(0.0, std::cos(latitude * std::numbers::pi / 180.0)));
  return weights;
}

Moments statistics(const std::string& what,
                   const Shape& shape,
                   const std::function<void(const Box&, std::span<double>)>& read,
                   const io::Collective& ranks,
                   const StatisticsOptions& options) {
  bool weighted = false;
  for (std::size_t d = 0; d < options.weights.size(); ++d) {
    weighted = weighted || !options.weights[d].empty();
    if (std::ssize(options.weights) != shape.size() ||
        (!options.weights[d].empty() &&
         std::ssize(options.weights[d]) != shape[static_cast<int>(d)]))
      throw UsageError(str("data: weights of ", what, " do not fit its shape ", shape,
                           ". Give an empty list, or one weight per point, for each dimension."));
  }
  std::vector<Box> blocks;
  io::for_each_block(Box::whole(shape), kBlockPoints,
                     [&](const Box& block) { blocks.push_back(block); });
  std::vector<double> numbers(kNumbers * blocks.size(), 0.0);
  ranks.together([&] {
    std::vector<double> values;
    std::vector<double> weights;
    for (std::size_t b = static_cast<std::size_t>(ranks.rank); b < blocks.size();
         b += static_cast<std::size_t>(ranks.size)) {
      values.resize(static_cast<std::size_t>(blocks[b].volume()));
      read(blocks[b], values);
      if (weighted) weights_of(blocks[b], options.weights, weights);
      const Moments m = Moments::of(values, weights);
      const double own[kNumbers] = {static_cast<double>(m.count),
                                    static_cast<double>(m.missing),
                                    m.weight,
                                    m.mean,
                                    m.m2,
                                    m.min,
                                    m.max};
      std::copy_n(own, kNumbers, numbers.begin() + static_cast<std::ptrdiff_t>(kNumbers * b));
    }
  });
  ranks.combine(numbers);
  Moments all;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const double* const n = numbers.data() + kNumbers * b;
    all.merge({.count = static_cast<std::int64_t>(n[0]),
               .missing = static_cast<std::int64_t>(n[1]),
               .weight = n[2],
               .mean = n[3],
               .m2 = n[4],
               .min = n[5],
               .max = n[6]});
  }
  if (all.count == 0) throw DataError(str("data: ", what, " has no valid points to train on."));
  if (!std::isfinite(all.min) || !std::isfinite(all.max) || !std::isfinite(all.mean) ||
      !std::isfinite(all.m2))
    throw DataError(str("data: ", what, " holds infinite values (from ", all.min, " to ", all.max,
                        "). Mark such points as missing (_FillValue, or NaN)."));
  return all;
}

Moments statistics(const io::FieldReader& reader,
                   const std::string& variable,
                   const io::Collective& ranks,
                   const StatisticsOptions& options) {
  return statistics(
      str("variable \"", variable, "\" of ", reader.path()), reader.variable(variable).shape,
      [&](const Box& box, std::span<double> values) {
        reader.read(variable, box, View::dense(values.data(), DType::kFloat64, box.shape()));
      },
      ranks, options);
}

}  // namespace tessera::data
