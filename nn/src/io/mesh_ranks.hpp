#pragma once

#include <cstddef>
#include <functional>
#include <tessera/core/mesh.hpp>
#include <tessera/nn/io/collective.hpp>
#include <vector>

namespace tessera::io {

/// The ranks of a mesh, which also send bytes to each other.
struct MeshRanks : Collective {
  explicit MeshRanks(const Mesh& mesh);

  /// Brings to[r] to rank r and returns what each rank sent here. Called by all ranks.
  std::function<std::vector<std::vector<std::byte>>(const std::vector<std::vector<std::byte>>& to)>
      exchange;
};

}  // namespace tessera::io
