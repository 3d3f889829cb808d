#include "cpu/separable.hpp"

#include <type_traits>

#include "cpu/simd.hpp"

namespace tessera::kernels::cpu {

std::size_t TapTable::longest() const {
  std::size_t most = 0;
  for (std::size_t i = 0; i + 1 < begin.size(); ++i) most = std::max(most, begin[i + 1] - begin[i]);
  return most;
}

void check_pixels(const char* op, int dims, const Piece& in, const Piece& out, bool same_dtype) {
  if (dims == 0) dims = in.view.dims() - 2;
  if (dims < 1 || dims > 3 || in.view.dims() != dims + 2 || out.view.dims() != dims + 2)
    throw ShapeError(str(op, ": shapes ", in.view.shape, " and ", out.view.shape,
                         " do not have batch, 1 to 3 domain dimensions and channels."));
  if (!is_floating(in.view.dtype) || (same_dtype && in.view.dtype != out.view.dtype))
    throw DTypeError(str(op, ": element types ", name(in.view.dtype), " and ", name(out.view.dtype),
                         " are not one floating type. Cast to one."));
  if (on_cuda(in.view) || on_cuda(out.view))
    throw DeviceError(str(op, ": no kernel for a GPU. Move the tensors to the CPU."));
  if (out.box.empty()) return;
  if (!in.box[0].contains(out.box[0]) || !in.box[dims + 1].contains(out.box[dims + 1]))
    throw ShapeError(str(op, ": samples and channels of the output box ", out.box,
                         " are not all in the input box ", in.box, "."));
}

namespace {

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <class T>
struct PixelTap {
  const T* from;
  Wide<T> weight;
};

/// Channels c .. c + count - 1 of a pixel as a register, whatever their distance and type.
template <class T>
auto load_channels(const T* p, std::int64_t step, int count) {
  using S = Simd<Wide<T>>;
  if constexpr (std::is_same_v<T, Wide<T>>) {
    if (step == 1) return count == kVectorLanes<T> ? S::load(p) : S::load_first(p, count);
  }
  typename S::Type v{};
  for (int i = 0; i < count; ++i) v[i] = static_cast<Wide<T>>(p[i * step]);
  return v;
}

template <class T, class Vector>
void store_channels(T* p, std::int64_t step, int count, Vector v) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    if (step == 1 && count == kVectorLanes<T>) return Simd<T>::store(p, v);
  }
  for (int i = 0; i < count; ++i) p[i * step] = T(v[i]);
}

/// One pixel: each channel is a chain of multiply-adds over the taps. All of them go through vector
/// registers, because only there the compiler fuses multiplication and addition in every case.
template <class T>
void sum_pixel(const std::vector<PixelTap<T>>& taps,
               std::size_t count,
               Wide<T> divisor,
               std::int64_t channels,
               std::int64_t in_step,
               T* out,
               std::int64_t out_step) {
  constexpr int kWidth = kVectorLanes<Wide<T>>;
  for (std::int64_t c = 0; c < channels; c += kWidth) {
    const int width = static_cast<int>(std::min<std::int64_t>(kWidth, channels - c));
    typename Simd<Wide<T>>::Type sum{};
    for (std::size_t t = 0; t < count; ++t)
      sum += taps[t].weight * load_channels(taps[t].from + c * in_step, in_step, width);
    if (divisor != 1) sum /= divisor;
    store_channels(out + c * out_step, out_step, width, sum);
  }
}

template <class T>
void apply(const std::array<TapTable, 3>& tables, const Piece& in_piece, const Piece& out_piece) {
  const Grid in(in_piece), out(out_piece);
  const T* source = in_piece.view.as<T>();
  T* target = out_piece.view.as<T>();
  const std::int64_t channel_shift = (out.box[4].lo - in.box[4].lo) * in.stride[4];
  const std::size_t most = tables[0].longest() * tables[1].longest() * tables[2].longest();
  const auto divisor = [](const TapTable& t, std::size_t i) {
    return t.divisor.empty() ? 1.0 : t.divisor[i];
  };
  out.for_each_row(
      static_cast<double>(most + 1), [&](std::int64_t n, std::int64_t i0, std::int64_t i1) {
        std::vector<PixelTap<T>> taps(most);
        const auto o0 = static_cast<std::size_t>(i0 - out.box[1].lo);
        const auto o1 = static_cast<std::size_t>(i1 - out.box[2].lo);
        const double row_divisor = divisor(tables[0], o0) * divisor(tables[1], o1);
        for (std::int64_t i2 = out.box[3].lo; i2 < out.box[3].hi; ++i2) {
          const auto o2 = static_cast<std::size_t>(i2 - out.box[3].lo);
          std::size_t count = 0;
          for (std::size_t a = tables[0].begin[o0]; a < tables[0].begin[o0 + 1]; ++a)
            for (std::size_t b = tables[1].begin[o1]; b < tables[1].begin[o1 + 1]; ++b) {
              const double weight = tables[0].taps[a].weight * tables[1].taps[b].weight;
              for (std::size_t c = tables[2].begin[o2]; c < tables[2].begin[o2 + 1]; ++c) {
                taps[count++] = {source + channel_shift +
                                     in.at(n, tables[0].taps[a].input, tables[1].taps[b].input,
                                           tables[2].taps[c].input),
                                 static_cast<Wide<T>>(weight * tables[2].taps[c].weight)};
              }
            }
          sum_pixel<T>(taps, count, static_cast<Wide<T>>(row_divisor * divisor(tables[2], o2)),
                       out.channels(), in.stride[4], target + out.at(n, i0, i1, i2), out.stride[4]);
        }
      });
}

}  // namespace

void apply_separable(const std::array<TapTable, 3>& tables, const Piece& in, const Piece& out) {
  if (out.view.empty()) return;
  visit_floating("separable", out.view.dtype, [&]<class T>() { apply<T>(tables, in, out); });
}

}  // namespace tessera::kernels::cpu
