#pragma once

#include <cstdint>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/data/grid_field.hpp>
#include <tessera/nn/io/collective.hpp>
#include <vector>

namespace tessera::data {

struct ForecastOptions {
  std::string path;
  /// Variables `v(..., time, grid...)` of one shape; empty: all that have the time dimension.
  std::vector<std::string> variables = {};
  /// Name of the time dimension, capitals or not.
  std::string time = "time";
  std::vector<std::string> periodic = {};
  std::int64_t history = 1;  ///< frames that are seen
  std::int64_t lead = 1;     ///< frames from the last one seen to the one foretold
  std::int64_t season = 0;   ///< frames of a cycle (12: months in a year); 0: none
  /// The climatology is a constant and so many harmonics of the cycle, fitted to the training part
  /// by least squares: with few cycles less noisy than 0, the mean of each phase by itself.
  std::int64_t season_harmonics = 0;
  /// What training never aims at: so many of the last sequences where there are several (dimensions
  /// before time), else of the last frames.
  std::int64_t test = 0;
  bool coordinate_channels = false;  ///< adds the coordinate of each dimension that is not periodic
  std::uint64_t seed = 0;            ///< key of the draws
};

/// Scales of one variable.
struct ForecastScale {
  double mean = 0.0;      ///< of the training part
  double std = 1.0;       ///< of the training part, or of its anomalies
  double residual = 1.0;  ///< root mean square of truth - base over the training part
};

/// Pairs for a network: `input` [N, grid..., C], `target` [N, grid..., V] = (truth - base) /
/// residual. `base`, `truth`, `persistence` and `climatology` [N, grid..., V] are in the file's
/// units; the last three are defined for test pairs only, the last with a season only.
struct ForecastBatch {
  Tensor input;
  Tensor target;
  Tensor base;
  Tensor truth;
  Tensor persistence;
  Tensor climatology;
};

/// Forecasts of fields in a file: from `history` frames the one `lead` frames later.
///
/// Without a season the base is persistence and inputs are (x - mean) / std. With a season inputs
/// are anomalies / std (x minus the climatology of its phase in the training part, at each point),
/// the base is the damped anomaly: climatology + r * last anomaly, r the regression of the training
/// part at each point; damped anomalies and the phase (cosine, sine) are further channels. The
/// channels of the last frame seen come first. Missing points are not accepted. Every rank reads
/// its own part of the grid.
class Forecast {
 public:
  /// Throws IoError, DataError, UsageError when the options do not fit the file.
  explicit Forecast(const ForecastOptions& options);

  int dims() const { return fields_.front().dims(); }
  const Shape& grid() const { return fields_.front().shape(); }
  const GridField& field(int variable) const { return fields_[static_cast<std::size_t>(variable)]; }
  int variables() const { return static_cast<int>(fields_.size()); }
  int input_channels() const;
  std::int64_t training_pairs() const { return static_cast<std::int64_t>(training_.size()); }
  std::int64_t test_pairs() const { return static_cast<std::int64_t>(test_.size()); }

  /// Collective: reads the training part once, for the parts of `layout` [N, grid..., any], the
  /// layout of all batches up to N and C. `scales` are computed where not given.
  void prepare(const Layout& layout,
               const io::Collective& ranks,
               const std::vector<ForecastScale>& scales = {});
  const std::vector<ForecastScale>& scales() const { return scales_; }

  /// Draws first, first + 1, ... of the training pairs, one for each entry of dimension 0.
  ForecastBatch batch(std::int64_t first, DType dtype) const;
  /// A training or test pair, N = 1, with everything that is known of it.
  ForecastBatch training_pair(std::int64_t index, DType dtype) const;
  ForecastBatch test_pair(std::int64_t index, DType dtype) const;
  /// `input` and `base`, N = 1, of the frame `lead` after the last one of a sequence; the rest is
  /// undefined.
  ForecastBatch next(std::int64_t sequence, DType dtype) const;
  std::int64_t sequences() const { return sequences_; }
  /// "sequence 3, frame 17" of a test pair's target, for titles.
  std::string test_title(std::int64_t index) const;

 private:
  /// A sequence and the frame to be foretold.
  struct Pair {
    std::int64_t sequence;
    std::int64_t frame;
  };
  std::int64_t record(std::int64_t sequence, std::int64_t frame) const {
    return sequence * frames_ + frame;
  }
  std::int64_t phase(std::int64_t frame) const {
    return options_.season > 0 ? frame % options_.season : 0;
  }
  void read(std::int64_t sequence, std::int64_t frame, int variable, std::vector<double>& to) const;
  void compute_means();
  void smooth_means(const std::vector<std::int64_t>& counts);
  void compute_damping();
  std::vector<ForecastScale> compute_scales(const io::Collective& ranks) const;
  void fill(const Pair& pair, std::int64_t n, const ForecastBatch& batch) const;
  ForecastBatch single(const Pair& pair, DType dtype) const;
  ForecastBatch allocate(const Layout& layout, DType dtype) const;

  ForecastOptions options_;
  std::vector<GridField> fields_;  // one per variable
  std::int64_t sequences_ = 1;
  std::int64_t frames_ = 0;
  std::vector<Pair> training_;
  std::vector<Pair> test_;
  std::vector<Pair> seen_;  // frames of the training part, for statistics
  Layout layout_;
  Box part_;           // this rank's part of the grid
  bool first_ = true;  // whether no lower rank holds the same part
  std::vector<ForecastScale> scales_;
  std::vector<std::vector<double>> means_;    // climatology, [variable * season + phase][point]
  std::vector<std::vector<double>> damping_;  // [variable][point]
};

}  // namespace tessera::data
