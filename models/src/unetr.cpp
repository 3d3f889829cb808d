#include <fmt/format.h>

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/unetr.hpp>
#include <tessera/nn/encodings.hpp>

namespace tessera::models {
namespace {

FieldOutput output_of(const UnetrOptions& o) {
  return {.upscale = o.upscale, .input_skip = o.input_skip, .conserve_means = o.conserve_means};
}

const UnetrOptions& checked(const UnetrOptions& o) {
  if (o.dims < 1 || o.dims > 3)
    throw UsageError(str("unetr: ", o.dims, " domain dimensions. Choose 1, 2 or 3."));
  if (o.levels < 1 || o.levels > 16 || o.depth < o.levels) {
    throw UsageError(str("unetr: ", o.levels, " levels, depth ", o.depth,
                         " (1 to 16 levels, at least one block for each). Use for example 4 and "
                         "12."));
  }
  if (o.mlp_ratio < 1 || o.base < 1 || o.kernel < 1 || o.kernel % 2 == 0) {
    throw UsageError(str("unetr: mlp_ratio ", o.mlp_ratio, ", base ", o.base, ", kernel ", o.kernel,
                         " (all must be at least 1, the kernel odd). Use for example 4, 16 and "
                         "3."));
  }
  check_field_output("unetr", output_of(o), o.in_channels, o.out_channels);
  return o;
}

ResidualOptions residual_of(const UnetrOptions& o) {
  return {.dims = o.dims,
          .kernel = o.kernel,
          .norm_groups = o.norm_groups,
          .activation = o.activation,
          .dropout = o.dropout,
          .edges = o.edges};
}

nn::TransformerBlockOptions block_of(const UnetrOptions& o) {
  nn::TransformerBlockOptions block;
  block.attention = {.channels = o.channels, .heads = o.heads, .qk_norm = o.qk_norm};
  block.attention.rotary =
      RotaryOptions{.base = o.wave_base, .circular = nn::circular_flags(o.edges)};
  block.mlp = {.hidden = o.mlp_ratio * o.channels, .dropout = o.dropout};
  block.dropout = o.dropout;
  return block;
}

std::int64_t channels(const UnetrOptions& o, int level) {
  return level == o.levels ? o.channels : o.base << level;
}

std::int64_t seen_channels(const UnetrOptions& o) {
  return o.in_channels * (o.detail_scale > 0.0 ? 2 : 1);
}

nn::Conv head_conv(const UnetrOptions& o, const Mesh& mesh, DType dtype) {
  std::int64_t out = o.out_channels;
  for (int d = 0; d < o.dims; ++d) out *= o.upscale;
  return same_conv(channels(o, 0), out, residual_of(o), mesh, dtype,
                   head_init(output_of(o), o.zero_head));
}

}  // namespace

Unetr::Rise::Rise(const UnetrOptions& o, int to, const Mesh& mesh, DType dtype) : level(to) {
  const std::int64_t out = channels(o, to);
  for (int l = o.levels; l > to; --l) {
    const std::int64_t in = l == o.levels ? o.channels : out;
    steps.emplace_back(
        nn::ConvLayerOptions{.dims = o.dims, .in = in, .out = out, .kernel = {2}, .stride = {2}},
        mesh, dtype);
    if (l < o.levels) blocks.emplace_back(out, out, residual_of(o), mesh, dtype);
  }
}

void Unetr::Rise::fields(nn::Fields& f) {
  f("steps", steps);
  f("blocks", blocks);
}

Tensor Unetr::Rise::operator()(const Tensor& tokens, const Dims& domain) const {
  const LayerScope scope(scope_name());
  Tensor y = tokens;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::int64_t stride = std::int64_t{1} << (level + static_cast<int>(steps.size() - 1 - i));
    Dims size = domain;
    for (std::int64_t& n : size) n = (n + stride - 1) / stride;
    y = steps[i].forward_to(y, size);
    if (i > 0) y = blocks[i - 1](y);
  }
  return y;
}

Unetr::Unetr(const UnetrOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      patch_embed_({.dims = options.dims,
                    .in = seen_channels(options),
                    .out = options.channels,
                    .patch = {std::int64_t{1} << options.levels}},
                   mesh,
                   dtype),
      norm_({.channels = options.channels, .eps = block_of(options).eps}, mesh, dtype),
      input_conv_(
          same_conv(seen_channels(options), options.base, residual_of(options), mesh, dtype)),
      input_block_(options.base, options.base, residual_of(options), mesh, dtype),
      head_norm_(norm_with_activation(options.base, residual_of(options), mesh, dtype)),
      head_(head_conv(options, mesh, dtype)) {
  for (int b = 0; b < options.depth; ++b) blocks_.emplace_back(block_of(options), mesh, dtype);
  for (int l = options.levels - 1; l > 0; --l) rises_.emplace_back(options, l, mesh, dtype);
  for (int l = options.levels - 1; l >= 0; --l) {
    up_.emplace_back(channels(options, l + 1), channels(options, l), AscentKind::kTransposed, 1,
                     residual_of(options), mesh, dtype);
  }
  if (options.detail_scale > 0.0) detail_filter_ = detail_filter(options.dims, mesh, dtype);
  nn::initialize(*this, options.seed);
}

void Unetr::fields(nn::Fields& f) {
  f("patch_embed", patch_embed_);
  f("blocks", blocks_);
  f("norm", norm_);
  f("input_conv", input_conv_);
  f("input_block", input_block_);
  f("rises", rises_);
  f("up", up_);
  f("head_norm", head_norm_);
  f("head", head_);
}

Tensor Unetr::seen(const Tensor& x) const {
  const UnetrOptions& o = options_;
  return o.detail_scale > 0.0 ? with_details(x, detail_filter_, o.detail_scale, o.edges) : x;
}

bool Unetr::branches(int blocks) const {
  for (int k = 1; k < options_.levels; ++k)
    if (blocks == options_.depth * k / options_.levels) return true;
  return false;
}

Tensor Unetr::ascend(std::size_t i, const Tensor& y, const Tensor& tokens, const Tensor& x) const {
  Dims domain;
  for (int d = 1; d <= options_.dims; ++d) domain.push_back(x.size(d));
  return up_[i](y, rises_[i](tokens, domain));
}

Tensor Unetr::finest(const Tensor& y, const Tensor& x) const {
  return up_.back()(y, input_block_(input_conv_(seen(x))));
}

Tensor Unetr::head(const Tensor& y, const Tensor& x) const {
  const UnetrOptions& o = options_;
  Tensor out = cast(head_(head_norm_ ? (*head_norm_)(y) : y), x.dtype());
  if (o.upscale > 1) out = pixel_shuffle(out, o.upscale);
  // Patches that straddle parts have moved boundaries: back to those of the input.
  out = redistribute(out, nn::domain_layout(x.layout(), x.size(0), out.size(-1), o.upscale));
  if (o.detail_scale > 0.0) out = out * o.detail_scale;
  return finish_field(std::move(out), x, output_of(o), o.edges);
}

Tensor Unetr::forward(const Tensor& x) const {
  check_field_input("unetr", x, options_.dims, options_.in_channels);
  std::vector<Tensor> skips;
  Tensor y = patch_embed_(seen(x));
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    y = blocks_[b](y);
    if (branches(static_cast<int>(b) + 1)) skips.push_back(y);
  }
  y = norm_(y);
  for (std::size_t i = 0; i < rises_.size(); ++i) {
    y = ascend(i, y, skips.back(), x);
    skips.pop_back();
  }
  return head(finest(y, x), x);
}

std::vector<nn::PipelineBlock> Unetr::pipeline_blocks() {
  // Tensors between blocks: the activation, the input, the tokens that wait, finest level first.
  using Tensors = std::vector<Tensor>;
  std::vector<nn::PipelineBlock> list;
  list.push_back({{&patch_embed_}, [this](std::span<const Tensor> in) {
                    const LayerScope scope(scope_name());
                    check_field_input("unetr", in[0], options_.dims, options_.in_channels);
                    return Tensors{patch_embed_(seen(in[0])), in[0]};
                  }});
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (!branches(static_cast<int>(b) + 1)) {
      list.push_back(nn::pipeline_block(blocks_[b]));
      continue;
    }
    list.push_back({{&blocks_[b]}, [this, b](std::span<const Tensor> in) {
                      Tensors out(in.begin(), in.end());
                      out[0] = blocks_[b](in[0]);
                      out.push_back(out[0]);
                      return out;
                    }});
  }
  list.push_back(nn::pipeline_block(norm_));
  for (std::size_t i = 0; i < rises_.size(); ++i) {
    list.push_back({{&rises_[i], &up_[i]}, [this, i](std::span<const Tensor> in) {
                      Tensors out(in.begin(), in.end() - 1);
                      out[0] = ascend(i, in[0], in.back(), in[1]);
                      return out;
                    }});
  }
  list.push_back(
      {{&input_conv_, &input_block_, &up_.back(), &head_}, [this](std::span<const Tensor> in) {
         const LayerScope scope(scope_name());
         return Tensors{head(finest(in[0], in[1]), in[1])};
       }});
  if (head_norm_) list.back().modules.push_back(&*head_norm_);
  return list;
}

void Unetr::set_edges(const std::vector<EdgeRule>& edges) {
  for (const auto& [path, module] : named_modules()) {
    if (auto* const layer = dynamic_cast<nn::Conv*>(module)) layer->set_edges(edges);
    if (auto* const layer = dynamic_cast<nn::MultiHeadAttention*>(module)) layer->set_edges(edges);
  }
  options_.edges = edges;
}

std::string Unetr::describe() const {
  const UnetrOptions& o = options_;
  return fmt::format("Unetr {}-D, {} -> {} channels, {} blocks of {} channels, {} heads, {} levels",
                     o.dims, o.in_channels, o.out_channels, o.depth, o.channels, o.heads, o.levels);
}

}  // namespace tessera::models
