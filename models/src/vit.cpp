#include <fmt/format.h>

#include <numeric>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/vit.hpp>

namespace tessera::models {
namespace {

using Positions = ViTOptions::Positions;

FieldOutput output_of(const ViTOptions& o) {
  return {.upscale = o.upscale, .input_skip = o.input_skip, .conserve_means = o.conserve_means};
}

const ViTOptions& checked(const ViTOptions& o) {
  if (o.dims < 1 || o.dims > 3)
    throw UsageError(str("vit: ", o.dims, " domain dimensions. Choose 1, 2 or 3."));
  if (o.depth < 1 || o.mlp_ratio < 1 || o.classes < 0) {
    throw UsageError(str("vit: depth ", o.depth, ", mlp_ratio ", o.mlp_ratio, ", classes ",
                         o.classes, " (at least 1, 1 and 0). Use for example 12, 4 and 0."));
  }
  if (o.classes > 0 && (o.upscale != 1 || o.input_skip != InputSkip::kNone || o.conserve_means)) {
    throw UsageError(
        "vit: upscale, input_skip and conserve_means are for fields (classes are asked for). Leave "
        "them out, or set classes = 0.");
  }
  if (o.positions == Positions::kLearned && o.grid.size() != o.dims) {
    throw UsageError(str("vit: a grid ", o.grid, " of learned positions for ", o.dims,
                         " domain dimensions. Set .grid to the tokens per dimension in training."));
  }
  check_field_output("vit", output_of(o), o.in_channels, o.out_channels);
  return o;
}

RotaryOptions waves_of(const ViTOptions& o) {
  return {.base = o.wave_base, .circular = nn::circular_flags(o.edges)};
}

std::unique_ptr<nn::Layer> make_positions(const ViTOptions& o, const Mesh& mesh, DType dtype) {
  if (o.positions == Positions::kLearned) {
    return std::make_unique<nn::LearnedPositions>(
        nn::LearnedPositionsOptions{.grid = o.grid, .channels = o.channels}, mesh, dtype);
  }
  if (o.positions == Positions::kSinusoidal)
    return std::make_unique<nn::SinusoidalPositions>(waves_of(o));
  return nullptr;
}

nn::TransformerBlockOptions block_of(const ViTOptions& o) {
  nn::TransformerBlockOptions block;
  block.attention = {.channels = o.channels,
                     .heads = o.heads,
                     .key_heads = o.key_heads,
                     .qk_norm = o.qk_norm,
                     .dropout = o.attention_dropout};
  if (o.positions == Positions::kRotary) block.attention.rotary = waves_of(o);
  block.mlp = {.hidden = o.mlp_ratio * o.channels,
               .activation = o.gated_mlp ? Activation::kSilu : Activation::kGelu,
               .gated = o.gated_mlp,
               .dropout = o.dropout};
  block.dropout = o.dropout;
  block.eps = o.norm_eps;
  return block;
}

nn::PatchOptions head_of(const ViTOptions& o) {
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

}  // namespace

ViTOptions ViTOptions::preset(std::string_view size) {
  struct Preset {
    const char* name;
    const char* letter;
    std::int64_t channels;
    int depth;
    std::int64_t heads;
  };
  static constexpr Preset kPresets[] = {{"small", "S", 384, 12, 6},
                                        {"base", "B", 768, 12, 12},
                                        {"large", "L", 1024, 24, 16},
                                        {"huge", "H", 1280, 32, 16}};
  for (const Preset& p : kPresets) {
    if (size != p.name && size != p.letter) continue;
    ViTOptions options;
    options.channels = p.channels;
    options.depth = p.depth;
    options.heads = p.heads;
    return options;
  }
  throw UsageError(str("vit: size \"", size, "\" is unknown. Use small, base, large or huge."));
}

ViT::ViT(const ViTOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      patch_embed_({.dims = options.dims,
                    .in = options.in_channels * (options.detail_scale > 0.0 ? 2 : 1),
                    .out = options.channels,
                    .patch = options.patch},
                   mesh,
                   dtype),
      positions_(make_positions(options, mesh, dtype)),
      norm_({.channels = options.channels, .eps = options.norm_eps}, mesh, dtype) {
  for (int b = 0; b < options.depth; ++b) blocks_.emplace_back(block_of(options), mesh, dtype);
  if (options.classes > 0) {
    class_head_.emplace(nn::LinearOptions{.in = options.channels, .out = options.classes}, mesh,
                        dtype);
  } else {
    field_head_.emplace(head_of(options), mesh, dtype);
  }
  if (options.detail_scale > 0.0) detail_filter_ = detail_filter(options.dims, mesh, dtype);
  nn::initialize(*this, options.seed);
}

void ViT::fields(nn::Fields& f) {
  f("patch_embed", patch_embed_);
  f("positions", positions_);
  f("blocks", blocks_);
  f("norm", norm_);
  f("field_head", field_head_);
  f("class_head", class_head_);
}

Tensor ViT::tokens(const Tensor& x) const {
  const ViTOptions& o = options_;
  check_field_input("vit", x, o.dims, o.in_channels);
  const Tensor y = patch_embed_(
      o.detail_scale > 0.0 ? with_details(x, detail_filter_, o.detail_scale, o.edges) : x);
  return positions_ ? (*positions_)(y) : y;
}

Tensor ViT::head(const Tensor& tokens, const Tensor& x) const {
  const ViTOptions& o = options_;
  if (class_head_) {
    Dims domain;
    for (int d = 1; d <= o.dims; ++d) domain.push_back(d);
    return cast((*class_head_)(norm_(mean(tokens, domain))), x.dtype());
  }
  Tensor y = field_head_->forward_to(norm_(tokens),
                                     nn::domain_layout(x.layout(), x.size(0), 1, o.upscale));
  y = cast(y, x.dtype());
  if (o.detail_scale > 0.0) y = y * o.detail_scale;
  return finish_field(std::move(y), x, output_of(o), o.edges);
}

Tensor ViT::forward(const Tensor& x) const {
  Tensor y = tokens(x);
  for (const nn::TransformerBlock& block : blocks_) y = block(y);
  return head(y, x);
}

std::vector<nn::PipelineBlock> ViT::pipeline_blocks() {
  using Tensors = std::vector<Tensor>;
  std::vector<nn::PipelineBlock> list;
  list.push_back({{&patch_embed_}, [this](std::span<const Tensor> in) {
                    const LayerScope scope(scope_name());
                    return Tensors{tokens(in[0]), carried_input(in[0], output_of(options_))};
                  }});
  if (positions_) list.back().modules.push_back(positions_.get());
  for (nn::TransformerBlock& block : blocks_) list.push_back(nn::pipeline_block(block));
  list.push_back({{&norm_}, [this](std::span<const Tensor> in) {
                    const LayerScope scope(scope_name());
                    return Tensors{head(in[0], in[1])};
                  }});
  if (class_head_) list.back().modules.push_back(&*class_head_);
  if (field_head_) list.back().modules.push_back(&*field_head_);
  return list;
}

void ViT::set_edges(const std::vector<EdgeRule>& edges) {
  options_.edges = edges;
  for (const auto& [path, module] : named_modules()) {
    if (auto* const layer = dynamic_cast<nn::MultiHeadAttention*>(module)) layer->set_edges(edges);
    if (auto* const layer = dynamic_cast<nn::SinusoidalPositions*>(module)) layer->set_edges(edges);
  }
}

std::int64_t ViT::total_stride() const {
  std::int64_t stride = 1;
  for (const std::int64_t p : options_.patch) stride = std::lcm(stride, p);
  return stride;
}

std::string ViT::describe() const {
  const ViTOptions& o = options_;
  return fmt::format("ViT {}-D, {} -> {}, {} blocks of {} channels, {} heads", o.dims,
                     o.in_channels, o.classes > 0 ? o.classes : o.out_channels, o.depth, o.channels,
                     o.heads);
}

}  // namespace tessera::models
