#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/nifti.hpp>
#include <vector>

namespace tessera::data {

/// A class to be told apart, and the labels of the file that belong to it.
struct SegmentClass {
  std::string name;
  /// Ranges from first to last, both inclusive.
  std::vector<std::pair<std::int64_t, std::int64_t>> labels;

  bool contains(std::int64_t label) const;
};

/// `name=1-16+19+21-28`; throws UsageError.
SegmentClass parse_segment_class(const std::string& text);

/// Slabs across one dimension that training learns no labels of: `thickness` points out of each
/// `every`, in their middle; on either side `margin` points count for neither part. Points are
/// those of Segmentation::shape(): slabs lie within the body, wherever that lies in the file.
struct HeldOutSlabs {
  enum class Part : std::uint8_t { kTraining, kMargin, kHeldOut };

  int dim = -1;  ///< -1: nothing is held out
  std::int64_t thickness = 0;
  std::int64_t every = 0;
  std::int64_t margin = 0;

  Part part(std::int64_t point) const;
  /// The point of the training that is nearest, below `size`; of two the lower. -1: there is none.
  std::int64_t nearest_training(std::int64_t point, std::int64_t size) const;
};

/// Intensities are presented to a network as (x - mean) / std.
struct IntensityScale {
  double mean = 0.0;
  double std = 1.0;
};

struct SegmentationOptions {
  std::string volume;  ///< NIfTI file with the intensities
  /// NIfTI file with labels on the same grid; empty: none, for prediction.
  std::string labels = {};
  /// Classes 1, 2, ...; all other labels are class 0. Empty: each label is its class.
  std::vector<SegmentClass> classes = {};
  /// Leaves out planes at the edges in which all intensities are 0.
  bool trim = true;
  HeldOutSlabs slabs = {};
  /// Points of a training sample per dimension, at most; empty: the whole volume.
  Shape crop = {};
  /// Dimensions along which half of the samples are mirrored.
  std::vector<int> mirrored = {};
  /// Adds an input channel per dimension: -1 to 1 from end to end.
  bool coordinate_channels = false;
  /// Key of the draws.
  std::uint64_t seed = 0;
  /// Taken as given; else of the training part's points that are not 0.
  std::optional<IntensityScale> scale = {};
};

/// `input` [N, points..., C]; `target` [N, points...] (i32), the class, or -1 where it does not
/// count.
struct SegmentationBatch {
  Tensor input;
  Tensor target;
};

/// A volume and the classes of its points, from NIfTI files. Each rank keeps its own part of the
/// volume in memory (all of it where samples are crops, since these are drawn anywhere; the whole
/// length of a mirrored dimension).
///
/// Points that are NaN count as 0. Dimensions are those of the file without leading ones of size 1,
/// outermost first: z, y, x of a volume. Draws depend on the global number of a sample alone.
class Segmentation {
 public:
  /// Collective: the ranks share a first look at the intensities. Throws what io::NiftiReader
  /// throws, DataError when volume and labels have different shapes, UsageError when the options do
  /// not fit them.
  explicit Segmentation(const SegmentationOptions& options, const io::Collective& ranks = {});

  int dims() const { return box_.dims(); }
  /// The file's grid without leading dimensions of size 1.
  const Shape& grid() const { return grid_; }
  /// The part of it that is worked on.
  const Box& box() const { return box_; }
  Shape shape() const { return box_.shape(); }
  Shape sample_shape() const { return sample_; }
  std::int64_t classes() const { return classes_; }
  const std::string& class_name(std::int64_t c) const {
    return names_[static_cast<std::size_t>(c)];
  }
  int input_channels() const { return 1 + (options_.coordinate_channels ? dims() : 0); }
  const IntensityScale& scale() const { return scale_; }
  const SegmentationOptions& options() const { return options_; }
  const io::NiftiHeader& header() const { return volume_->header(); }
  /// Bytes read from both files so far, by this rank.
  std::int64_t bytes_read() const;

  /// Samples first, first + 1, ... of the training, laid out as `input` [N, sample..., C].
  SegmentationBatch batch(std::int64_t first, const Layout& input, DType dtype = DType::kFloat32);
  /// The whole as one sample, [1, shape..., C]; targets are the classes of all points (undefined
  /// without labels).
  SegmentationBatch whole(const Layout& input, DType dtype = DType::kFloat32);
  /// The layout of targets for inputs of this layout.
  static Layout target_layout(const Layout& input);
  /// Which part a plane of `box()` across the held-out dimension belongs to; kTraining where
  /// nothing is held out.
  HeldOutSlabs::Part part(std::int64_t plane) const;
  /// Classes of the points of a box, in points of shape(). Reads the file.
  std::vector<std::int32_t> read_classes(const Box& box) const;
  /// Intensities of the points of a box, as they are. Reads the file.
  std::vector<float> read_intensities(const Box& box) const;

 private:
  void look(const io::Collective& ranks);
  void count_classes(const io::Collective& ranks);
  Box in_file(const Box& box) const;
  void keep(const Box& box);
  SegmentationBatch load(const Layout& input, DType dtype, std::optional<std::int64_t> first);

  SegmentationOptions options_;
  std::unique_ptr<io::NiftiReader> volume_;
  std::unique_ptr<io::NiftiReader> labels_;
  Shape grid_;
  Box box_;
  Shape sample_;
  std::int64_t classes_ = 0;
  std::vector<std::string> names_;
  IntensityScale scale_;
  Box kept_;  // in points of shape()
  std::vector<float> intensities_;
  std::vector<std::int32_t> targets_;
};

}  // namespace tessera::data
