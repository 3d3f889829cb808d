#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/nn/encodings.hpp>
#include <tessera/nn/tensor_parallel.hpp>

namespace tessera::models {
namespace {

using Down = UNetOptions::Down;
using Up = UNetOptions::Up;
using InputSkip = UNetOptions::InputSkip;

FieldOutput output_of(const UNetOptions& o) {
  return {.upscale = o.upscale, .input_skip = o.input_skip, .conserve_means = o.conserve_means};
}

const UNetOptions& checked(const UNetOptions& o) {
  if (o.dims < 1 || o.dims > 3) {
    throw UsageError(str("unet: ", o.dims, " domain dimensions. Choose 1, 2 or 3."));
  }
  if (o.multipliers.empty() || o.multipliers.size() > 16) {
    throw UsageError(str("unet: ", o.multipliers.size(),
                         " levels (one per channel multiplier). Give 1 to 16 multipliers."));
  }
  if (o.blocks < 1 || o.upscale < 1 || o.patch < 1 || o.kernel < 1 || o.kernel % 2 == 0) {
    throw UsageError(str("unet: blocks ", o.blocks, ", upscale ", o.upscale, ", patch ", o.patch,
                         ", kernel ", o.kernel,
                         " (all must be at least 1, the kernel odd). Use for example 1, 1, 1 and "
                         "3."));
  }
  if (o.attention_blocks < 0)
    throw UsageError(str("unet: ", o.attention_blocks, " transformer blocks. Use 0 or more."));
  check_field_output("unet", output_of(o), o.in_channels, o.out_channels);
  return o;
}

std::int64_t channels(const UNetOptions& o, std::size_t level) {
  return o.base * o.multipliers[level];
}

nn::Conv block_conv(
    std::int64_t in, std::int64_t out, const UNetOptions& o, const Mesh& mesh, DType dtype) {
  return nn::Conv({.dims = o.dims, .in = in, .out = out, .kernel = {o.kernel}, .edges = o.edges},
                  mesh, dtype);
}

nn::Conv pointwise(
    std::int64_t in, std::int64_t out, const UNetOptions& o, const Mesh& mesh, DType dtype) {
  return nn::Conv({.dims = o.dims, .in = in, .out = out, .kernel = {1}}, mesh, dtype);
}

std::optional<nn::GroupNorm> norm_act(std::int64_t channels,
                                      const UNetOptions& o,
                                      const Mesh& mesh,
                                      DType dtype) {
  if (o.norm_groups == 0) return std::nullopt;
  return nn::GroupNorm({.groups = o.norm_groups, .channels = channels, .activation = o.activation},
                       mesh, dtype);
}

std::unique_ptr<nn::Layer> make_stem(const UNetOptions& o, const Mesh& mesh, DType dtype) {
  const std::int64_t in = o.in_channels * (o.detail_scale > 0.0 ? 2 : 1);
  if (o.patch == 1)
    return std::make_unique<nn::Conv>(block_conv(in, channels(o, 0), o, mesh, dtype));
  return std::make_unique<nn::PatchEmbed>(
      nn::PatchOptions{.dims = o.dims, .in = in, .out = channels(o, 0), .patch = {o.patch}}, mesh,
      dtype);
}

/// Zero weights where the output is a correction: training starts from the interpolation.
nn::Init head_init(const UNetOptions& o) {
  const bool correction = o.input_skip != InputSkip::kNone || o.zero_head;
  return correction ? nn::init::zeros() : nn::Init{};
}

nn::Conv head_conv(const UNetOptions& o, const Mesh& mesh, DType dtype) {
  std::int64_t out = o.out_channels;
  for (int d = 0; d < o.dims; ++d) out *= o.upscale;
  return nn::Conv({.dims = o.dims,
                   .in = channels(o, 0),
                   .out = out,
                   .kernel = {o.kernel},
                   .edges = o.edges,
                   .weight_init = head_init(o),
                   .bias_init = head_init(o)},
                  mesh, dtype);
}

nn::TransformerBlockOptions attention_of(const UNetOptions& o) {
  const std::int64_t width = channels(o, o.multipliers.size() - 1);
  nn::TransformerBlockOptions block;
  block.attention.channels = width;
  block.attention.heads = o.heads;
  block.attention.rotary = RotaryOptions{.circular = nn::circular_flags(o.edges)};
  block.attention.edges = o.edges;
  block.mlp = {.hidden = 4 * width, .activation = Activation::kGelu, .dropout = o.dropout};
  block.dropout = o.dropout;
  return block;
}

Dims domain_of(const Tensor& x) {
  Dims size;
  for (int d = 1; d + 1 < x.dims(); ++d) size.push_back(x.size(d));
  return size;
}

}  // namespace

ResidualBlock::ResidualBlock(
    std::int64_t in, std::int64_t out, const UNetOptions& options, const Mesh& mesh, DType dtype)
    : activation_(options.activation),
      norm1_(norm_act(in, options, mesh, dtype)),
      norm2_(norm_act(out, options, mesh, dtype)),
      conv1_(block_conv(in, out, options, mesh, dtype)),
      conv2_(block_conv(out, out, options, mesh, dtype)),
      dropout_(options.dropout) {
  if (in != out) shortcut_.emplace(pointwise(in, out, options, mesh, dtype));
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

UNet::Descent::Descent(
    std::int64_t in, std::int64_t out, const UNetOptions& options, const Mesh& mesh, DType dtype) {
  if (options.down == Down::kConv) {
    conv.emplace(nn::ConvLayerOptions{.dims = options.dims,
                                      .in = in,
                                      .out = out,
                                      .kernel = {3},
                                      .stride = {2},
                                      .edges = options.edges},
                 mesh, dtype);
  } else {
    const PoolOptions halve = {.kernel = Dims::filled(options.dims, 2), .ceil_mode = true};
    if (options.down == Down::kMaxPool) {
      pool = std::make_unique<nn::MaxPool>(halve);
    } else {
      pool = std::make_unique<nn::AvgPool>(halve);
    }
  }
  for (int b = 0; b < options.blocks; ++b) {
    blocks.emplace_back(b == 0 && pool ? in : out, out, options, mesh, dtype);
  }
}

void UNet::Descent::fields(nn::Fields& f) {
  f("conv", conv);
  f("pool", pool);
  f("blocks", blocks);
}

Tensor UNet::Descent::operator()(const Tensor& x) const {
  const LayerScope scope(scope_name());
  Tensor y = conv ? (*conv)(x) : (*pool)(x);
  for (const ResidualBlock& block : blocks) y = block(y);
  return y;
}

UNet::Ascent::Ascent(
    std::int64_t in, std::int64_t out, const UNetOptions& options, const Mesh& mesh, DType dtype) {
  if (options.up == Up::kTransposed) {
    transposed.emplace(
        nn::ConvLayerOptions{
            .dims = options.dims, .in = in, .out = out, .kernel = {2}, .stride = {2}},
        mesh, dtype);
  } else {
    if (options.up == Up::kLinear) mode = InterpolateMode::kLinear;
    conv.emplace(pointwise(in, out, options, mesh, dtype));
  }
  for (int b = 0; b < options.blocks; ++b) {
    blocks.emplace_back(b == 0 ? 2 * out : out, out, options, mesh, dtype);
  }
}

void UNet::Ascent::fields(nn::Fields& f) {
  f("transposed", transposed);
  f("conv", conv);
  f("blocks", blocks);
}

Tensor UNet::Ascent::operator()(const Tensor& x, const Tensor& skip) const {
  const LayerScope scope(scope_name());
  const Dims size = domain_of(skip);
  // The 1x1 convolution goes first: it commutes with the interpolation and is cheaper there.
  const auto finer = [&] {
    return transposed ? transposed->forward_to(x, size)
                      : interpolate((*conv)(x), size, {.mode = mode, .like = skip.layout()});
  };
  Tensor y = concat({cast(finer(), skip.dtype()), skip}, -1);
  for (const ResidualBlock& block : blocks) y = block(y);
  return y;
}

UNet::UNet(const UNetOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      stem_(make_stem(options, mesh, dtype)),
      norm_(norm_act(channels(options, 0), options, mesh, dtype)) {
  for (int b = 0; b < options.blocks; ++b) {
    blocks_.emplace_back(channels(options, 0), channels(options, 0), options, mesh, dtype);
  }
  for (std::size_t l = 1; l < options.multipliers.size(); ++l) {
    down_.emplace_back(channels(options, l - 1), channels(options, l), options, mesh, dtype);
  }
  for (std::size_t l = options.multipliers.size() - 1; l > 0; --l) {
    up_.emplace_back(channels(options, l), channels(options, l - 1), options, mesh, dtype);
  }
  for (int b = 0; b < options.attention_blocks; ++b)
    attention_.emplace_back(attention_of(options), mesh, dtype);
  if (options.patch == 1) {
    head_.emplace(head_conv(options, mesh, dtype));
  } else {
    patch_head_.emplace(nn::PatchOptions{.dims = options.dims,
                                         .in = channels(options, 0),
                                         .out = options.out_channels,
                                         .patch = {options.patch * options.upscale},
                                         .weight_init = head_init(options),
                                         .bias_init = head_init(options)},
                        mesh, dtype);
  }
  if (options.detail_scale > 0.0) detail_filter_ = detail_filter(options.dims, mesh, dtype);
  nn::initialize(*this, options.seed);
}

void UNet::set_edges(const std::vector<EdgeRule>& edges) {
  for (const auto& [path, module] : named_modules()) {
    if (auto* const layer = dynamic_cast<nn::Conv*>(module)) layer->set_edges(edges);
    if (auto* const layer = dynamic_cast<nn::MultiHeadAttention*>(module)) layer->set_edges(edges);
  }
  options_.edges = edges;
}

void UNet::fields(nn::Fields& f) {
  f("stem", stem_);
  f("blocks", blocks_);
  f("down", down_);
  f("attention", attention_);
  f("up", up_);
  f("norm", norm_);
  f("head", head_);
  f("patch_head", patch_head_);
}

Tensor UNet::stem(const Tensor& x) const {
  const UNetOptions& o = options_;
  check_field_input("unet", x, o.dims, o.in_channels);
  return (*stem_)(o.detail_scale > 0.0 ? with_details(x, detail_filter_, o.detail_scale, o.edges)
                                       : x);
}

Tensor UNet::head(const Tensor& y, const Tensor& x) const {
  const UNetOptions& o = options_;
  const Tensor features = norm_ ? (*norm_)(y) : y;
  Tensor out = head_ ? (*head_)(features)
                     : patch_head_->forward_to(
                           features, nn::domain_layout(x.layout(), x.size(0), 1, o.upscale));
  out = cast(out, x.dtype());
  if (head_ && o.upscale > 1) out = pixel_shuffle(out, o.upscale);
  if (o.detail_scale > 0.0) out = out * o.detail_scale;
  return finish_field(std::move(out), x, output_of(o), o.edges);
}

Tensor UNet::forward(const Tensor& x) const {
  std::vector<Tensor> skips;
  Tensor y = stem(x);
  for (const ResidualBlock& block : blocks_) y = block(y);
  for (const Descent& descent : down_) {
    skips.push_back(y);
    y = descent(y);
  }
  for (const nn::TransformerBlock& block : attention_) y = block(y);
  for (const Ascent& ascent : up_) {
    y = ascent(y, skips.back());
    skips.pop_back();
  }
  return head(y, x);
}

std::vector<nn::PipelineBlock> UNet::pipeline_blocks() {
  // Tensors between blocks: the activation, the input, the skips from the finest level on.
  using Tensors = std::vector<Tensor>;
  std::vector<nn::PipelineBlock> list;
  list.push_back({{stem_.get()}, [this](std::span<const Tensor> in) {
                    const LayerScope scope(scope_name());
                    return Tensors{stem(in[0]), carried_input(in[0], output_of(options_))};
                  }});
  for (ResidualBlock& block : blocks_) list.push_back(nn::pipeline_block(block));
  for (Descent& descent : down_) {
    list.push_back({{&descent}, [&descent](std::span<const Tensor> in) {
                      Tensors out(in.begin(), in.end());
                      out.push_back(in[0]);
                      out[0] = descent(in[0]);
                      return out;
                    }});
  }
  for (nn::TransformerBlock& block : attention_) list.push_back(nn::pipeline_block(block));
  for (Ascent& ascent : up_) {
    list.push_back({{&ascent}, [&ascent](std::span<const Tensor> in) {
                      Tensors out(in.begin(), in.end() - 1);
                      out[0] = ascent(in[0], in.back());
                      return out;
                    }});
  }
  nn::Module* const last = head_ ? static_cast<nn::Module*>(&*head_) : &*patch_head_;
  list.push_back({{last}, [this](std::span<const Tensor> in) {
                    const LayerScope scope(scope_name());
                    return Tensors{head(in[0], in[1])};
                  }});
  if (norm_) list.back().modules.push_back(&*norm_);
  return list;
}

std::string UNet::describe() const {
  return fmt::format("UNet {}-D, {} -> {} channels, levels of {}", options_.dims,
                     options_.in_channels, options_.out_channels,
                     fmt::join(options_.multipliers, ", "));
}

}  // namespace tessera::models
