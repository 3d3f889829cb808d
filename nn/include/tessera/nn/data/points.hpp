#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::data {

struct PointCloudOptions {
  std::string path;       ///< NetCDF file with the variables
  std::string grid = {};  ///< that with the coordinates; empty: the same
  /// Variables [points] of the grid file; empty: longitude and latitude, by name or attribute.
  std::vector<std::string> coordinates = {};
  /// Variables (..., points) that are known; dimensions before the points count samples.
  std::vector<std::string> inputs = {};
  std::vector<std::string> targets = {};  ///< what is to be predicted
  double holdout = 0.2;                   ///< share of the points that training never sees
  std::uint64_t seed = 0;                 ///< key of the draws
};

/// A variable is presented to a network as (x - mean) / std, of the training points.
struct PointScale {
  double mean = 0.0;
  double std = 1.0;
};

/// Pairs for a network, normalised: `input` [N, points, C], first the position, then the inputs
/// (missing ones 0); `target` [N, points, V]; `mask` (u8, like the target): 1 where it is known.
struct PointBatch {
  Tensor input;
  Tensor target;
  Tensor mask;
};

/// Values on the nodes or cells of an unstructured mesh, or on stations: some variables are to be
/// predicted from the position and from others. Longitude and latitude become a point on the
/// sphere, moved and scaled so that all points lie between -1 and 1; other coordinates are scaled
/// to -1..1 each. All is held in memory, on every rank: draws of
/// points go anywhere.
class PointCloud {
 public:
  /// Throws IoError, DataError, UsageError when the options do not fit the files. `scales` (inputs,
  /// then targets) are computed where not given.
  explicit PointCloud(const PointCloudOptions& options, const std::vector<PointScale>& scales = {});

  std::int64_t points() const { return static_cast<std::int64_t>(held_out_.size()); }
  std::int64_t samples() const { return samples_; }
  std::int64_t training_points() const { return static_cast<std::int64_t>(training_.size()); }
  int input_channels() const;
  int targets() const { return static_cast<int>(options_.targets.size()); }
  const std::vector<PointScale>& scales() const { return scales_; }
  const PointScale& target_scale(int target) const;
  const io::FieldVariable& target_variable(int target) const;
  /// Name of the dimension of the points.
  const std::string& dimension() const { return dimension_; }

  /// The position of each point as the network sees it, [points, position_dims()].
  std::span<const double> positions() const { return positions_; }
  int position_dims() const { return position_dims_; }
  /// The position of a place on a map of the first two coordinates: x and y run from 0 to 1 over
  /// the range of the points.
  std::vector<double> position_on_map(double x, double y) const;
  /// Range of the second coordinate over that of the first.
  double map_aspect() const;
  bool held_out(std::int64_t point) const { return held_out_[static_cast<std::size_t>(point)]; }
  /// Points of the training, ascending.
  const std::vector<std::int64_t>& training() const { return training_; }
  /// Normalised channels of a point's input, position first.
  void input(std::int64_t sample, std::int64_t point, std::span<double> channels) const;
  /// A value of a target in the file's unit; NaN where it is missing.
  double target(std::int64_t sample, int target, std::int64_t point) const;

  /// Draws first, first + 1, ... for the entries of dimension 0: a sample, and as many of its
  /// training points as `layout` [N, points, any] has, each once.
  PointBatch batch(std::int64_t first, const Layout& layout, DType dtype) const;
  /// All points of one sample; `layout` [1, points, any].
  PointBatch whole(std::int64_t sample, const Layout& layout, DType dtype) const;

 private:
  struct Variable {
    std::vector<double> values;  // [samples or 1, points]
    double at(std::int64_t sample, std::int64_t point, std::int64_t points) const;
  };
  void read_positions();
  Variable read(const io::FieldReader& reader, const std::string& name);
  template <class PointsOf>
  PointBatch fill(const Layout& layout, DType dtype, PointsOf&& points_of) const;

  PointCloudOptions options_;
  std::int64_t samples_ = 1;
  std::string dimension_;
  std::vector<double> positions_;
  int position_dims_ = 0;
  bool on_sphere_ = false;
  std::vector<double> low_;  // range of the coordinates as they are mapped: radians, or -1 and 1
  std::vector<double> high_;
  std::vector<double> centre_;       // what is taken from points of the unit sphere
  double scale_ = 1.0;               // and what they are divided by
  std::vector<Variable> variables_;  // inputs, then targets
  std::vector<io::FieldVariable> target_variables_;
  std::vector<PointScale> scales_;
  std::vector<bool> held_out_;
  std::vector<std::int64_t> training_;
};

}  // namespace tessera::data
