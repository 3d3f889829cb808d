#include <algorithm>
#include <tessera/kernels/conv.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <type_traits>

#include "cpu/conv_operands.hpp"
#include "launch.hpp"

namespace tessera::kernels {

namespace {

using cpu::PackedConv;
using cpu::Scratch;
using cpu::TapAxis;
using cpu::TapDirection;

std::vector<TapAxis> tap_axes(const ConvGeometry& g) {
  std::vector<TapAxis> axes;
  for (int d = 0; d < g.dims(); ++d)
    axes.push_back({g.kernel[d], g.stride[d], g.pad_lo[d], g.dilation[d]});
  return axes;
}

/// Checks the operands of one convolution, `x` the side with C_in channels and `y` that with C_out;
/// returns the groups.
std::int64_t check(
    const char* op, const ConvGeometry& g, const Piece& x, const View& w, const Piece& y) {
  const int dims = g.dims();
  if (dims < 1 || dims > 3 || g.stride.size() != dims || g.pad_lo.size() != dims ||
      g.dilation.size() != dims)
    throw ShapeError(str(op, ": kernel ", g.kernel, ", stride ", g.stride, ", padding ", g.pad_lo,
                         " and dilation ", g.dilation,
                         " do not describe 1 to 3 dimensions. Give one value per dimension."));
  for (int d = 0; d < dims; ++d)
    if (g.kernel[d] < 1 || g.stride[d] < 1 || g.dilation[d] < 1)
      throw ShapeError(str(op, ": kernel, stride and dilation must be at least 1 (they are ",
                           g.kernel, ", ", g.stride, ", ", g.dilation, ")."));
  if (x.view.dims() != dims + 2 || y.view.dims() != dims + 2 || w.dims() != dims + 2)
    throw ShapeError(str(op, ": shapes ", x.view.shape, ", ", w.shape, " and ", y.view.shape,
                         " do not have batch, ", dims, " domain dimensions and channels."));
  for (int d = 0; d < dims; ++d)
    if (w.shape[d + 1] != g.kernel[d])
      throw ShapeError(str(op, ": weight ", w.shape, " does not hold a kernel of ", g.kernel, "."));
  if (x.view.dtype != w.dtype || y.view.dtype != w.dtype)
    throw DTypeError(str(op, ": element types ", name(x.view.dtype), ", ", name(w.dtype), " and ",
                         name(y.view.dtype), " differ. Cast to one."));
  if (on_cuda(x.view) || on_cuda(w) || on_cuda(y.view))
    throw DeviceError(str(op, ": no kernel for a GPU. Move the tensors to the CPU."));
  const std::int64_t in = x.view.shape.back(), per_group = w.shape.back();
  const std::int64_t groups = per_group == 0 ? 1 : in / per_group;
  if (groups * per_group != in || w.shape[0] != y.view.shape.back() ||
      (groups > 0 && w.shape[0] % groups != 0))
    throw ShapeError(str(op, ": channels ", in, " and ", y.view.shape.back(),
                         " do not fit the weight ", w.shape,
                         ", which is [C_out, kernel..., C_in / groups]."));
  return std::max<std::int64_t>(groups, 1);
}

void check_batch(const char* op, const Piece& in, const Piece& out) {
  if (!out.box.empty() && !in.box[0].contains(out.box[0]))
    throw ShapeError(str(op, ": samples ", out.box.lo[0], " to ", out.box.hi[0],
                         " are not all in the input's box ", in.box, "."));
}

template <class T>
bool direct(const View& v) {
  return v.dtype == dtype_of<T> && (v.shape.back() == 1 || v.strides.back() == 1 || v.empty());
}

/// The part of the input that the outputs `out` read.
Box needed(const std::vector<TapAxis>& axes,
           TapDirection direction,
           const Piece& in,
           const Box& out) {
  Box box = in.box;
  box.set(0, out[0]);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const TapAxis& a = axes[i];
    const int d = static_cast<int>(i) + 1;
    const std::int64_t reach = a.dilation * (a.kernel - 1);
    const Interval need =
        direction == TapDirection::kForward
            ? Interval{out.lo[d] * a.stride - a.pad, (out.hi[d] - 1) * a.stride - a.pad + reach + 1}
            : Interval{cpu::ceil_div(out.lo[d] + a.pad - reach, a.stride),
                       cpu::floor_div(out.hi[d] - 1 + a.pad, a.stride) + 1};
    box.set(d, intersect(need, in.box[d]));
  }
  return box;
}

/// Where the windows of the last domain dimension neither overlap nor dilate, they and their
/// channels are one longer row of channels: a convolution of kernel 1. Whether it is seen so
/// depends on global sizes alone.
struct Fold {
  std::int64_t by = 1;  ///< pixels per row of channels; 1: not folded

  Fold(const ConvGeometry& g, std::int64_t groups) {
    const int last = g.dims() - 1;
    const std::int64_t k = g.kernel[last];
    if (groups == 1 && g.stride[last] == k && (g.dilation[last] == 1 || k == 1) &&
        g.pad_lo[last] % k == 0)
      by = k;
  }

  ConvGeometry geometry(ConvGeometry g) const {
    if (by == 1) return g;
    const int last = g.dims() - 1;
    g.kernel[last] = g.stride[last] = g.dilation[last] = 1;
    g.pad_lo[last] /= by;
    return g;
  }
  View weight(View w) const {
    if (by == 1) return w;
    const int last = w.dims() - 1;
    w.shape[last] *= by;
    w.shape[last - 1] = 1;
    return w;
  }
  /// The smallest box around `box` that is a whole number of folded pixels.
  Box around(Box box) const {
    const int d = box.dims() - 2;
    if (!box[d].empty())
      box.set(d, {cpu::floor_div(box.lo[d], by) * by, cpu::ceil_div(box.hi[d], by) * by});
    return box;
  }
  bool fits(const Piece& p) const {
    if (by == 1 || p.box.empty()) return true;
    const int last = p.box.dims() - 1;
    return around(p.box) == p.box && p.view.strides[last - 1] == p.view.shape[last];
  }
  Piece piece(Piece p) const {
    if (by == 1) return p;
    const int last = p.box.dims() - 1, d = last - 1;
    p.box.lo[d] = cpu::floor_div(p.box.lo[d], by);
    p.box.hi[d] = cpu::floor_div(p.box.hi[d], by);
    p.box.set(last, {0, p.view.shape[last] * by});
    p.view.shape = p.box.shape();
    p.view.strides[d] *= by;
    p.view.strides[last] = 1;
    return p;
  }
};

/// A dense block of elements of type T in the coordinates of a piece.
template <class T>
struct Block {
  Scratch<T> memory;
  Piece piece;

  Block(const Piece& of, const Box& box) : memory(std::max<std::int64_t>(box.volume(), 1)) {
    piece.view = View::dense(memory.data(), dtype_of<T>, box.shape());
    piece.box = box;
    piece.global = of.global;
  }
  /// Takes what the piece has of the block; zero elsewhere.
  void load(const Piece& from) const {
    const Box there = intersect(piece.box, from.box);
    if (!(there == piece.box)) fill(piece.view, 0);
    copy(from.slice(there).view, piece.slice(there).view);
  }
};

/// A view with elements of type T: the given one, or a dense copy.
template <class T>
struct Converted {
  Scratch<T> memory;
  View view;

  Converted(const View& from, bool as_it_is) : view(from) {
    if ((from.dtype == dtype_of<T> && as_it_is) || from.data == nullptr) return;
    memory = Scratch<T>(std::max<std::int64_t>(from.size(), 1));
    view = View::dense(memory.data(), dtype_of<T>, from.shape);
    copy(from, view);
  }
};

/// Cuts a box along batch and the first domain dimension into blocks of about 2^18 elements.
std::vector<Box> blocks(const Box& box) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 18;
  std::vector<Box> result;
  if (box.empty()) return result;
  const std::int64_t row = box.volume() / box[0].size() / box[1].size();
  const std::int64_t rows = std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(row, 1));
  for (std::int64_t n = box.lo[0]; n < box.hi[0]; ++n)
    for (std::int64_t i = box.lo[1]; i < box.hi[1]; i += rows) {
      Box part = box;
      part.set(0, {n, n + 1});
      part.set(1, {i, std::min(i + rows, box.hi[1])});
      result.push_back(part);
    }
  return result;
}

template <class T>
void gather(const ConvGeometry& g,
            TapDirection direction,
            const Piece& in,
            const View& w,
            std::int64_t groups,
            const std::optional<View>& bias,
            const Piece& out) {
  const Fold fold(g, groups);
  const std::vector<TapAxis> axes = tap_axes(g), folded_axes = tap_axes(fold.geometry(g));
  const bool forward = direction == TapDirection::kForward;
  const Converted<T> weights(w, fold.by == 1 || w.is_dense());
  const Converted<T> start(bias ? *bias : View{}, true);
  const PackedConv<T> conv(cpu::ConvWeights::make(fold.weight(weights.view), groups, direction),
                           bias ? &start.view : nullptr);
  const auto run = [&](const Piece& from, const Piece& to) {
    conv.run(folded_axes, direction, forward ? fold.piece(from) : from,
             forward ? to : fold.piece(to));
  };

  const Piece used = in.slice(needed(axes, direction, in, out.box));
  if (direct<T>(in.view) && direct<T>(out.view) && fold.fits(forward ? used : out)) {
    run(used, out);
    return;
  }
  for (const Box& box : blocks(out.box)) {
    const Box need = needed(axes, direction, in, box);
    const Block<T> source(in, forward ? fold.around(need) : need);
    const Block<T> target(out, forward ? box : fold.around(box));
    source.load(in);
    run(source.piece, target.piece);
    copy(target.piece.slice(box).view, out.slice(box).view);
  }
}

void gather(const char* op,
            const ConvGeometry& g,
            TapDirection direction,
            const Piece& in,
            const View& w,
            std::int64_t groups,
            const std::optional<View>& bias,
            const Piece& out) {
  check_batch(op, in, out);
  if (bias && (bias->dims() != 1 || bias->shape[0] != out.view.shape.back() ||
               bias->dtype != out.view.dtype))
    throw ShapeError(str(op, ": bias ", bias->shape, " of type ", name(bias->dtype),
                         " does not match ", out.view.shape.back(), " output channels of type ",
                         name(out.view.dtype), "."));
  if (out.view.empty()) return;
  if (w.dtype == DType::kFloat64) {
    gather<double>(g, direction, in, w, groups, bias, out);
  } else {
    visit_floating(op, w.dtype,
                   [&]<class T>() { gather<float>(g, direction, in, w, groups, bias, out); });
  }
}

template <class T>
void weight_grad(const ConvGeometry& g,
                 const Piece& x,
                 const Piece& dy,
                 std::int64_t groups,
                 const View& dw,
                 bool accumulate) {
  const Fold fold(g, groups);
  const std::vector<TapAxis> axes = tap_axes(g), folded_axes = tap_axes(fold.geometry(g));
  const Scratch<T> sum(dw.size());
  const View dense = View::dense(sum.data(), dtype_of<T>, dw.shape);
  if (accumulate) copy(dw, dense);
  const auto add = [&](const Piece& from, const Piece& to, bool again) {
    cpu::conv_weight_sum<T>(folded_axes, groups, fold.piece(from), to, sum.data(), again);
  };
  if (dy.box.empty()) {
    add(x, dy, accumulate);
  } else {
    const Piece used = x.slice(needed(axes, TapDirection::kForward, x, dy.box));
    if (direct<T>(x.view) && direct<T>(dy.view) && fold.fits(used)) {
      add(used, dy, accumulate);
    } else {
      // The order of the sum may depend on the element type, but not on strides, which replicas do
      // not share: one block where no conversion is needed.
      const bool converts = dw.dtype != dtype_of<T>;
      bool again = accumulate;
      for (const Box& box : converts ? blocks(dy.box) : std::vector<Box>{dy.box}) {
        const Block<T> source(x, fold.around(needed(axes, TapDirection::kForward, x, box)));
        const Block<T> target(dy, box);
        source.load(x);
        target.load(dy);
        add(source.piece, target.piece, again);
        again = true;
      }
    }
  }
  copy(dense, dw);
}

}  // namespace

void conv_forward(const ConvGeometry& g,
                  const Piece& x,
                  const View& w,
                  const std::optional<View>& bias,
                  const Piece& y) {
  const std::int64_t groups = check("conv", g, x, w, y);
  gather("conv", g, TapDirection::kForward, x, w, groups, bias, y);
}

void conv_input_grad(const ConvGeometry& g,
                     const Piece& dy,
                     const View& w,
                     const Piece& dx,
                     const std::optional<View>& bias) {
  const std::int64_t groups = check("conv_input_grad", g, dx, w, dy);
  gather("conv_input_grad", g, TapDirection::kAdjoint, dy, w, groups, bias, dx);
}

void conv_weight_grad(
    const ConvGeometry& g, const Piece& x, const Piece& dy, const View& dw, bool accumulate) {
  const std::int64_t groups = check("conv_weight_grad", g, x, dw, dy);
  check_batch("conv_weight_grad", x, dy);
  if (dw.empty()) return;
  if (dw.dtype == DType::kFloat64) {
    weight_grad<double>(g, x, dy, groups, dw, accumulate);
  } else {
    visit_floating("conv_weight_grad", dw.dtype,
                   [&]<class T>() { weight_grad<float>(g, x, dy, groups, dw, accumulate); });
  }
}

}  // namespace tessera::kernels
