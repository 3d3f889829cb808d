#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <tessera/kernels/random.hpp>
#include <tessera/nn/data/points.hpp>
#include <utility>

#include "io/lower.hpp"

namespace tessera::data {
namespace {

constexpr std::uint64_t kHoldoutKey = 0x686f6c64ull;  // "hold"
constexpr std::uint64_t kDrawKey = 0x64726177ull;     // "draw"

enum class Axis : std::uint8_t { kOther, kLongitude, kLatitude };

std::string attribute(const io::FieldVariable& v, const std::string& name) {
  const auto it = v.attributes.find(name);
  if (it == v.attributes.end()) return "";
  const std::string* const text = std::get_if<std::string>(&it->second);
  return text != nullptr ? io::lower(*text) : "";
}

Axis axis_of(const io::FieldVariable& v) {
  const auto is = [&](const std::string& name, const std::string& unit) {
    return attribute(v, "standard_name") == name || attribute(v, "units") == unit ||
           io::lower(v.name) == name || io::lower(v.name) == name.substr(0, 3);
  };
  if (is("longitude", "degrees_east")) return Axis::kLongitude;
  return is("latitude", "degrees_north") ? Axis::kLatitude : Axis::kOther;
}

std::vector<double> on_unit_sphere(double longitude, double latitude) {
  return {std::cos(latitude) * std::cos(longitude), std::cos(latitude) * std::sin(longitude),
          std::sin(latitude)};
}

std::vector<double> uniform(std::uint64_t key, std::uint64_t counter, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  kernels::random_uniform(
      {key, counter}, 0.0, 1.0,
      {View::dense(values.data(), DType::kFloat64, {count}), Box({0}, {count}), {count}});
  return values;
}

}  // namespace

double PointCloud::Variable::at(std::int64_t sample,
                                std::int64_t point,
                                std::int64_t points) const {
  const std::int64_t index = sample * points + point;
  return values[static_cast<std::size_t>(index) % values.size()];
}

PointCloud::PointCloud(const PointCloudOptions& options, const std::vector<PointScale>& scales)
    : options_(options), scales_(scales) {
  if (options_.targets.empty()) {
    throw UsageError("data: no targets. Name the variables that are to be predicted.");
  }
  if (options_.grid.empty()) options_.grid = options_.path;
  read_positions();
  const std::int64_t n = points();

  const auto file = io::open_fields(options_.path);
  const io::FieldReader& reader = *file;
  for (const std::string& name : options_.inputs) variables_.push_back(read(reader, name));
  for (const std::string& name : options_.targets) {
    variables_.push_back(read(reader, name));
    target_variables_.push_back(reader.variable(name));
  }
  for (const Variable& v : variables_) {
    const auto samples = static_cast<std::int64_t>(v.values.size()) / n;
    if (samples != 1 && samples_ != 1 && samples != samples_) {
      throw UsageError(str("data: ", samples, " and ", samples_, " samples in the variables of ",
                           options_.path, ". Name variables with the same, or with one."));
    }
    samples_ = std::max(samples_, samples);
  }

  const std::vector<double> draws = uniform(options_.seed ^ kHoldoutKey, 0, n);
  for (std::int64_t i = 0; i < n; ++i) {
    held_out_[static_cast<std::size_t>(i)] = draws[static_cast<std::size_t>(i)] < options_.holdout;
    if (!held_out(i)) training_.push_back(i);
  }
  if (training_.empty()) {
    throw UsageError(str("data: no point is left for training (", options_.holdout,
                         " are held out). Hold out less."));
  }
  if (!scales_.empty() && scales_.size() != variables_.size()) {
    throw DataError(str("data: ", scales_.size(), " scales for ", variables_.size(),
                        " variables. Give one for each."));
  }
  for (std::size_t v = scales_.size(); v < variables_.size(); ++v) {
    double sum = 0.0;
    double squares = 0.0;
    double count = 0.0;
    for (std::int64_t s = 0; s < samples_; ++s) {
      for (const std::int64_t i : training_) {
        const double x = variables_[v].at(s, i, n);
        if (std::isnan(x)) continue;
        sum += x;
        squares += x * x;
        count += 1.0;
      }
    }
    if (count == 0.0) {
      const std::size_t inputs = options_.inputs.size();
      throw DataError(str("data: ", v < inputs ? options_.inputs[v] : options_.targets[v - inputs],
                          " of ", options_.path, " has no value. Name another variable."));
    }
    const double mean = sum / count;
    const double std = std::sqrt(std::max(squares / count - mean * mean, 0.0));
    scales_.push_back({mean, std > 0.0 ? std : 1.0});
  }
}

void PointCloud::read_positions() {
  const auto file = io::open_fields(options_.grid);
  const io::FieldReader& reader = *file;
  std::vector<std::string> names = options_.coordinates;
  if (names.empty()) {
    for (const Axis axis : {Axis::kLongitude, Axis::kLatitude})
      for (const io::FieldVariable& v : reader.variables()) {
        if (!v.numeric || v.shape.size() != 1 || axis_of(v) != axis) continue;
        names.push_back(v.name);
        break;
      }
    if (names.size() != 2) {
      throw UsageError(str("data: ", options_.grid,
                           " has no longitude and latitude of points. Name the coordinates, or the "
                           "file that has them."));
    }
  }
  std::vector<std::vector<double>> columns;
  std::vector<double> longitude;
  std::vector<double> latitude;
  for (const std::string& name : names) {
    const io::FieldVariable& v = reader.variable(name);
    if (!v.numeric || v.shape.size() != 1 || v.shape[0] < 1) {
      throw UsageError(str("data: coordinate \"", name, "\" of ", options_.grid, " has shape ",
                           v.shape, ". Name variables with one dimension, the points."));
    }
    if (!dimension_.empty() && v.shape[0] != static_cast<std::int64_t>(columns.front().size())) {
      throw UsageError(str("data: coordinates \"", names.front(), "\" and \"", name,
                           "\" have different sizes. Name those of the same points."));
    }
    dimension_ = v.dims[0];
    std::vector<double> x(static_cast<std::size_t>(v.shape[0]));
    reader.read(name, Box::whole(v.shape), View::dense(x.data(), DType::kFloat64, v.shape));
    for (const double value : x) {
      if (!std::isfinite(value)) {
        throw DataError(str("data: coordinate \"", name, "\" of ", options_.grid,
                            " has missing points. Name another, or repair the file."));
      }
    }
    const Axis axis = axis_of(v);
    if (axis != Axis::kOther) {
      const bool radians = attribute(v, "units").find("rad") != std::string::npos;
      std::vector<double>& angle = axis == Axis::kLongitude ? longitude : latitude;
      angle = x;
      for (double& a : angle) a *= radians ? 1.0 : std::numbers::pi / 180.0;
    }
    columns.push_back(std::move(x));
  }
  const std::size_t n = columns.front().size();
  held_out_.resize(n);
  on_sphere_ = columns.size() == 2 && !longitude.empty() && !latitude.empty();
  if (on_sphere_) {
    position_dims_ = 3;
    for (std::size_t i = 0; i < n; ++i)
      for (const double x : on_unit_sphere(longitude[i], latitude[i])) positions_.push_back(x);
    for (const std::vector<double>* angle : {&longitude, &latitude}) {
      const auto [low, high] = std::minmax_element(angle->begin(), angle->end());
      low_.push_back(*low);
      high_.push_back(*high);
    }
    // One scale for all three: distances keep their proportions.
    double largest = 0.0;
    for (std::size_t d = 0; d < 3; ++d) {
      double low = positions_[d];
      double high = low;
      for (std::size_t i = d; i < positions_.size(); i += 3) {
        low = std::min(low, positions_[i]);
        high = std::max(high, positions_[i]);
      }
      centre_.push_back(0.5 * (low + high));
      largest = std::max(largest, 0.5 * (high - low));
    }
    if (largest > 0.0) scale_ = largest;
    for (std::size_t i = 0; i < positions_.size(); ++i)
      positions_[i] = (positions_[i] - centre_[i % 3]) / scale_;
    return;
  }
  position_dims_ = static_cast<int>(columns.size());
  for (std::vector<double>& x : columns) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const double middle = 0.5 * (*low + *high);
    const double half = *high > *low ? 0.5 * (*high - *low) : 1.0;
    for (double& value : x) value = (value - middle) / half;
    low_.push_back(-1.0);
    high_.push_back(1.0);
  }
  for (std::size_t i = 0; i < n; ++i)
    for (const std::vector<double>& x : columns) positions_.push_back(x[i]);
}

std::vector<double> PointCloud::position_on_map(double x, double y) const {
  const auto along = [&](std::size_t d, double share) {
    return low_[d] + share * (high_[d] - low_[d]);
  };
  if (on_sphere_) {
    std::vector<double> position = on_unit_sphere(along(0, x), along(1, y));
    for (std::size_t d = 0; d < 3; ++d) position[d] = (position[d] - centre_[d]) / scale_;
    return position;
  }
  std::vector<double> position(static_cast<std::size_t>(position_dims_), 0.0);
  position[0] = along(0, x);
  if (position.size() > 1) position[1] = along(1, y);
  return position;
}

double PointCloud::map_aspect() const {
  if (!on_sphere_ || high_[0] <= low_[0]) return 1.0;
  return (high_[1] - low_[1]) / (high_[0] - low_[0]);
}

PointCloud::Variable PointCloud::read(const io::FieldReader& reader, const std::string& name) {
  const io::FieldVariable& v = reader.variable(name);
  if (!v.numeric || v.shape.size() < 1 || v.shape.back() != points() || v.shape.product() == 0) {
    throw UsageError(str("data: variable \"", name, "\" of ", options_.path, " has shape ", v.shape,
                         ", not (..., ", points(),
                         " points). Name variables on the points of the coordinates."));
  }
  Variable result;
  result.values.resize(static_cast<std::size_t>(v.shape.product()));
  reader.read(name, Box::whole(v.shape),
              View::dense(result.values.data(), DType::kFloat64, v.shape));
  return result;
}

int PointCloud::input_channels() const {
  return position_dims_ + static_cast<int>(options_.inputs.size());
}

const PointScale& PointCloud::target_scale(int target) const {
  return scales_[options_.inputs.size() + static_cast<std::size_t>(target)];
}

const io::FieldVariable& PointCloud::target_variable(int target) const {
  return target_variables_[static_cast<std::size_t>(target)];
}

void PointCloud::input(std::int64_t sample, std::int64_t point, std::span<double> channels) const {
  const auto dims = static_cast<std::size_t>(position_dims_);
  for (std::size_t d = 0; d < dims; ++d)
    channels[d] = positions_[static_cast<std::size_t>(point) * dims + d];
  for (std::size_t v = 0; v < options_.inputs.size(); ++v) {
    const double x = (variables_[v].at(sample, point, points()) - scales_[v].mean) / scales_[v].std;
    channels[dims + v] = std::isnan(x) ? 0.0 : x;
  }
}

double PointCloud::target(std::int64_t sample, int target, std::int64_t point) const {
  return variables_[options_.inputs.size() + static_cast<std::size_t>(target)].at(sample, point,
                                                                                  points());
}

template <class PointsOf>
PointBatch PointCloud::fill(const Layout& layout, DType dtype, PointsOf&& points_of) const {
  const int outputs = targets();
  PointBatch batch;
  batch.input = Tensor::empty(layout.with_dim(2, input_channels(), {}), dtype);
  batch.target = Tensor::empty(layout.with_dim(2, outputs, {}), dtype);
  batch.mask = Tensor::empty(batch.target.layout(), DType::kUInt8);
  const Box& part = batch.input.local_box();
  const View in = batch.input.mutable_local();
  const View out = batch.target.mutable_local();
  const View mask = batch.mask.mutable_local();
  std::vector<double> channels(static_cast<std::size_t>(input_channels()));
  std::int64_t at_input = 0;
  std::int64_t at_target = 0;
  for (std::int64_t n = part.lo[0]; n < part.hi[0]; ++n) {
    const auto [sample, chosen] = points_of(n);
    for (std::int64_t i = part.lo[1]; i < part.hi[1]; ++i) {
      const std::int64_t point = chosen[static_cast<std::size_t>(i)];
      input(sample, point, channels);
      for (const double c : channels) store_double(in.data, dtype, at_input++, c);
      for (int t = 0; t < outputs; ++t, ++at_target) {
        const double x = (target(sample, t, point) - target_scale(t).mean) / target_scale(t).std;
        store_double(out.data, dtype, at_target, std::isnan(x) ? 0.0 : x);
        store_double(mask.data, DType::kUInt8, at_target, std::isnan(x) ? 0.0 : 1.0);
      }
    }
  }
  return batch;
}

PointBatch PointCloud::batch(std::int64_t first, const Layout& layout, DType dtype) const {
  const std::int64_t count = layout.shape()[1];
  if (count > training_points()) {
    throw UsageError(str("data: ", count, " points of ", training_points(),
                         " in training. Draw fewer, or hold out less."));
  }
  return fill(layout, dtype, [&](std::int64_t n) {
    const auto draw = static_cast<std::uint64_t>(first + n);
    // The first number chooses the sample; then the start of a shuffle (Fisher & Yates).
    const std::vector<double> u = uniform(options_.seed ^ kDrawKey, draw, count + 1);
    const auto below = [](double x, std::int64_t most) {
      return std::min(static_cast<std::int64_t>(x * static_cast<double>(most)), most - 1);
    };
    std::vector<std::int64_t> chosen = training_;
    if (count < training_points()) {
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t from =
            i + below(u[static_cast<std::size_t>(i + 1)], training_points() - i);
        std::swap(chosen[static_cast<std::size_t>(i)], chosen[static_cast<std::size_t>(from)]);
      }
    }
    return std::pair(below(u[0], samples_), std::move(chosen));
  });
}

PointBatch PointCloud::whole(std::int64_t sample, const Layout& layout, DType dtype) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(points()));
  std::iota(all.begin(), all.end(), 0);
  return fill(layout, dtype, [&](std::int64_t) { return std::pair(sample, all); });
}

}  // namespace tessera::data
