#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tessera/nn/io/field_reader.hpp>

namespace tessera::io {

/// Reads the datasets of an HDF5 file by hyperslabs, named by their paths ("group/x"); dimensions
/// are named by attached scales. Complex numbers are compounds of r and i, bool is h5py's
/// enumeration.
///
/// Links are not followed but within the file, and datasets whose values lie in other files
/// (external storage, virtual datasets) cannot be read. Calls into the library are serialised. The
/// library parses the file: open only files that you trust.
class Hdf5Reader : public FieldReader {
 public:
  /// Throws IoError when the file cannot be opened, DataError when it is no HDF5 file.
  explicit Hdf5Reader(const std::string& path);
  ~Hdf5Reader() override;

 private:
  void scan();
  void add_dataset(std::int64_t id, const std::string& name);
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
