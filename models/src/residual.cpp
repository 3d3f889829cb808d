#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/residual.hpp>
#include <tessera/nn/tensor_parallel.hpp>

namespace tessera::models {
namespace {

nn::Conv pointwise(std::int64_t in, std::int64_t out, int dims, const Mesh& mesh, DType dtype) {
  return nn::Conv({.dims = dims, .in = in, .out = out, .kernel = {1}}, mesh, dtype);
}

Dims domain_of(const Tensor& x) {
  Dims size;
  for (int d = 1; d + 1 < x.dims(); ++d) size.push_back(x.size(d));
  return size;
}

}  // namespace

nn::Conv same_conv(std::int64_t in,
                   std::int64_t out,
                   const ResidualOptions& o,
                   const Mesh& mesh,
                   DType dtype,
                   const nn::Init& init) {
  return nn::Conv({.dims = o.dims,
                   .in = in,
                   .out = out,
                   .kernel = {o.kernel},
                   .edges = o.edges,
                   .weight_init = init,
                   .bias_init = init},
                  mesh, dtype);
}

std::optional<nn::GroupNorm> norm_with_activation(std::int64_t channels,
                                                  const ResidualOptions& o,
                                                  const Mesh& mesh,
                                                  DType dtype) {
  if (o.norm_groups == 0) return std::nullopt;
  return nn::GroupNorm({.groups = o.norm_groups, .channels = channels, .activation = o.activation},
                       mesh, dtype);
}

ResidualBlock::ResidualBlock(std::int64_t in,
                             std::int64_t out,
                             const ResidualOptions& options,
                             const Mesh& mesh,
                             DType dtype)
    : activation_(options.activation),
      norm1_(norm_with_activation(in, options, mesh, dtype)),
      norm2_(norm_with_activation(out, options, mesh, dtype)),
      conv1_(same_conv(in, out, options, mesh, dtype)),
      conv2_(same_conv(out, out, options, mesh, dtype)),
      dropout_(options.dropout) {
  if (in != out) shortcut_.emplace(pointwise(in, out, options.dims, mesh, dtype));
}

void ResidualBlock::fields(nn::Fields& f) {
  f("norm1", norm1_);
  f("conv1", conv1_);
  f("norm2", norm2_);
  f("dropout", dropout_);
  f("conv2", conv2_);
  f("shortcut", shortcut_);
}

Tensor ResidualBlock::forward(const Tensor& x) const {
  // The shortcut goes first: its gradient then comes last, and only that of y waits for it.
  const Tensor carried = shortcut_ ? (*shortcut_)(x) : x;
  Tensor h = conv1_(nn::gathered_for(norm1_ ? (*norm1_)(x) : x, conv1_.weight));
  h = norm2_ ? (*norm2_)(h) : activate(h, activation_);
  h = nn::returned_to(conv2_(dropout_(h)), x);
  return carried + cast(h, carried.dtype());
}

Ascent::Ascent(std::int64_t in,
               std::int64_t out,
               AscentKind kind,
               int blocks,
               const ResidualOptions& options,
               const Mesh& mesh,
               DType dtype) {
  if (kind == AscentKind::kTransposed) {
    transposed_.emplace(
        nn::ConvLayerOptions{
            .dims = options.dims, .in = in, .out = out, .kernel = {2}, .stride = {2}},
        mesh, dtype);
  } else {
    if (kind == AscentKind::kLinear) mode_ = InterpolateMode::kLinear;
    conv_.emplace(pointwise(in, out, options.dims, mesh, dtype));
  }
  for (int b = 0; b < blocks; ++b)
    blocks_.emplace_back(b == 0 ? 2 * out : out, out, options, mesh, dtype);
}

void Ascent::fields(nn::Fields& f) {
  f("transposed", transposed_);
  f("conv", conv_);
  f("blocks", blocks_);
}

Tensor Ascent::operator()(const Tensor& x, const Tensor& skip) const {
  const LayerScope scope(scope_name());
  const Dims size = domain_of(skip);
  // The 1x1 convolution goes first: it commutes with the interpolation and is cheaper there.
  const auto finer = [&] {
    return transposed_ ? transposed_->forward_to(x, size)
                       : interpolate((*conv_)(x), size, {.mode = mode_, .like = skip.layout()});
  };
  Tensor y = concat({cast(finer(), skip.dtype()), skip}, -1);
  for (const ResidualBlock& block : blocks_) y = block(y);
  return y;
}

}  // namespace tessera::models
