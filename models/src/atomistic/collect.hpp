#pragma once

#include <tessera/nn/atoms/structure.hpp>
#include <tessera/nn/graph/graph.hpp>
#include <vector>

namespace tessera::atomistic {

/// Values [N, width] of atoms in the order of their ids on mesh rank `root`; nothing elsewhere.
std::vector<double> collect_values(const Tensor& values, const nn::Graph& graph, int root);

/// A column of reals, 17 digits.
nn::AtomColumn real_column(const std::string& name,
                           std::int64_t width,
                           const std::vector<double>& values);

/// Numbers of a column of that name and width, or nothing. Throws DataError when a value is no
/// number.
std::vector<double> column_values(const nn::Structure& structure,
                                  const std::string& name,
                                  std::int64_t width);

/// Atoms, cell and labels of mesh rank 0's structure on every rank of the mesh.
void share(nn::Structure& structure, const Mesh& mesh);

}  // namespace tessera::atomistic
