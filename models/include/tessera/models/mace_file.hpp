#pragma once

#include <string>
#include <tessera/models/mace.hpp>
#include <tessera/nn/io/safetensors.hpp>

namespace tessera::models {

/// Writes weights and options (energies of isolated atoms, scale, shift among them) as one
/// safetensors file; `metadata` is kept beside them. Every rank must call.
void save_mace(const std::string& path, Mace& model, const io::Metadata& metadata = {});

/// The options of a model that save_mace wrote. Throws DataError when the file is none.
MaceOptions read_mace_options(const std::string& path);

/// The model with its weights, converted to `dtype`, replicated on `mesh`. Throws DataError. Every
/// rank must call.
Mace load_mace(const std::string& path, const Mesh& mesh, DType dtype = DType::kFloat64);
/// The same with options that differ from those of the file in what has no weights:
/// `radial_intervals`, say.
Mace load_mace(const std::string& path,
               const MaceOptions& options,
               const Mesh& mesh,
               DType dtype = DType::kFloat64);

}  // namespace tessera::models
