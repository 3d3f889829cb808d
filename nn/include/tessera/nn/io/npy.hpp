#pragma once

#include <memory>
#include <string>
#include <tessera/nn/io/field_reader.hpp>

namespace tessera::io {

/// Reads a NumPy array (`.npy`, format 1 to 3: https://numpy.org/doc/stable/reference/generated/
/// numpy.lib.format.html) as the variable "array", with dimensions "dim_0"...
///
/// All numeric types, both byte orders, C and Fortran order; never unpickles. Safe on damaged and
/// hostile files: what the header declares is compared with the size of the file before use.
class NpyReader : public FieldReader {
 public:
  /// Throws IoError when the file cannot be opened, DataError when it is no array of numbers.
  explicit NpyReader(const std::string& path);
  ~NpyReader() override;

 private:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

/// Reads the arrays of an `.npz` file: a ZIP archive (also ZIP64) of NumPy arrays, stored or
/// deflated. The variables are named like the members without `.npy`. Names are never paths.
///
/// Of a stored member the part alone is read; of a deflated one everything before its end, too.
class NpzReader : public FieldReader {
 public:
  /// Throws IoError when the file cannot be opened, DataError when it is no archive of arrays.
  explicit NpzReader(const std::string& path);
  ~NpzReader() override;

 private:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
