#pragma once

#include <string>
#include <tessera/core/layout.hpp>
#include <vector>

namespace tessera::app {

/// `h=2,w=2` -> axes; throws UsageError.
std::vector<MeshAxis> parse_axes(const std::string& text);
/// The mesh of these axes over all processes, node by node; empty: one axis `h` over all. Throws
/// UsageError. Every process must call.
Mesh parse_mesh(const std::string& text);
/// Axis `data` splits the samples, the others the domain dimensions in their order.
Placement field_placement(const Mesh& mesh, int dims);

}  // namespace tessera::app
