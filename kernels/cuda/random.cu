#include "device.hpp"
#include "functors/philox.hpp"
#include "launch.cuh"

namespace tessera::kernels::cuda {

namespace {

/// Loops over y with the place of each element in the global tensor as operand 0.
struct Placed {
  LoopNest nest;
  std::int64_t origin = 0;

  Placed(const char* op, const View& x, const Piece& y) {
    View index = y.view;
    index.strides = row_major(y.global);
    for (int d = 0; d < y.box.dims(); ++d) origin += y.box.lo[d] * index.strides[d];
    const View* const views[] = {&index, &y.view, &x};
    nest = make_loop_nest(op, views, false);
  }
};

/// store(y element, draw(global index, x element)) for every element.
template <class T, class Draw>
void generate(const char* op, const View& x, const Piece& y, const Draw& draw) {
  const Placed placed(op, x, y);
  const Memory in = memory(x), out = memory(y.view);
  each(op, placed.nest.total, [=] __device__(std::int64_t i) {
    std::int64_t offset[3];
    offsets_of(placed.nest, i, offset);
    const auto index = static_cast<std::uint64_t>(placed.origin + offset[0]);
    store_at<T>(out, offset[1], draw(index, in, offset[2]));
  });
}

__device__ inline std::uint32_t word_of(PhiloxKey key, std::uint64_t index) {
  return philox(key.key, key.stream, index >> 2).word[index & 3];
}

}  // namespace

void random_bits(PhiloxKey key, const Piece& y) {
  generate<std::int64_t>(
      "random_bits", y.view, y,
      [=] __device__(std::uint64_t index, const Memory&, std::int64_t) -> std::int64_t {
        return word_of(key, index);
      });
}

template <class T>
void uniform_of(PhiloxKey key, double low, double high, const Piece& y) {
  const T origin = static_cast<T>(low);
  const T range = static_cast<T>(high - low);
  generate<T>("random_uniform", y.view, y,
              [=] __device__(std::uint64_t index, const Memory&, std::int64_t) -> T {
                return origin + range * unit_interval(word_of(key, index), T{});
              });
}

void random_uniform(PhiloxKey key, double low, double high, const Piece& y) {
  visit_floating_type(y.view.dtype, [&]<class T>() { uniform_of<T>(key, low, high, y); });
}

void random_normal(PhiloxKey key, double mean, double stddev, const Piece& y) {
  generate<double>("random_normal", y.view, y,
                   [=] __device__(std::uint64_t index, const Memory&, std::int64_t) -> double {
                     const PhiloxBlock block = philox(key.key, key.stream, index >> 2);
                     const int pair = static_cast<int>(index & 2);
                     const NormalPair z = box_muller(block.word[pair], block.word[pair + 1]);
                     return mean + stddev * ((index & 1) != 0 ? z.odd : z.even);
                   });
}

template <class T>
void dropout_of(PhiloxKey key, double p, const View& x, const Piece& y) {
  const std::uint64_t threshold = drop_threshold(p);
  const T scale = static_cast<T>(p < 1.0 ? 1.0 / (1.0 - p) : 0.0);
  generate<T>("dropout", x, y,
              [=] __device__(std::uint64_t index, const Memory& in, std::int64_t at) -> T {
                return word_of(key, index) < threshold ? T(0) : load_at<T>(in, at) * scale;
              });
}

void dropout(PhiloxKey key, double p, const View& x, const Piece& y) {
  visit_floating_type(y.view.dtype, [&]<class T>() { dropout_of<T>(key, p, x, y); });
}

}  // namespace tessera::kernels::cuda
