#pragma once

#include <mutex>
#include <string>
#include <tessera/nn/io/field_reader.hpp>
#include <tessera/nn/io/nifti.hpp>

namespace tessera::io {

/// The volume of a NIfTI file as the variable "volume" with dimensions (time,) "k", "j", "i".
class NiftiFields : public FieldReader {
 public:
  explicit NiftiFields(const std::string& path);
  std::int64_t bytes_read() const override { return reader_.bytes_read(); }

 private:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  NiftiReader reader_;
  mutable std::mutex mutex_;  // a compressed file is a stream
};

}  // namespace tessera::io
