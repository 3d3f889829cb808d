#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/data/grid_field.hpp>
#include <tessera/nn/io/collective.hpp>
#include <vector>

namespace tessera::data {

/// Values are presented to a network as (x - mean) / std.
struct Normalization {
  double mean = 0.0;
  double std = 1.0;
  bool missing = false;  ///< whether the file has missing points
};

struct SuperResolutionOptions {
  GridFieldOptions field;  ///< its `multiple` is set to `factor`
  /// Fine points per coarse point in every grid dimension.
  std::int64_t factor = 4;
  /// Fine points of a training crop per grid dimension, multiples of `factor`.
  Shape crop = {256, 256};
  /// Part that no training crop touches: coordinates from `holdout_lo` to below `holdout_hi` along
  /// `holdout_dim` (empty: the last one). Equal bounds: nothing is held out.
  std::string holdout_dim = {};
  double holdout_lo = 0.0;
  double holdout_hi = 0.0;
  /// Key of the draws of crops.
  std::uint64_t seed = 0;
  /// Mirrors half of the crops along each dimension.
  bool flips = false;
  /// Adds an input channel per dimension that is not periodic: its coordinate, scaled to -1..1 over
  /// the grid.
  bool coordinate_channels = false;
  /// Taken as given; otherwise mean and standard deviation of the training part, which reads it
  /// once.
  std::optional<Normalization> normalization = {};
};

/// A batch of pairs, normalised: `input` [N, coarse..., C], `target` [N, fine..., 1]. `mask` (u8,
/// like the target: 1 where the field has a value) is undefined when the file has no missing
/// points; those are 0 in input and target.
struct SuperResolutionBatch {
  Tensor input;
  Tensor target;
  Tensor mask;
};

/// Super-resolution of a field from a file: the coarse input is made by block means of `factor`^d
/// points, the target is the field itself. Crops are drawn by the global number of the sample, so
/// that every mesh sees the same data, and each rank reads no more than its own part of each crop.
class SuperResolution {
 public:
  /// Collective when the normalisation is to be computed: the ranks share the reading. Throws
  /// UsageError when crop, factor and held-out part do not fit the field.
  explicit SuperResolution(const SuperResolutionOptions& options,
                           const io::Collective& collective = {});

  const GridField& field() const { return field_; }
  const SuperResolutionOptions& options() const { return options_; }
  const Normalization& normalization() const { return normalization_; }
  /// Whether batches carry a mask.
  bool masked() const { return normalization_.missing; }
  int input_channels() const { return 1 + static_cast<int>(coordinate_dims_.size()); }
  Shape coarse_shape() const;
  /// Number of distinct crops, without mirror images.
  std::int64_t crops() const;

  /// Shape of the input of `samples` training crops, [N, coarse..., C].
  Shape input_shape(std::int64_t samples) const;
  /// The layout of a target or output [N, fine..., channels] whose parts cover those of a coarse
  /// [N, coarse..., C].
  Layout fine_layout(const Layout& coarse, std::int64_t channels = 1) const;

  /// Training samples first, first + 1, ..., one for each entry of dimension 0. The layouts may
  /// differ in their splits. Throws ShapeError when they do not have the shapes of `input_shape`
  /// and `fine_layout`.
  SuperResolutionBatch batch(std::int64_t first,
                             const Layout& input,
                             const Layout& target,
                             DType dtype = DType::kFloat32) const;

  /// Where training sample `sample` lies: its fine window in field `field`, and the dimensions
  /// along which it is mirrored.
  struct Crop {
    std::int64_t field = 0;
    Box window;
    std::vector<bool> mirrored;
  };
  Crop crop(std::int64_t sample) const;

  /// The held-out part in coarse points; empty when there is none. In a periodic dimension it may
  /// reach beyond the size.
  Box holdout() const;
  /// One sample: the window `coarse` (in coarse points; beyond the edge only in periodic
  /// dimensions) of field `field`.
  SuperResolutionBatch window(const Box& coarse,
                              const Layout& input,
                              const Layout& target,
                              DType dtype = DType::kFloat32,
                              std::int64_t field = 0) const;

 private:
  struct Source;
  SuperResolutionBatch load(const std::function<Source(std::int64_t)>& source_of,
                            const Layout& input,
                            const Layout& target,
                            DType dtype) const;
  void read_crop(const Source& source, const Box& fine, std::vector<double>& values) const;
  void write_input(const View& input,
                   std::int64_t n,
                   const Source& source,
                   const Box& coarse,
                   std::vector<double>& fine_values) const;
  void write_target(const SuperResolutionBatch& batch,
                    std::int64_t n,
                    const std::vector<double>& fine_values) const;
  double normalized(double value) const;
  bool held_out(std::int64_t fine) const;
  Normalization compute_normalization(const io::Collective& collective) const;

  SuperResolutionOptions options_;
  GridField field_;
  Normalization normalization_;
  int holdout_dim_ = 0;
  Interval holdout_;                               // coarse points along holdout_dim_
  std::vector<std::vector<std::int64_t>> starts_;  // allowed coarse starts of crops per dimension
  std::vector<int> coordinate_dims_;
};

}  // namespace tessera::data
