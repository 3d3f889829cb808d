#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/attributes.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::io {

using NetcdfAttribute = Attribute;
using NetcdfAttributes = Attributes;

/// A named dimension and, where the file has them, the coordinates along it (degrees, metres...).
struct NetcdfDimension {
  std::string name;
  std::int64_t size = 0;
  std::vector<double> coordinates = {};  ///< one per point, or empty
  NetcdfAttributes attributes = {};      ///< of the coordinates (`units`...)
};

/// Reads NetCDF files (classic and netCDF-4). A point is missing also when it has its type's
/// default fill value and the variable no `_FillValue`. Calls into the library are serialised. The
/// library parses the file: open only files that you trust.
class NetcdfReader : public FieldReader {
 public:
  /// Throws IoError when the file cannot be opened, DataError when it is not a NetCDF file.
  explicit NetcdfReader(const std::string& path);
  ~NetcdfReader() override;

 private:
  void scan();
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

/// Values as 16-bit integers: half or a quarter of the bytes, for an error of at most
/// (high - low) / 131068. What lies outside of [low, high] is an error, NaN is a missing point.
struct NetcdfPacking {
  double low = 0.0;
  double high = 1.0;
};

/// A variable to be written.
struct NetcdfVariableSpec {
  std::string name;
  std::vector<std::string> dims;
  DType dtype = DType::kFloat32;  ///< bf16 is stored as f32, bool as u8
  NetcdfAttributes attributes = {};
  std::optional<double> fill = std::nullopt;  ///< stands for NaN in the file, as `_FillValue`
  std::optional<NetcdfPacking> packed = std::nullopt;  ///< floating values only; without `fill`
};

/// Writes a NetCDF file together with other ranks (classic format with 64-bit offsets or data): all
/// of them write their parts at once, each at its place, and `commit` puts the finished file in
/// place atomically.
class NetcdfWriter {
 public:
  /// Collective, with the same arguments on every rank. Throws UsageError when a variable names an
  /// unknown dimension or a name is not allowed, IoError when the file cannot be created.
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
  /// Collective: the tensor at index `at` of the variable (empty: it is all of it); samples and
  /// channels of size 1 may stand around its dimensions. Throws ShapeError, LayoutError when
  /// Partial.
  void write(std::string_view variable, const Tensor& tensor, const Index& at = {});
  /// Collective. Checks that the parts cover every variable, flushes, renames. Throws on every
  /// rank.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
