#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/core/view.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <variant>
#include <vector>

namespace tessera::io {

/// The value of a NetCDF attribute: a text or a list of numbers.
using NetcdfAttribute = std::variant<std::string, std::vector<double>>;
using NetcdfAttributes = std::map<std::string, NetcdfAttribute>;

/// A named dimension and, where the file has them, the coordinates along it (degrees, metres...).
struct NetcdfDimension {
  std::string name;
  std::int64_t size = 0;
  std::vector<double> coordinates = {};  ///< one per point, or empty; for writing only
  NetcdfAttributes attributes = {};      ///< of the coordinates (`units`...); for writing only
};

/// A variable of a file.
struct NetcdfVariable {
  std::string name;
  std::vector<std::string> dims;  ///< outermost first
  Shape shape;
  bool numeric =
      false;  ///< false: text, a user type or more than 8 dimensions; cannot be read here
  NetcdfAttributes attributes;
};

/// How NetcdfReader::read treats its box and missing points.
struct NetcdfReadOptions {
  /// Every step-th point along each dimension: lo, lo + step, ... < hi. Empty: every point.
  Dims step = {};
  /// What stands for missing points in the result.
  double missing = std::numeric_limits<double>::quiet_NaN();
  /// Receives 1 for valid and 0 for missing points when its data is not null; u8 or bool, shaped
  /// like the result.
  View mask = {};
};

/// Reads NetCDF files (classic and netCDF-4), one hyperslab at a time.
///
/// Packed variables are unpacked (`scale_factor`, `add_offset`, `_Unsigned`). A point is missing
/// when it equals
/// `_FillValue`, one of `missing_value`, or the type's default fill value, or lies outside the
/// valid range; all but an unpacked valid range are compared before unpacking (CF
/// conventions 2.5.1). All calls into the library are serialised: it is not safe for use from
/// several threads.
class NetcdfReader {
 public:
  /// Throws IoError when the file cannot be opened, DataError when it is not a NetCDF file.
  explicit NetcdfReader(const std::string& path);
  NetcdfReader(NetcdfReader&&) noexcept;
  ~NetcdfReader();

  const std::string& path() const;
  const std::vector<NetcdfDimension>& dimensions() const;
  const std::vector<NetcdfVariable>& variables() const;
  const NetcdfAttributes& attributes() const;
  bool contains(std::string_view variable) const;
  /// Throws DataError listing the variables when there is none of this name.
  const NetcdfVariable& variable(std::string_view name) const;
  /// Values of the variable that is named like the dimension; empty when the file has none.
  std::vector<double> coordinates(const std::string& dimension) const;

  /// Reads the points of `box` (indices of the variable) into `out`, a view of floating type and of
  /// the number of points per dimension. Throws ShapeError when box, step or views do not match the
  /// variable.
  void read(std::string_view variable,
            const Box& box,
            const View& out,
            const NetcdfReadOptions& options = {}) const;
  /// Bytes of data (as stored, before unpacking) read so far.
  std::int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A variable to be written.
struct NetcdfVariableSpec {
  std::string name;
  std::vector<std::string> dims;
  DType dtype = DType::kFloat32;  ///< bf16 is stored as f32, bool as u8
  NetcdfAttributes attributes = {};
  std::optional<double> fill = std::nullopt;  ///< stands for NaN in the file, as `_FillValue`
};

/// Writes a NetCDF file together with other ranks (classic format with 64-bit offsets or data). The
/// ranks write their parts in turn; `commit` puts the finished file in place atomically.
class NetcdfWriter {
 public:
  /// Collective, with the same arguments on every rank. Throws UsageError when a variable names an
  /// unknown dimension, IoError when the file cannot be created.
  NetcdfWriter(const std::string& path,
               const std::vector<NetcdfDimension>& dimensions,
               std::vector<NetcdfVariableSpec> variables,
               const NetcdfAttributes& attributes = {},
               const Collective& collective = {});
  NetcdfWriter(NetcdfWriter&&) noexcept;
  /// Removes the temporary file unless committed. Not collective.
  ~NetcdfWriter();

  /// Collective: each rank writes its part (possibly empty) of the variable, in global indices,
  /// disjoint from those of the others. Throws on every rank when one fails.
  void write_box(std::string_view variable, const Box& box, const View& data);
  /// Collective. Checks that the parts cover every variable, flushes, renames. Throws on every
  /// rank.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
