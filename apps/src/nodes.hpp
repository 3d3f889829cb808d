#pragma once

#include <string>
#include <tessera/core/mesh.hpp>
#include <vector>

namespace tessera::app {

/// The node of each process: its host name, or TESSERA_NODE where that is set (containers that
/// share a host name, tests). Every process must call; asks the others once.
const std::vector<std::string>& nodes_of_processes();

/// Number of different nodes.
int node_count();

/// The processes, node by node in the order in which nodes first appear: consecutive ranks of a
/// mesh over them share a node, so its last axis lies innermost however the launcher placed them.
std::vector<int> processes_by_node();

/// The mesh as text: rank, process, node and coordinates of each, and which axes leave a node.
std::string mesh_map(const Mesh& mesh);

}  // namespace tessera::app
