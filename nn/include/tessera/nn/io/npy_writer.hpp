#pragma once

#include <string>
#include <tessera/core/tensor.hpp>

namespace tessera::io {

/// Writes a tensor as a NumPy array (`.npy`, format version 1.0, row-major; `numpy.load`), each
/// rank its own part at its place; the file appears whole or not at all. bf16, which NumPy lacks,
/// is stored as f32. Collective over the tensor's mesh. Throws LayoutError when Partial, IoError on
/// every rank.
void write_npy(const std::string& path, const Tensor& tensor);

}  // namespace tessera::io
