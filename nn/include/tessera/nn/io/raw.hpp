#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::io {

/// What lies in a file of bare numbers.
struct RawOptions {
  Shape shape;
  std::string type = "float32";  ///< NumPy's name, complex64 and complex128 included
  std::int64_t offset = 0;       ///< bytes before the first number
  bool big_endian = false;
  bool column_major = false;           ///< the first dimension runs fastest
  std::string name = "array";          ///< of the variable
  std::vector<std::string> dims = {};  ///< empty: "dim_0"...
  Attributes attributes = {};          ///< `scale_factor`, `_FillValue`...: as in NetCDF
};

/// Reads a file of bare numbers; what follows them does not matter.
class RawReader : public FieldReader {
 public:
  /// Throws IoError when the file cannot be opened, UsageError on options that contradict each
  /// other, DataError when the file is too short.
  RawReader(const std::string& path, const RawOptions& options);
  ~RawReader() override;

 private:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

/// The options in a JSON file like {"shape": [2161, 4320], "type": "int16", "offset": 0,
/// "byte_order": "big", "order": "F", "name": "z", "dims": ["y", "x"], "attributes": {"units":
/// "m"}}; all but the shape may be left out. Throws DataError.
RawOptions read_raw_description(const std::string& path);

}  // namespace tessera::io
