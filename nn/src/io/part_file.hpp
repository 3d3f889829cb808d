#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/collective.hpp>

#include "io/posix_file.hpp"

namespace tessera::io {

/// A dense row-major array in a file.
struct FileArray {
  std::int64_t offset = 0;  ///< of its first byte
  Shape shape;
  DType dtype = DType::kFloat32;  ///< what values are converted to
  std::int64_t bytes = 0;         ///< of one element in the file; 0: of `dtype`
  /// Turns `count` elements of `dtype` into those of the file, in place; empty: they are the same.
  std::function<void(std::byte* elements, std::int64_t count)> encode = {};

  std::int64_t element_bytes() const {
    return bytes > 0 ? bytes : static_cast<std::int64_t>(size_of(dtype));
  }
};

/// A file that all ranks write parts of, each at their place, under a temporary name until it is
/// complete.
class PartFile {
 public:
  /// Collective. Creates `path.tmp-<id>` of `bytes` bytes, `head` being the first of them, and
  /// removes those that killed runs left. Throws IoError on every rank.
  PartFile(const std::string& path,
           std::string_view head,
           std::int64_t bytes,
           const Collective& collective);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  /// Removes the temporary file unless it is in place. Not collective.
  ~PartFile();

  /// Writes the part `box` of an array, with conversion. Throws ShapeError, DTypeError, IoError, on
  /// this rank alone.
  void write_box(const char* op, const FileArray& array, const Box& box, const View& data) const;
  /// Writes bytes as they are.
  void write(const void* data, std::int64_t bytes, std::int64_t offset) const {
    file_->write(data, bytes, offset);
  }
  /// Brings what this rank wrote to disk.
  void sync() const { file_->sync(); }
  /// Collective: puts the file in its place.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  Collective collective_;
  std::optional<File> file_;
  bool owns_temporary_ = false;
};

/// Throws UsageError unless as many elements were written as there are; `what` names them.
void check_complete(const char* op,
                    std::int64_t written,
                    std::int64_t total,
                    const std::string& what,
                    const std::string& path);

/// Calls f(data, first, count) with the elements of `data` as dense runs of `dtype`, in row-major
/// order of an array of shape `shape` in which `data` is the part `box`; a run starts at element
/// `first` of the array.
void for_each_run(const char* op,
                  const Shape& shape,
                  const Box& box,
                  const View& data,
                  DType dtype,
                  const std::function<void(std::byte*, std::int64_t, std::int64_t)>& f);

/// What a rank writes of a tensor: nothing where it is not the first of those that hold the part.
struct TensorPart {
  Box box;
  View view;
};

/// A scalar as an array of one element: whoever has none of it can say so.
Shape with_rows(const Shape& shape);

/// This rank's part of `tensor` in an array of shape `array`, where the tensor begins at `at`
/// (empty: at the origin and of the same size). The tensor has the dimensions of the array, or one
/// of size 1 behind them (channels), or one before them (samples), too. Scalars are with_rows().
/// Throws ShapeError, LayoutError when Partial; on all ranks alike.
TensorPart part_in(const char* op, const Tensor& tensor, const Shape& array, const Index& at = {});

}  // namespace tessera::io
