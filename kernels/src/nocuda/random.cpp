#include "device.hpp"

namespace tessera::kernels::cuda {

void random_bits(PhiloxKey, const Piece&) { throw_no_cuda(); }
void random_uniform(PhiloxKey, double, double, const Piece&) { throw_no_cuda(); }
void random_normal(PhiloxKey, double, double, const Piece&) { throw_no_cuda(); }
void dropout(PhiloxKey, double, const View&, const Piece&) { throw_no_cuda(); }

}  // namespace tessera::kernels::cuda
