#pragma once

#include <cstdint>
#include <span>
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
/// The layout of `samples` fields with `channels`, [N, points..., C], so placed; boundaries are
/// multiples of `multiple`.
Layout field_layout(const Mesh& mesh,
                    std::int64_t samples,
                    std::span<const std::int64_t> points,
                    std::int64_t channels,
                    std::int64_t multiple = 1);

}  // namespace tessera::app
