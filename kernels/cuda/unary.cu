#include "device.hpp"
#include "functors/unary.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

/// f^(order)(x), chosen when it runs: the branch is the same for all threads, and one kernel per
/// type keeps compile time low.
template <class T>
struct AnyUnary {
  UnaryKind kind;
  int order;
  T alpha;

  template <UnaryKind kKind>
  __device__ T of(T x) const {
    switch (order) {
      case 0:
        return Unary<kKind, 0, T>{alpha}(x);
      case 1:
        return Unary<kKind, 1, T>{alpha}(x);
      case 2:
        return Unary<kKind, 2, T>{alpha}(x);
      default:
        return Unary<kKind, 3, T>{alpha}(x);
    }
  }

  __device__ T operator()(T x) const {
    switch (kind) {
#define TESSERA_CASE(k) \
  case UnaryKind::k:    \
    return of<UnaryKind::k>(x);
      TESSERA_FOR_EACH_UNARY(TESSERA_CASE)
#undef TESSERA_CASE
    }
    return T(0);
  }
};

/// The same, times g where `scaled`.
template <class T>
struct ScaledUnary {
  AnyUnary<T> f;
  bool scaled;
  __device__ T operator()(T g, T x) const { return scaled ? g * f(x) : f(x); }
};

}  // namespace

void unary(UnaryKind kind, int order, double alpha, const View* g, const View& x, const View& y) {
  visit_floating_type(y.dtype, [&]<class T>() {
    const ScaledUnary<T> f{{kind, order, static_cast<T>(alpha)}, g != nullptr};
    map<T>(name(kind), f, y, g != nullptr ? *g : x, x);
  });
}

}  // namespace tessera::kernels::cuda
