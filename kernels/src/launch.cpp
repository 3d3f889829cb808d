#include "launch.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace tessera::kernels {

LoopNest make_loop_nest(const char* op, std::span<const View* const> views, bool reorder) {
  const View& first = *views[0];
  LoopNest nest;
  const int operands = static_cast<int>(views.size());
  for (int k = 1; k < operands; ++k) {
    if (!(views[static_cast<std::size_t>(k)]->shape == first.shape)) {
      throw ShapeError(str(op, ": a kernel operand has shape ",
                           views[static_cast<std::size_t>(k)]->shape, " but another ", first.shape,
                           ". Broadcast them first."));
    }
  }
  bool dense = true;
  for (const View* view : views) dense = dense && view->is_dense();
  if (dense) {
    nest.dims = 1;
    nest.total = nest.size[0] = first.size();
    for (int k = 0; k < operands; ++k) nest.stride[k][0] = 1;
    return nest;
  }
  for (int d = 0; d < first.dims(); ++d) {
    nest.total *= first.shape[d];
    if (first.shape[d] == 1) continue;
    nest.size[nest.dims] = first.shape[d];
    for (int k = 0; k < operands; ++k)
      nest.stride[k][nest.dims] = views[static_cast<std::size_t>(k)]->strides[d];
    ++nest.dims;
  }
  if (nest.total == 0) return nest;

  const auto swap_dims = [&](int a, int b) {
    std::swap(nest.size[a], nest.size[b]);
    for (int k = 0; k < operands; ++k) std::swap(nest.stride[k][a], nest.stride[k][b]);
  };
  if (reorder) {
    for (int i = 1; i < nest.dims; ++i)
      for (int j = i; j > 0 && std::abs(nest.stride[0][j]) > std::abs(nest.stride[0][j - 1]); --j)
        swap_dims(j, j - 1);
  }
  int merged = 0;
  for (int d = 0; d < nest.dims; ++d) {
    bool joins = merged > 0;
    for (int k = 0; joins && k < operands; ++k)
      joins = nest.stride[k][merged - 1] == nest.stride[k][d] * nest.size[d];
    if (joins) {
      nest.size[merged - 1] *= nest.size[d];
    } else {
      nest.size[merged] = nest.size[d];
      ++merged;
    }
    for (int k = 0; k < operands; ++k) nest.stride[k][merged - 1] = nest.stride[k][d];
  }
  nest.dims = merged;
  if (nest.dims == 0) {
    nest.dims = 1;
    nest.size[0] = 1;
    for (int k = 0; k < operands; ++k) nest.stride[k][0] = 1;
  }
  return nest;
}

namespace {

template <class T, class S>
T convert(S value) {
  if constexpr (std::is_same_v<S, BFloat16>) {
    return static_cast<T>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != S(0);
  } else {
    return static_cast<T>(value);
  }
}

template <class D, class S>
void convert_row(
    const S* src, std::int64_t src_stride, D* dst, std::int64_t dst_stride, std::int64_t n) {
  if constexpr (std::is_same_v<D, S>) {
    if (src_stride == 1 && dst_stride == 1) {
      std::memcpy(dst, src, static_cast<std::size_t>(n) * sizeof(D));
      return;
    }
  }
  if (dst_stride == 1 && src_stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) dst[i] = convert<D>(src[i]);
  } else if (dst_stride == 1 && src_stride == 0) {
    const D value = convert<D>(src[0]);
    for (std::int64_t i = 0; i < n; ++i) dst[i] = value;
  } else {
    for (std::int64_t i = 0; i < n; ++i) dst[i * dst_stride] = convert<D>(src[i * src_stride]);
  }
}

}  // namespace

template <class T>
void load(const void* src, DType dtype, std::int64_t stride, std::int64_t n, T* dst) {
  visit_dtype(dtype,
              [&]<class S>() { convert_row(static_cast<const S*>(src), stride, dst, 1, n); });
}

template <class T>
void store(const T* src, std::int64_t n, void* dst, DType dtype, std::int64_t stride) {
  visit_dtype(dtype, [&]<class D>() { convert_row(src, 1, static_cast<D*>(dst), stride, n); });
}

namespace {

/// Steps through the rows (innermost dimension) of one operand.
struct Walk {
  std::int64_t index[kMaxDims] = {};
  std::int64_t offset = 0;

  Walk(const LoopNest& nest, int k, std::int64_t linear) {
    for (int d = nest.dims - 1; d >= 0; --d) {
      index[d] = linear % nest.size[d];
      offset += index[d] * nest.stride[k][d];
      linear /= nest.size[d];
    }
  }
  /// n elements on; must not pass the end of the row by more than 0.
  void advance(const LoopNest& nest, int k, std::int64_t n) {
    int d = nest.dims - 1;
    index[d] += n;
    offset += n * nest.stride[k][d];
    while (d > 0 && index[d] == nest.size[d]) {
      offset -= index[d] * nest.stride[k][d];
      index[d] = 0;
      --d;
      ++index[d];
      offset += nest.stride[k][d];
    }
  }
};

template <class T>
struct Operand {
  char* data;
  DType dtype;
  std::int64_t bytes;
  bool same_type;

  explicit Operand(const View& view)
      : data(view.as<char>()),
        dtype(view.dtype),
        bytes(static_cast<std::int64_t>(size_of(view.dtype))),
        same_type(view.dtype == dtype_of<T>) {}
  char* at(std::int64_t offset) const { return data + offset * bytes; }
};

std::int64_t round_up(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

template <class T>
void pad(T* buffer, std::int64_t n, std::int64_t padded) {
  for (std::int64_t i = n; i < padded; ++i) buffer[i] = buffer[n - 1];
}

/// Elements [begin, end) of the nest. Operand 0 is the output.
template <class T>
class Mapper {
 public:
  Mapper(const LoopNest& nest,
         BlockFunction<T> block,
         const void* functor,
         const View& y,
         std::span<const View* const> x)
      : nest_(nest),
        block_(block),
        functor_(functor),
        inputs_(static_cast<int>(x.size())),
        operand_{Operand<T>(y), Operand<T>(inputs_ > 0 ? *x[0] : y),
                 Operand<T>(inputs_ > 1 ? *x[1] : y), Operand<T>(inputs_ > 2 ? *x[2] : y)} {}

  void run(std::int64_t begin, std::int64_t end) const {
    if (nest_.dims == 1 || nest_.size[nest_.dims - 1] >= 64) {
      rows(begin, end);
    } else {
      gathered(begin, end);
    }
  }

 private:
  // Long rows: full groups of dense operands are computed in place.
  void rows(std::int64_t begin, std::int64_t end) const {
    const int last = nest_.dims - 1;
    Walk walk[] = {{nest_, 0, begin}, {nest_, 1, begin}, {nest_, 2, begin}, {nest_, 3, begin}};
    alignas(64) T buffer[4][kBlock];
    const char* filled[4] = {};
    while (begin < end) {
      std::int64_t n = std::min({end - begin, nest_.size[last] - walk[0].index[last], kBlock});
      if (n > kLanes) n = n / kLanes * kLanes;
      const std::int64_t padded = round_up(n);
      const T* in[4] = {};
      for (int k = 1; k <= inputs_; ++k) {
        const Operand<T>& op = operand_[k];
        const char* const src = op.at(walk[k].offset);
        const std::int64_t stride = nest_.stride[k][last];
        in[k - 1] = buffer[k];
        if (op.same_type && stride == 1 && n == padded) {
          in[k - 1] = reinterpret_cast<const T*>(src);
        } else if (stride == 0) {
          if (filled[k] != src) load(src, op.dtype, 0, kBlock, buffer[k]);
          filled[k] = src;
        } else {
          load(src, op.dtype, stride, n, buffer[k]);
          pad(buffer[k], n, padded);
        }
      }
      const Operand<T>& out = operand_[0];
      char* const dst = out.at(walk[0].offset);
      const std::int64_t stride = nest_.stride[0][last];
      if (out.same_type && stride == 1 && n == padded) {
        block_(functor_, in, reinterpret_cast<T*>(dst), padded / kLanes);
      } else {
        block_(functor_, in, buffer[0], padded / kLanes);
        store(buffer[0], n, dst, out.dtype, stride);
      }
      for (int k = 0; k <= inputs_; ++k) walk[k].advance(nest_, k, n);
      begin += n;
    }
  }

  // Short rows: many of them are collected in the buffers.
  void gathered(std::int64_t begin, std::int64_t end) const {
    const int last = nest_.dims - 1;
    Walk walk[] = {{nest_, 0, begin}, {nest_, 1, begin}, {nest_, 2, begin}, {nest_, 3, begin}};
    alignas(64) T buffer[4][kBlock];
    const auto each_row = [&](int k, std::int64_t n, auto&& f) {
      for (std::int64_t i = 0; i < n;) {
        const std::int64_t m = std::min(n - i, nest_.size[last] - walk[k].index[last]);
        f(operand_[k].at(walk[k].offset), m, i);
        walk[k].advance(nest_, k, m);
        i += m;
      }
    };
    while (begin < end) {
      const std::int64_t n = std::min(end - begin, kBlock);
      const std::int64_t padded = round_up(n);
      const T* in[4] = {};
      for (int k = 1; k <= inputs_; ++k) {
        const std::int64_t stride = nest_.stride[k][last];
        each_row(k, n, [&](const char* src, std::int64_t m, std::int64_t i) {
          load(src, operand_[k].dtype, stride, m, buffer[k] + i);
        });
        pad(buffer[k], n, padded);
        in[k - 1] = buffer[k];
      }
      block_(functor_, in, buffer[0], padded / kLanes);
      each_row(0, n, [&](char* dst, std::int64_t m, std::int64_t i) {
        store(buffer[0] + i, m, dst, operand_[0].dtype, nest_.stride[0][last]);
      });
      begin += n;
    }
  }

  const LoopNest& nest_;
  BlockFunction<T> block_;
  const void* functor_;
  int inputs_;
  Operand<T> operand_[4];
};

}  // namespace

template <class T>
void map(const char* op,
         BlockFunction<T> block,
         const void* functor,
         const View& y,
         std::span<const View* const> x) {
  const View* views[4] = {&y};
  for (std::size_t k = 0; k < x.size(); ++k) views[k + 1] = x[k];
  const LoopNest nest = make_loop_nest(op, std::span<const View* const>(views, x.size() + 1));
  if (nest.total == 0) return;
  const Mapper<T> mapper(nest, block, functor, y, x);
  parallel_chunks(nest.total, 1,
                  [&](std::int64_t begin, std::int64_t end) { mapper.run(begin, end); });
}

#define TESSERA_INSTANTIATE(T)                                                  \
  template void load<T>(const void*, DType, std::int64_t, std::int64_t, T*);    \
  template void store<T>(const T*, std::int64_t, void*, DType, std::int64_t);   \
  template void map<T>(const char*, BlockFunction<T>, const void*, const View&, \
                       std::span<const View* const>);
TESSERA_INSTANTIATE(float)
TESSERA_INSTANTIATE(double)
TESSERA_INSTANTIATE(std::int64_t)

}  // namespace tessera::kernels
