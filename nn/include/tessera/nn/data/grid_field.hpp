#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/core/view.hpp>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::data {

struct GridFieldOptions {
  /// As io::open_fields takes it: a file by its suffix, a directory, or a pattern of several.
  std::string path;
  /// Name of the variable; empty: the only one with at least two dimensions.
  std::string variable = {};
  /// How many of the variable's last dimensions span the grid; 0: all. Those before count separate
  /// fields (times...).
  int domain_dims = 0;
  /// The grid is cut at its end to multiples of this.
  std::int64_t multiple = 1;
  /// Periodic dimensions by name. A longitude that goes once around (degrees east) is periodic
  /// without being named, and a dimension whose coordinate has the attribute `modulo`, the length
  /// of one turn.
  std::vector<std::string> periodic = {};
};

/// Fields on a grid in a file, read window by window; a window may run across a periodic
/// edge.
class GridField {
 public:
  /// Throws IoError when the file cannot be opened, DataError when it lacks the variable or that
  /// holds no numbers, UsageError when the options do not fit them.
  explicit GridField(const GridFieldOptions& options);

  /// Number of grid dimensions.
  int dims() const { return shape_.size(); }
  /// Points of the grid per dimension.
  const Shape& shape() const { return shape_; }
  /// Number of fields: the product of the leading dimensions.
  std::int64_t fields() const { return lead_.product(); }
  bool periodic(int dim) const { return periodic_[static_cast<std::size_t>(dim)]; }
  const std::string& dim_name(int dim) const { return dim_names_[static_cast<std::size_t>(dim)]; }
  /// Coordinate of each point along a dimension; its index where the file has none.
  const std::vector<double>& coordinates(int dim) const {
    return coordinates_[static_cast<std::size_t>(dim)];
  }
  /// Index of a dimension by name; throws UsageError listing the names.
  int dim(const std::string& name) const;
  const std::string& path() const { return reader_->path(); }
  /// The variable in the file: attributes, units.
  const io::FieldVariable& variable() const { return *variable_; }
  /// The text attribute of a coordinate variable ("units"...), or "".
  std::string coordinate_attribute(int dim, const std::string& name) const;

  /// Reads the window `box` of field `field`; missing points become NaN. Indices outside [0, n)
  /// wrap in periodic dimensions and are a ShapeError in others.
  void read(std::int64_t field, const Box& box, const View& out) const;
  /// Bytes of data read from the file so far.
  std::int64_t bytes_read() const { return reader_->bytes_read(); }

  /// Points lo <= coordinate < hi along `dim` as one interval; in a periodic dimension modulo the
  /// period (360 degrees), so that `hi` may exceed the size. Throws UsageError when they are not
  /// contiguous.
  Interval interval(int dim, double lo, double hi) const;

 private:
  std::unique_ptr<io::FieldReader> reader_;
  const io::FieldVariable* variable_ = nullptr;
  Shape lead_;
  Shape shape_;
  std::vector<std::string> dim_names_;
  std::vector<bool> periodic_;
  std::vector<std::vector<double>> coordinates_;
};

}  // namespace tessera::data
