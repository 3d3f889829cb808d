#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/core/view.hpp>
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
