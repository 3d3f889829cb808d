#pragma once

#include <memory>
#include <string>
#include <tessera/nn/io/field_reader.hpp>
#include <vector>

namespace tessera::io {

/// Files that hold the same variables, one after the other along a dimension. Few of them are open
/// at a time.
class SeriesReader : public FieldReader {
 public:
  /// Throws UsageError without files, DataError when they do not fit together.
  SeriesReader(const std::vector<std::string>& paths, const std::string& along);
  ~SeriesReader() override;
  std::int64_t bytes_read() const override;

 private:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
