#include <tessera/tessera.hpp>
namespace ts = tessera;

int main(int argc, char** argv) {
  ts::Runtime runtime(argc, argv);
  const ts::Mesh mesh = runtime.mesh({{"data", runtime.size()}});
  const ts::Tensor x = ts::Tensor::full(ts::Layout::replicated(mesh, {2, 3}), 1.5);
  return ts::sum(x * x).item() == 13.5 ? 0 : 1;
}
