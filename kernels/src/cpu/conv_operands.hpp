#pragma once

#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/conv.hpp>
#include <vector>

#include "cpu/tap_regions.hpp"

namespace tessera::kernels::cpu {

/// Uninitialised elements from the pool, for the time of one call.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::int64_t count)
      : buffer_(MemoryPool::of({}).allocate(static_cast<std::size_t>(count) * sizeof(T))) {}
  T* data() const { return buffer_ ? reinterpret_cast<T*>(buffer_->data()) : nullptr; }

 private:
  Ref<Buffer> buffer_;
};

/// The weights of a convolution in one of its two directions: weight(g, t, i, o) multiplies input
/// channel i of group g at tap t into output channel o of that group.
struct ConvWeights {
  View view;
  std::int64_t groups = 1;
  std::int64_t taps = 1;
  std::int64_t in = 1;   ///< input channels per group
  std::int64_t out = 1;  ///< output channels per group
  std::int64_t group_stride = 0;
  std::int64_t in_stride = 0;
  std::int64_t out_stride = 0;
  Dims tap_shape;
  Strides tap_strides;

  /// Element offset of each tap, row-major.
  std::vector<std::int64_t> tap_offsets() const;
  static ConvWeights make(const View& w, std::int64_t groups, TapDirection direction);
};

/// The kernel that serves these channels; a function of global sizes alone, so that every cut of an
/// output takes the same one.
enum class ConvKernel {
  kGemm,        ///< outputs in vector lanes
  kDot,         ///< few outputs, many inputs: inputs in vector lanes
  kChannelwise  ///< one input and output channel per group: groups in vector lanes
};
ConvKernel conv_kernel(
    std::int64_t groups, std::int64_t taps, std::int64_t in, std::int64_t out, int lanes);

/// Weights, of type T like the bias, rearranged for the kernel that serves them.
template <class T>
class PackedConv {
 public:
  /// The bias repeats when there are more output channels than it has elements.
  PackedConv(const ConvWeights& w, const View* bias);

  /// Computes the box of `out`; both pieces have elements of type T and unit channel stride.
  void run(const std::vector<TapAxis>& axes,
           TapDirection direction,
           const Piece& in,
           const Piece& out) const;

 private:
  struct Columns {
    int vectors;
    std::int64_t first;  ///< output channel within the group
    int last;            ///< channels in the last vector
    std::int64_t start;  ///< of the block in packed_, within its group
  };
  struct Call;

  void pack_gemm();
  void pack_dot();
  void pack_channelwise();
  void run_gemm(const Call& call) const;
  void run_dot(const Call& call) const;
  void run_channelwise(const Call& call) const;
  const T* weight(std::int64_t g, std::int64_t tap, std::int64_t i, std::int64_t o) const;

  ConvWeights w_;
  std::vector<std::int64_t> tap_offsets_;
  ConvKernel kernel_;
  std::vector<Columns> columns_;
  std::int64_t group_size_ = 0;  ///< packed elements of one group
  std::int64_t out_padded_ = 0;  ///< bias elements of one group
  Scratch<T> packed_;
  Scratch<T> bias_;
};

/// dw (+)= the weight gradient; pieces of type T with unit channel stride. `dw` is dense
/// [groups][out][tap][in].
template <class T>
void conv_weight_sum(const std::vector<TapAxis>& axes,
                     std::int64_t groups,
                     const Piece& x,
                     const Piece& dy,
                     T* dw,
                     bool accumulate);

}  // namespace tessera::kernels::cpu
