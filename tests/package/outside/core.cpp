#include <iostream>
#include <tessera/core/mesh.hpp>

int main() {
  const tessera::Mesh mesh = tessera::Mesh::world({{"data", 1}});
  std::cout << mesh.size() << '\n';
  return mesh.size() == 1 ? 0 : 1;
}
