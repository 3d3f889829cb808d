#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/unet.hpp>
#include <tessera/nn/encodings.hpp>

namespace tessera::models {
namespace {

using Down = UNetOptions::Down;

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

ResidualOptions residual_of(const UNetOptions& o) {
  return {.dims = o.dims,
          .kernel = o.kernel,
          .norm_groups = o.norm_groups,
          .activation = o.activation,
          .dropout = o.dropout,
          .edges = o.edges};
}

std::unique_ptr<nn::Layer> make_stem(const UNetOptions& o, const Mesh& mesh, DType dtype) {
  const std::int64_t in = o.in_channels * (o.detail_scale > 0.0 ? 2 : 1);
  if (o.patch == 1)
    return std::make_unique<nn::Conv>(same_conv(in, channels(o, 0), residual_of(o), mesh, dtype));
  return std::make_unique<nn::PatchEmbed>(
      nn::PatchOptions{.dims = o.dims, .in = in, .out = channels(o, 0), .patch = {o.patch}}, mesh,
      dtype);
}

nn::Conv head_conv(const UNetOptions& o, const Mesh& mesh, DType dtype) {
  std::int64_t out = o.out_channels;
  for (int d = 0; d < o.dims; ++d) out *= o.upscale;
  return same_conv(channels(o, 0), out, residual_of(o), mesh, dtype,
                   head_init(output_of(o), o.zero_head));
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

}  // namespace

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
    blocks.emplace_back(b == 0 && pool ? in : out, out, residual_of(options), mesh, dtype);
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

UNet::UNet(const UNetOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      stem_(make_stem(options, mesh, dtype)),
      norm_(norm_with_activation(channels(options, 0), residual_of(options), mesh, dtype)) {
  for (int b = 0; b < options.blocks; ++b) {
    blocks_.emplace_back(channels(options, 0), channels(options, 0), residual_of(options), mesh,
                         dtype);
  }
  for (std::size_t l = 1; l < options.multipliers.size(); ++l) {
    down_.emplace_back(channels(options, l - 1), channels(options, l), options, mesh, dtype);
  }
  for (std::size_t l = options.multipliers.size() - 1; l > 0; --l) {
    up_.emplace_back(channels(options, l), channels(options, l - 1), options.up, options.blocks,
                     residual_of(options), mesh, dtype);
  }
  for (int b = 0; b < options.attention_blocks; ++b)
    attention_.emplace_back(attention_of(options), mesh, dtype);
  if (options.patch == 1) {
    head_.emplace(head_conv(options, mesh, dtype));
  } else {
    patch_head_.emplace(
        nn::PatchOptions{.dims = options.dims,
                         .in = channels(options, 0),
                         .out = options.out_channels,
                         .patch = {options.patch * options.upscale},
                         .weight_init = head_init(output_of(options), options.zero_head),
                         .bias_init = head_init(output_of(options), options.zero_head)},
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
