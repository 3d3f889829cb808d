#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <tessera/nn/atoms/structure.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <vector>

namespace tessera::io {

/// How extended XYZ files are read.
struct ExtxyzOptions {
  /// Names of the labels; an empty one stands for `REF_energy`, else `energy` (`REF_forces`,
  /// `forces`, `force`; `REF_stress`, `stress`; `REF_virials`, `virials`, `virial`), the first that
  /// a frame has. A frame without the label has weight 0 for it.
  std::string energy_key = {};
  std::string forces_key = {};
  std::string stress_key = {};
  std::string virials_key = {};
  /// Refuse atoms closer than this (Angstrom, images counted) and periodic cells without volume; 0:
  /// do not look.
  double nearest = 1e-3;
};

/// Frames of an extended XYZ file, one after another; memory holds one frame.
///
/// A frame is a line with the number of atoms, a line of `key=value` (values may be quoted, in {}
/// or
/// []), and a line per atom with the columns of `Properties=name:type:count:...` (default:
/// species:S:1:pos:R:3). Read are `Lattice` (9 numbers, the vectors in turn), `pbc` (default: T
/// where there is a lattice), the labels, stress and virials of 9 or 6 numbers (xx yy zz yz xz xy),
/// `config_type`, `head`, `config_weight` and `config_energy_weight` (forces, stress, virials);
/// species by symbol or number (also column Z). All else is kept as text. Whatever is wrong throws
/// DataError `extxyz: FILE:LINE: problem (why). what to do`.
class ExtxyzReader {
 public:
  /// Throws IoError when the file cannot be opened.
  explicit ExtxyzReader(const std::string& path, const ExtxyzOptions& options = {});
  /// Reads from a stream that outlives this; `name` is for messages.
  ExtxyzReader(std::istream& stream, const std::string& name, const ExtxyzOptions& options = {});
  ~ExtxyzReader();
  ExtxyzReader(ExtxyzReader&&) noexcept;

  /// The next frame, or false at the end of the file.
  bool next(nn::Structure& structure);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All frames of a file.
std::vector<nn::Structure> read_extxyz(const std::string& path, const ExtxyzOptions& options = {});

/// Names under which labels are written.
struct ExtxyzNames {
  std::string energy = "REF_energy";
  std::string forces = "REF_forces";
  std::string stress = "REF_stress";
  std::string virials = "REF_virials";
};

/// Writes frames so that reading gives the same numbers to the bit. Weights of 1 and the type and
/// head `Default` are left out.
class ExtxyzWriter {
 public:
  /// Replaces the file, or goes on at its end. Throws IoError.
  explicit ExtxyzWriter(const std::string& path,
                        const ExtxyzNames& names = {},
                        bool append = false);
  ExtxyzWriter(std::ostream& stream, const std::string& name, const ExtxyzNames& names = {});
  ~ExtxyzWriter();
  ExtxyzWriter(ExtxyzWriter&&) noexcept;

  /// Throws IoError when the disk is full, and DataError when lists have the wrong length.
  void write(const nn::Structure& structure);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

void write_extxyz(const std::string& path,
                  const std::vector<nn::Structure>& structures,
                  const ExtxyzNames& names = {});

}  // namespace tessera::io
