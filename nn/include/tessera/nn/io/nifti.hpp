#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <tessera/core/view.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/field_reader.hpp>

namespace tessera::io {

/// Rows of the map from a voxel (i, j, k, 1), i running fastest in the file, to (x, y, z) in the
/// file's unit, mostly mm from left to right, back to front, bottom to top.
using NiftiAffine = std::array<std::array<double, 4>, 3>;

/// What the header of a NIfTI file says.
struct NiftiHeader {
  int version = 1;  ///< 1 or 2
  /// Outermost dimension first, the reverse of the file's list: (time,) k, j, i. Row-major order is
  /// then the file's.
  Shape shape;
  std::array<double, 3> spacing = {1.0, 1.0, 1.0};  ///< from one voxel to the next along i, j, k
  StoredType type = StoredType::kUInt8;
  double slope = 1.0;  ///< values are slope * stored + intercept
  double intercept = 0.0;
  NiftiAffine affine = {};  ///< of the sform, else the qform, else the spacing
  std::string description;

  bool scaled() const { return slope != 1.0 || intercept != 0.0; }
};

/// Reads volumes in NIfTI-1 and NIfTI-2 files (.nii, and .nii.gz by zlib): one variable, "volume",
/// with the dimensions (time,) k, j, i
/// and the attributes spacing (along i, j, k) and long_name.
///
/// Types are the integers of 8 to 64 bits, float32 and float64, in either byte order; slope and
/// intercept unpack. A compressed file is decompressed as a stream up to the box's last voxel, and
/// nothing but the box is kept; going back begins again from the start. A header is believed only
/// as far as the file's size allows: no volume is larger than what the file's bytes can hold (a
/// compressed one: can become).
class NiftiReader : public FieldReader {
 public:
  /// Throws IoError when the file cannot be read, DataError when it is no such file, is damaged, or
  /// holds another type (complex, RGB, bits) or a pair's header.
  explicit NiftiReader(const std::string& path);
  ~NiftiReader() override;

  const NiftiHeader& header() const;
  using FieldReader::read;
  /// The voxels of `box`, indices of header().shape; see FieldReader::read.
  void read(const Box& box, const View& out) const { FieldReader::read("volume", box, out); }

 protected:
  void read_raw(std::size_t variable, const Box& box, void* values) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a NiftiWriter writes.
struct NiftiSpec {
  Shape shape;                    ///< outermost dimension first, at most 7
  DType dtype = DType::kFloat32;  ///< bf16 is stored as f32, bool as u8
  std::array<double, 3> spacing = {1.0, 1.0, 1.0};
  NiftiAffine affine = {{{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}}};
  std::string description = {};  ///< at most 79 bytes are kept
};

/// Writes a NIfTI file together with other ranks, uncompressed: version 1, or 2 where a dimension
/// exceeds 32,767. `commit` puts the finished file in place atomically.
class NiftiWriter {
 public:
  /// Collective, with the same arguments on every rank. Throws UsageError for shapes that the
  /// format lacks and for names that end in .gz, IoError when the file cannot be created.
  NiftiWriter(const std::string& path, const NiftiSpec& spec, const Collective& collective = {});
  NiftiWriter(NiftiWriter&&) noexcept;
  /// Removes the temporary file unless committed. Not collective.
  ~NiftiWriter();

  /// Writes this rank's part (possibly empty), disjoint from those of the others. A full or failing
  /// disk is reported by `commit`.
  void write_box(const Box& box, const View& data);
  /// Collective. Checks that the parts cover the volume, flushes, renames. Throws on every rank
  /// when anything failed on one.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
