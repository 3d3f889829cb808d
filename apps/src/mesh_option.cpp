#include "mesh_option.hpp"

#include <charconv>

#include "nodes.hpp"

namespace tessera::app {

std::vector<MeshAxis> parse_axes(const std::string& text) {
  std::vector<MeshAxis> axes;
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string axis = text.substr(from, end - from);
    const std::size_t equals = axis.find('=');
    int size = 0;
    if (equals != std::string::npos) {
      const char* const last = axis.data() + axis.size();
      const auto [stop, error] = std::from_chars(axis.data() + equals + 1, last, size);
      if (error != std::errc() || stop != last) size = 0;
    }
    if (equals == 0 || size < 1) {
      throw UsageError(str("mesh: \"", text,
                           "\" is not a list of axes and sizes. Write for example h=2,w=2 or "
                           "data=2,h=2."));
    }
    axes.push_back({axis.substr(0, equals), size});
    from = end + 1;
  }
  return axes;
}

Mesh parse_mesh(const std::string& text) {
  return Mesh::of(processes_by_node(),
                  text.empty() ? std::vector<MeshAxis>{{"h", process().count}} : parse_axes(text));
}

Placement field_placement(const Mesh& mesh, int dims) {
  Placement placement(mesh);
  int next = 0;
  for (int a = 0; a < mesh.axis_count(); ++a) {
    if (mesh.axis_name(a) == "data") {
      placement = placement.batch("data");
    } else if (next < dims) {
      placement = placement.domain(next++, mesh.axis_name(a));
    } else {
      throw UsageError(str("mesh: ", mesh.str(), " has more axes than the field has dimensions (",
                           dims, "). Beside \"data\" give at most one axis per dimension."));
    }
  }
  return placement;
}

Layout field_layout(const Mesh& mesh,
                    std::int64_t samples,
                    std::span<const std::int64_t> points,
                    std::int64_t channels,
                    std::int64_t multiple) {
  Shape shape(points);
  shape.insert(0, samples);
  shape.push_back(channels);
  return field_placement(mesh, shape.size() - 2).resolve(shape, {.multiple = multiple});
}

}  // namespace tessera::app
