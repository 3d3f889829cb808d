#include "cpu/edge_paths.inc.hpp"

namespace tessera::kernels::cpu {

template void path_forward<double>(int, int, const PathBlock<double>&);
template void path_backward<double>(int, int, const PathBlock<double>&);

}  // namespace tessera::kernels::cpu
