#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/swin.hpp>

namespace tessera::models {
namespace {

FieldOutput output_of(const SwinOptions& o) {
  return {.upscale = o.upscale, .input_skip = o.input_skip, .conserve_means = o.conserve_means};
}

const SwinOptions& checked(const SwinOptions& o) {
  if (o.dims < 1 || o.dims > 3)
    throw UsageError(str("swin: ", o.dims, " domain dimensions. Choose 1, 2 or 3."));
  if (o.depths.empty() || o.depths.size() > 16 || o.depths.size() != o.heads.size()) {
    throw UsageError(str("swin: ", o.depths.size(), " depths and ", o.heads.size(),
                         " numbers of heads (one of each per level, 1 to 16 levels). Give equally "
                         "many."));
  }
  if (o.mlp_ratio < 1 || o.up_depth < 1)
    throw UsageError(str("swin: mlp_ratio ", o.mlp_ratio, ", up_depth ", o.up_depth,
                         " (both must be at least 1). Use for example 4 and 2."));
  if (o.window.size() != 1 && o.window.size() != o.dims) {
    throw UsageError(str("swin: window ", o.window, " for ", o.dims,
                         " domain dimensions. Give one size per dimension, or one for all."));
  }
  check_field_output("swin", output_of(o), o.in_channels, o.out_channels);
  return o;
}

std::int64_t channels(const SwinOptions& o, std::size_t level) { return o.channels << level; }

/// Blocks of a level; every other one has windows shifted by half.
std::vector<nn::TransformerBlock> make_blocks(
    const SwinOptions& o, std::size_t level, int count, const Mesh& mesh, DType dtype) {
  const Dims window = o.window.size() == o.dims ? o.window : Dims::filled(o.dims, o.window[0]);
  Dims half = window;
  for (std::int64_t& w : half) w /= 2;
  std::vector<nn::TransformerBlock> blocks;
  for (int b = 0; b < count; ++b) {
    nn::TransformerBlockOptions block;
    block.attention = {.channels = channels(o, level),
                       .heads = o.heads[level],
                       .qk_norm = o.qk_norm,
                       .reach = {.kind = nn::AttentionReach::Kind::kWindow,
                                 .window = window,
                                 .shift = b % 2 == 1 ? half : Dims{},
                                 .relative_bias = true},
                       .edges = o.edges};
    block.mlp = {.hidden = o.mlp_ratio * channels(o, level), .dropout = o.dropout};
    block.dropout = o.dropout;
    blocks.emplace_back(block, mesh, dtype);
  }
  return blocks;
}

nn::PatchOptions head_of(const SwinOptions& o) {
  const nn::Init init = head_init(output_of(o), o.zero_head);
  nn::PatchOptions head{.dims = o.dims,
                        .in = o.channels,
                        .out = o.out_channels,
                        .patch = o.patch,
                        .weight_init = init,
                        .bias_init = init};
  for (std::int64_t& p : head.patch) p *= o.upscale;
  return head;
}

Tensor through(const std::vector<nn::TransformerBlock>& blocks, Tensor x) {
  for (const nn::TransformerBlock& block : blocks) x = block(x);
  return x;
}

}  // namespace

Swin::Descent::Descent(const SwinOptions& o, std::size_t level, const Mesh& mesh, DType dtype)
    : merge({.dims = o.dims,
             .in = channels(o, level - 1),
             .out = channels(o, level),
             .patch = {2},
             .bias = false},
            mesh,
            dtype),
      norm({.channels = channels(o, level)}, mesh, dtype),
      blocks(make_blocks(o, level, o.depths[level], mesh, dtype)) {}

void Swin::Descent::fields(nn::Fields& f) {
  f("merge", merge);
  f("norm", norm);
  f("blocks", blocks);
}

Tensor Swin::Descent::forward(const Tensor& x) const { return through(blocks, norm(merge(x))); }

Swin::Ascent::Ascent(const SwinOptions& o, std::size_t level, const Mesh& mesh, DType dtype)
    : expand(
          {.dims = o.dims, .in = channels(o, level + 1), .out = channels(o, level), .patch = {2}},
          mesh,
          dtype),
      join({.in = 2 * channels(o, level), .out = channels(o, level)}, mesh, dtype),
      blocks(make_blocks(o, level, o.up_depth, mesh, dtype)) {}

void Swin::Ascent::fields(nn::Fields& f) {
  f("expand", expand);
  f("join", join);
  f("blocks", blocks);
}

Tensor Swin::Ascent::operator()(const Tensor& x, const Tensor& skip) const {
  const LayerScope scope(scope_name());
  return through(blocks,
                 join(concat({cast(expand.forward_to(x, skip.layout()), skip.dtype()), skip}, -1)));
}

Swin::Swin(const SwinOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      patch_embed_({.dims = options.dims,
                    .in = options.in_channels * (options.detail_scale > 0.0 ? 2 : 1),
                    .out = options.channels,
                    .patch = options.patch},
                   mesh,
                   dtype),
      embed_norm_({.channels = options.channels}, mesh, dtype),
      blocks_(make_blocks(options, 0, options.depths[0], mesh, dtype)),
      norm_({.channels = options.channels}, mesh, dtype),
      head_(head_of(options), mesh, dtype) {
  const std::size_t levels = options.depths.size();
  for (std::size_t l = 1; l < levels; ++l) down_.emplace_back(options, l, mesh, dtype);
  for (std::size_t l = levels - 1; l > 0; --l) up_.emplace_back(options, l - 1, mesh, dtype);
  if (options.detail_scale > 0.0) detail_filter_ = detail_filter(options.dims, mesh, dtype);
  nn::initialize(*this, options.seed);
}

void Swin::fields(nn::Fields& f) {
  f("patch_embed", patch_embed_);
  f("embed_norm", embed_norm_);
  f("blocks", blocks_);
  f("down", down_);
  f("up", up_);
  f("norm", norm_);
  f("head", head_);
}

Tensor Swin::forward(const Tensor& x) const {
  const SwinOptions& o = options_;
  check_field_input("swin", x, o.dims, o.in_channels);
  Tensor y = patch_embed_(
      o.detail_scale > 0.0 ? with_details(x, detail_filter_, o.detail_scale, o.edges) : x);
  y = through(blocks_, embed_norm_(y));
  std::vector<Tensor> skips;
  for (const Descent& descent : down_) {
    skips.push_back(y);
    y = descent(y);
  }
  for (const Ascent& ascent : up_) {
    y = ascent(y, skips.back());
    skips.pop_back();
  }
  y = head_.forward_to(norm_(y), nn::domain_layout(x.layout(), x.size(0), 1, o.upscale));
  y = cast(y, x.dtype());
  if (o.detail_scale > 0.0) y = y * o.detail_scale;
  return finish_field(std::move(y), x, output_of(o), o.edges);
}

void Swin::set_edges(const std::vector<EdgeRule>& edges) {
  options_.edges = edges;
  for (const auto& [path, module] : named_modules()) {
    if (auto* const layer = dynamic_cast<nn::MultiHeadAttention*>(module)) layer->set_edges(edges);
  }
}

std::int64_t Swin::total_stride() const {
  std::int64_t stride = 1;
  for (const std::int64_t p : options_.patch) stride = std::lcm(stride, p);
  return stride << (options_.depths.size() - 1);
}

std::string Swin::describe() const {
  const SwinOptions& o = options_;
  return fmt::format("Swin {}-D, {} -> {} channels, levels of {} blocks, {} channels, windows {}",
                     o.dims, o.in_channels, o.out_channels, fmt::join(o.depths, ", "), o.channels,
                     fmt::join(o.window, "x"));
}

}  // namespace tessera::models
