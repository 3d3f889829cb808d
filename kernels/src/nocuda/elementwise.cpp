#include "device.hpp"

namespace tessera::kernels::cuda {

void throw_no_cuda() {
  throw DeviceError(
      "cuda: a tensor lies on a GPU (this build has no CUDA). Configure with -DTESSERA_CUDA=ON.");
}

void unary(UnaryKind, int, double, const View*, const View&, const View&) { throw_no_cuda(); }
void binary(BinaryKind, const View&, const View&, const View&) { throw_no_cuda(); }
void compare(CompareKind, const View&, const View&, const View&) { throw_no_cuda(); }
void logical(LogicalKind, const View&, const View&, const View&) { throw_no_cuda(); }
void logical_not(const View&, const View&) { throw_no_cuda(); }
void where(const View&, const View&, const View&, const View&) { throw_no_cuda(); }
void clamp(const View&, double, double, const View&) { throw_no_cuda(); }
void clamp_grad(const View&, const View&, double, double, const View&) { throw_no_cuda(); }
void affine(double, const View&, double, const View&) { throw_no_cuda(); }
void axpby(double, const View&, double, const View&, const View&) { throw_no_cuda(); }
void mul_add(const View&, const View&, const View&, const View&) { throw_no_cuda(); }
void fill(const View&, double) { throw_no_cuda(); }
void copy(const View&, const View&) { throw_no_cuda(); }

}  // namespace tessera::kernels::cuda
