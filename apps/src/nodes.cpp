#include "nodes.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <tessera/parallel/communicator.hpp>

namespace tessera::app {
namespace {

using Name = std::array<char, 256>;

Name own_node() {
  Name name{};
  const char* const given = std::getenv("TESSERA_NODE");
  if (given != nullptr && *given != '\0') {
    std::string(given).copy(name.data(), name.size() - 1);
  } else if (gethostname(name.data(), name.size() - 1) != 0) {
    name = {'?'};
  }
  return name;
}

std::vector<std::string> ask_all() {
  std::vector<Name> names(static_cast<std::size_t>(process().count));
  names[static_cast<std::size_t>(process().rank)] = own_node();
  if (process().count > 1) {
    parallel::all_gather(parallel::Group::world(), &names[static_cast<std::size_t>(process().rank)],
                         names.data(), sizeof(Name), {"names of the nodes", {}, {}})
        .wait();
  }
  std::vector<std::string> texts;
  for (const Name& name : names) texts.emplace_back(name.data());
  return texts;
}

/// Whether neighbours along `axis` lie on different nodes somewhere.
bool leaves_node(const Mesh& mesh, int axis) {
  const std::vector<std::string>& nodes = nodes_of_processes();
  for (int r = 0; r < mesh.size(); ++r) {
    const int other = mesh.with_coordinate(r, axis, 0);
    if (nodes[static_cast<std::size_t>(mesh.process_of(r))] !=
        nodes[static_cast<std::size_t>(mesh.process_of(other))]) {
      return true;
    }
  }
  return false;
}

}  // namespace

const std::vector<std::string>& nodes_of_processes() {
  static const std::vector<std::string> nodes = ask_all();
  return nodes;
}

int node_count() {
  std::vector<std::string> names = nodes_of_processes();
  std::sort(names.begin(), names.end());
  return static_cast<int>(std::unique(names.begin(), names.end()) - names.begin());
}

std::vector<int> processes_by_node() {
  const std::vector<std::string>& nodes = nodes_of_processes();
  std::vector<int> order;
  for (std::size_t first = 0; first < nodes.size(); ++first) {
    if (std::find(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(first),
                  nodes[first]) != nodes.begin() + static_cast<std::ptrdiff_t>(first)) {
      continue;
    }
    for (std::size_t p = first; p < nodes.size(); ++p)
      if (nodes[p] == nodes[first]) order.push_back(static_cast<int>(p));
  }
  return order;
}

std::string mesh_map(const Mesh& mesh) {
  const std::vector<std::string>& nodes = nodes_of_processes();
  std::size_t width = 4;
  for (const std::string& node : nodes) width = std::max(width, node.size());
  const int count = node_count();
  std::string text = fmt::format("mesh {}: {} rank{} on {} node{}\n{:>5} {:>8}  {:<{}}",
                                 mesh.axis_count() > 0 ? mesh.str() : "of one", mesh.size(),
                                 mesh.size() == 1 ? "" : "s", count, count == 1 ? "" : "s", "rank",
                                 "process", "node", width);
  for (int a = 0; a < mesh.axis_count(); ++a) text += fmt::format(" {:>5}", mesh.axis_name(a));
  text += "\n";
  for (int r = 0; r < mesh.size(); ++r) {
    const int process = mesh.process_of(r);
    text += fmt::format("{:>5} {:>8}  {:<{}}", r, process, nodes[static_cast<std::size_t>(process)],
                        width);
    for (int a = 0; a < mesh.axis_count(); ++a)
      text += fmt::format(" {:>5}", mesh.coordinate(r, a));
    text += "\n";
  }
  for (int a = 0; a < mesh.axis_count(); ++a) {
    text += fmt::format("axis {}: {}\n", mesh.axis_name(a),
                        leaves_node(mesh, a) ? "crosses nodes" : "within a node");
  }
  return text;
}

}  // namespace tessera::app
