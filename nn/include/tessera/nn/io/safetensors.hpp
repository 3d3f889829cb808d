#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <vector>

namespace tessera::io {

/// Free text that a safetensors file carries beside its tensors.
using Metadata = std::map<std::string, std::string>;

/// One tensor of a file, by its global shape.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
};

/// Reads a safetensors file: 8 bytes header length (little endian), a JSON header, the tensors
/// densely in row-major order (https://github.com/huggingface/safetensors, "Format").
///
/// Safe on damaged and hostile files: everything in the header is checked against the size of the
/// file before use, and memory stays in proportion to it. Tensors are read piece by piece on
/// demand.
class SafetensorsReader {
 public:
  struct Entry : TensorSpec {
    std::int64_t offset = 0;  ///< first byte, counted from the start of the file
  };

  /// Reads the header. Throws DataError with the reason when the file is not a valid safetensors
  /// file, or holds an element type other than F32, F64, BF16, I32, I64, U8, BOOL and F16 (which
  /// counts as f32) or a tensor of more than 8 dimensions.
  explicit SafetensorsReader(const std::string& path);
  SafetensorsReader(SafetensorsReader&&) noexcept;
  ~SafetensorsReader();

  const std::string& path() const;
  /// All tensors in the order in which they lie in the file.
  const std::vector<Entry>& entries() const;
  const Metadata& metadata() const;
  bool contains(std::string_view name) const;
  /// Throws DataError naming the most similar entry when there is none.
  const Entry& entry(std::string_view name) const;

  /// Reads the part `box` (global coordinates) into `out` with conversion: among floating types,
  /// from integers to floating types, among integers where the values fit. Throws ShapeError when
  /// the box or the view does not match.
  void read_box(std::string_view name, const Box& box, const View& out) const;
  /// This rank's part of a tensor in any layout without Partial axes; throws ShapeError when the
  /// shapes differ.
  Tensor read(std::string_view name, const Layout& layout) const;
  Tensor read(std::string_view name, const Layout& layout, DType dtype) const;
  /// Bytes taken from the file so far, the header included.
  std::int64_t bytes_read() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a safetensors file together with other ranks: every rank writes its own boxes into one
/// temporary file, and `commit` puts it in place, so that a reader sees either the old or the
/// complete new file.
///
/// The header is known up front, so all offsets are; tensors are ordered by element size (largest
/// first, which aligns them) and name.
class SafetensorsWriter {
 public:
  /// Collective, with the same arguments on every rank. Creates `path.tmp-<id>` in its full size,
  /// and removes those that killed runs left. Throws UsageError on duplicate or reserved names,
  /// IoError when the file cannot be created; both on every rank.
  SafetensorsWriter(const std::string& path,
                    std::vector<TensorSpec> tensors,
                    const Metadata& metadata = {},
                    const Collective& collective = {});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  /// Removes the temporary file unless committed. Not collective.
  ~SafetensorsWriter();

  /// Writes the part `box` with conversion (see read_box). Boxes of one tensor, over all ranks,
  /// must not overlap. A full or failing disk is reported by `commit`, on all ranks alike.
  void write_box(std::string_view name, const Box& box, const View& data);
  /// Writes this rank's part, if it is the first of the ranks that hold it. Throws LayoutError when
  /// Partial.
  void write(std::string_view name, const Tensor& tensor);
  /// Collective. Flushes, checks that the parts of all ranks together cover every tensor, renames.
  /// Throws on every rank when anything failed on one; the old file is then untouched and the
  /// temporary one removed.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether this rank is the first, in mesh order, of those that hold the same part: the one that
/// writes it.
bool is_first_replica(const Layout& layout);

/// The element type's name in safetensors files: F32, F64, BF16, I32, I64, U8, BOOL.
const char* safetensors_name(DType dtype);

}  // namespace tessera::io
