#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/attributes.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <vector>

namespace tessera::io {

/// How a file stores a number. Complex numbers are pairs along a last dimension "complex".
enum class StoredType : std::uint8_t {
  kBool,
  kInt8,
  kUInt8,
  kInt16,
  kUInt16,
  kInt32,
  kUInt32,
  kInt64,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64
};

/// Bytes of one number.
std::int64_t size_of(StoredType type);
/// NumPy's name: bool, int8, uint8, ..., float64; bfloat16.
const char* name(StoredType type);
bool is_floating(StoredType type);

/// A variable of a file.
struct FieldVariable {
  std::string name;
  std::vector<std::string> dims;  ///< outermost first; "dim_0"... where the file has no names
  Shape shape;                    ///< empty when not `numeric`
  /// false: text, records, a type unknown here, or more than 8 dimensions; cannot be read.
  bool numeric = false;
  StoredType type = StoredType::kFloat32;
  Attributes attributes = {};
};

/// How FieldReader::read treats its box and missing points.
struct ReadOptions {
  /// Every step-th point along each dimension: lo, lo + step, ... < hi. Empty: every point.
  Dims step = {};
  /// What stands for missing points in the result.
  double missing = std::numeric_limits<double>::quiet_NaN();
  /// Receives 1 for valid and 0 for missing points when its data is not null; u8 or bool, shaped
  /// like the result.
  View mask = {};
};

struct Decoding;

/// Reads variables from a file (or a directory, or several files), one box at a time, so that each
/// rank takes its own part of a decomposed tensor and no more.
///
/// Packed variables are unpacked (`scale_factor`, `add_offset`, `_Unsigned`). A point is missing
/// when it is NaN, equals `_FillValue` or one of `missing_value`, or lies outside the valid range
/// (`valid_min`, `valid_max`, `valid_range`); all but an unpacked valid range are compared before
/// unpacking (CF conventions 2.5.1). `read` may be called from several threads.
class FieldReader {
 public:
  virtual ~FieldReader();
  FieldReader(const FieldReader&) = delete;
  FieldReader& operator=(const FieldReader&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<FieldVariable>& variables() const { return variables_; }
  /// Of the file.
  const Attributes& attributes() const { return attributes_; }
  bool contains(std::string_view variable) const;
  /// Throws DataError listing the variables when there is none of this name.
  const FieldVariable& variable(std::string_view name) const;
  /// The only variable of at least `least_dims` dimensions where `name` is empty. Throws UsageError
  /// listing them when there are several.
  const FieldVariable& variable_or_only(std::string_view name, int least_dims) const;
  /// Values of the variable that is named like the dimension; empty when the file has none.
  std::vector<double> coordinates(const std::string& dimension) const;

  /// Reads the points of `box` (indices of the variable) into `out`, a view of the number of points
  /// per dimension: of floating type, or of integers where the file stores integers that are not
  /// packed. Throws ShapeError when box, step or views do not match the variable, DataError when a
  /// point is missing and `missing` has no place in `out`.
  void read(std::string_view variable,
            const Box& box,
            const View& out,
            const ReadOptions& options = {}) const;
  /// This rank's part of a variable in any layout without Partial axes; throws ShapeError when the
  /// shapes differ. Missing points become NaN.
  Tensor read(std::string_view variable, const Layout& layout, DType dtype = DType::kFloat32) const;
  /// This rank's part of several variables of one shape as channels: `layout` is
  /// [dimensions of the variables..., variables].
  Tensor read(const std::vector<std::string>& variables,
              const Layout& layout,
              DType dtype = DType::kFloat32) const;
  /// Bytes of data, as stored (packed, compressed), taken so far.
  virtual std::int64_t bytes_read() const { return bytes_read_; }

 protected:
  /// What a format's reader says about the storage of a variable.
  struct Storage {
    StoredType type = StoredType::kFloat32;
    /// Points that the file keeps together, for reading in whole chunks; empty: rows.
    Shape chunk = {};
    /// The first dimension runs fastest in the file.
    bool column_major = false;
    std::shared_ptr<const Decoding> decoding = {};
  };

  explicit FieldReader(std::string path) : path_(std::move(path)) {}
  void add(FieldVariable variable, Storage storage);
  void set_attributes(Attributes attributes) { attributes_ = std::move(attributes); }
  void count_bytes(std::int64_t bytes) const { bytes_read_ += bytes; }
  /// Reads a box that is not empty: dense, row-major, as stored but in this machine's byte order.
  /// `variable` counts calls of add().
  virtual void read_raw(std::size_t variable, const Box& box, void* values) const = 0;
  /// For readers that are made of others.
  static void read_raw_of(const FieldReader& reader,
                          std::size_t variable,
                          const Box& box,
                          void* values) {
    reader.read_raw(variable, box, values);
  }
  static const Storage& storage_of(const FieldReader& reader, std::size_t variable) {
    return reader.storages_[variable];
  }

 private:
  static void for_each_part(const Storage& storage,
                            const Box& box,
                            const std::function<void(const Box&)>& f);

  std::string path_;
  Attributes attributes_;
  std::vector<FieldVariable> variables_;
  std::vector<Storage> storages_;  // of the variables
  mutable std::atomic<std::int64_t> bytes_read_ = 0;
};

/// What open_fields() knows of a file that does not say it itself, and how it reads several.
struct OpenOptions {
  /// Several files: the dimension along which they follow each other, capitals or not.
  std::string along = "time";
};

/// A reader by the name: `.nc`, `.cdf` and names unknown (NetCDF), `.h5` `.hdf5` (HDF5), `.npy`,
/// `.npz`, `.zarr` (a directory), `.nii` and `.nii.gz`, `.raw` (with a description beside it, see
/// raw.hpp). A name with
/// `*` or `?` stands for all files that match, in the order of their names. Throws IoError or
/// DataError.
std::unique_ptr<FieldReader> open_fields(const std::string& path, const OpenOptions& options = {});
/// The files one after the other along a dimension.
std::unique_ptr<FieldReader> open_fields(const std::vector<std::string>& paths,
                                         const OpenOptions& options = {});

}  // namespace tessera::io
