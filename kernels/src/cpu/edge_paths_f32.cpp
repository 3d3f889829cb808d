#include "cpu/edge_paths.inc.hpp"

namespace tessera::kernels::cpu {

template void path_forward<float>(int, int, const PathBlock<float>&);
template void path_backward<float>(int, int, const PathBlock<float>&);

}  // namespace tessera::kernels::cpu
