#include "collect.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <tessera/nn/io/data_error.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribute.hpp>

namespace tessera::atomistic {

std::vector<double> collect_values(const Tensor& values, const nn::Graph& graph, int root) {
  const Tensor ids = parallel::gather_to(graph.ids, root);
  const Tensor all = parallel::gather_to(values, root);
  if (graph.nodes().mesh().rank() != root) return {};
  const auto n = static_cast<std::size_t>(graph.node_count());
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto* const id = ids.local().as<std::int64_t>();
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return id[a] < id[b]; });
  const std::size_t width = n == 0 ? 0 : static_cast<std::size_t>(values.numel()) / n;
  std::vector<double> sorted;
  sorted.reserve(n * width);
  const View view = all.local();
  for (const std::size_t i : order) {
    for (std::size_t c = 0; c < width; ++c) {
      sorted.push_back(
          load_as_double(view.data, view.dtype, static_cast<std::int64_t>(i * width + c)));
    }
  }
  return sorted;
}

nn::AtomColumn real_column(const std::string& name,
                           std::int64_t width,
                           const std::vector<double>& values) {
  nn::AtomColumn column{.name = name, .type = 'R', .width = width, .values = {}};
  column.values.reserve(values.size());
  char text[32];
  for (const double v : values) {
    std::snprintf(text, sizeof text, "%.17g", v);
    column.values.emplace_back(text);
  }
  return column;
}

std::vector<double> column_values(const nn::Structure& structure,
                                  const std::string& name,
                                  std::int64_t width) {
  std::vector<double> values;
  for (const nn::AtomColumn& column : structure.columns) {
    if (column.name != name || column.width != width) continue;
    for (const std::string& text : column.values) {
      double value = 0.0;
      const auto end = text.data() + text.size();
      const auto result = std::from_chars(text.data(), end, value);
      if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) {
        throw DataError(str("atoms: `", text, "` in column ", name,
                            " is no number. Mend the file, or take the column out."));
      }
      values.push_back(value);
    }
  }
  return values;
}

void share(nn::Structure& structure, const Mesh& mesh) {
  AxisMask all = 0;
  for (int a = 0; a < mesh.axis_count(); ++a) all |= AxisMask{1} << a;
  const auto group = parallel::Group::of(mesh, all);
  const auto send = [&](auto& list, std::size_t count) {
    list.resize(count);
    parallel::broadcast(group, list.data(), static_cast<std::int64_t>(count * sizeof(list[0])), 0,
                        {"structure", {}, {}})
        .wait();
  };
  std::vector<double> head = {
      static_cast<double>(structure.species.size()), static_cast<double>(structure.forces.size()),
      structure.energy ? 1.0 : 0.0, structure.energy.value_or(0.0), structure.stress ? 1.0 : 0.0};
  for (const double x : structure.stress.value_or(std::array<double, 9>{})) head.push_back(x);
  for (const nn::Vec3& v : structure.cell.vectors) head.insert(head.end(), v.begin(), v.end());
  for (const bool p : structure.cell.periodic) head.push_back(p ? 1.0 : 0.0);
  send(head, head.size());
  const auto atoms = static_cast<std::size_t>(head[0]);
  send(structure.species, atoms);
  send(structure.positions, 3 * atoms);
  send(structure.forces, static_cast<std::size_t>(head[1]));
  if (head[2] != 0.0) structure.energy = head[3];
  std::array<double, 9> stress{};
  std::copy_n(head.begin() + 5, 9, stress.begin());
  if (head[4] != 0.0) structure.stress = stress;
  for (std::size_t k = 0; k < 3; ++k) {
    std::copy_n(head.begin() + 14 + static_cast<std::ptrdiff_t>(3 * k), 3,
                structure.cell.vectors[k].begin());
    structure.cell.periodic[k] = head[23 + k] != 0.0;
  }
}

}  // namespace tessera::atomistic
