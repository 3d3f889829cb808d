#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/forecaster.hpp>

namespace tessera::models {
namespace {

constexpr double kWaveBase = 100.0;

FieldOutput output_of(const ForecasterOptions& o) {
  return {.input_skip = o.predict_change ? InputSkip::kNearest : InputSkip::kNone};
}

const ForecasterOptions& checked(const ForecasterOptions& o) {
  if (o.dims < 1 || o.dims > 3)
    throw UsageError(str("forecaster: ", o.dims, " domain dimensions. Choose 1, 2 or 3."));
  if (o.depth < 1 || o.mlp_ratio < 1 || o.condition_features < 0 || o.dilations.empty()) {
    throw UsageError(str("forecaster: depth ", o.depth, ", mlp_ratio ", o.mlp_ratio,
                         ", condition_features ", o.condition_features, ", ", o.dilations.size(),
                         " dilations (at least 1, 1, 0 and 1). Use for example 8, 4, 0 and {1}."));
  }
  if (o.window.size() != 1 && o.window.size() != o.dims) {
    throw UsageError(str("forecaster: window ", o.window, " for ", o.dims,
                         " domain dimensions. Give one size per dimension, or one for all."));
  }
  check_field_output("forecaster", output_of(o), o.in_channels, o.out_channels);
  return o;
}

nn::TransformerBlockOptions block_of(const ForecasterOptions& o, int b) {
  const auto turn = static_cast<std::size_t>(b) % o.dilations.size();
  nn::TransformerBlockOptions block;
  block.attention = {
      .channels = o.channels,
      .heads = o.heads,
      .qk_norm = o.qk_norm,
      .reach = {.kind = nn::AttentionReach::Kind::kNeighborhood,
                .window = o.window.size() == o.dims ? o.window : Dims::filled(o.dims, o.window[0]),
                .dilation = {o.dilations[turn]},
                .relative_bias = true},
      .edges = o.edges};
  block.mlp = {.hidden = o.mlp_ratio * o.channels, .dropout = o.dropout};
  block.dropout = o.dropout;
  block.condition_channels = o.condition_features > 0 ? o.channels : 0;
  return block;
}

nn::PatchOptions head_of(const ForecasterOptions& o) {
  const nn::Init init = o.predict_change || o.zero_head ? nn::init::zeros() : nn::Init{};
  return {.dims = o.dims,
          .in = o.channels,
          .out = o.out_channels,
          .patch = o.patch,
          .weight_init = init,
          .bias_init = init};
}

}  // namespace

Forecaster::Forecaster(const ForecasterOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      patch_embed_({.dims = options.dims,
                    .in = options.in_channels,
                    .out = options.channels,
                    .patch = options.patch},
                   mesh,
                   dtype),
      positions_({.base = kWaveBase, .circular = nn::circular_flags(options.edges)}),
      norm_({.channels = options.channels}, mesh, dtype),
      head_(head_of(options), mesh, dtype) {
  for (int b = 0; b < options.depth; ++b) blocks_.emplace_back(block_of(options, b), mesh, dtype);
  if (options.condition_features > 0) {
    condition_.emplace(nn::MlpOptions{.channels = options.condition_features,
                                      .hidden = options.channels,
                                      .out = options.channels,
                                      .activation = Activation::kSilu},
                       mesh, dtype);
  }
  nn::initialize(*this, options.seed);
}

void Forecaster::fields(nn::Fields& f) {
  f("patch_embed", patch_embed_);
  f("positions", positions_);
  f("condition", condition_);
  f("blocks", blocks_);
  f("norm", norm_);
  f("head", head_);
}

Tensor Forecaster::forward(const Tensor& x) const {
  if (!condition_) return forward(x, {});
  const Shape shape = {x.dims() > 0 ? x.size(0) : 1, options_.condition_features};
  return forward(x, Tensor::zeros(Layout::replicated(x.mesh(), shape), x.dtype()));
}

Tensor Forecaster::forward(const Tensor& x, const Tensor& condition) const {
  const ForecasterOptions& o = options_;
  check_field_input("forecaster", x, o.dims, o.in_channels);
  const Shape wanted = {x.size(0), o.condition_features};
  if (condition.defined() != condition_.has_value() ||
      (condition_ && !(condition.shape() == wanted))) {
    throw ShapeError(
        str("forecaster: ",
            condition.defined() ? str("a condition ", condition.shape()) : "no condition",
            " where ", condition_ ? str(wanted, " is needed") : "the model has none",
            ". Change it, or .condition_features."));
  }
  const LayerScope scope(scope_name());
  // Every block's modulation reads the same activation of the embedded condition.
  const Tensor embedded = condition_ ? silu((*condition_)(condition)) : Tensor();
  Tensor y = positions_(patch_embed_(x));
  for (const nn::TransformerBlock& block : blocks_)
    y = condition_ ? block.forward(y, embedded) : block(y);
  y = cast(head_.forward_to(norm_(y), x.layout()), x.dtype());
  return finish_field(std::move(y), x, output_of(o), o.edges);
}

void Forecaster::set_edges(const std::vector<EdgeRule>& edges) {
  options_.edges = edges;
  positions_.set_edges(edges);
  for (const auto& [path, module] : named_modules()) {
    if (auto* const layer = dynamic_cast<nn::MultiHeadAttention*>(module)) layer->set_edges(edges);
  }
}

std::int64_t Forecaster::total_stride() const {
  std::int64_t stride = 1;
  for (const std::int64_t p : options_.patch) stride = std::lcm(stride, p);
  return stride;
}

std::string Forecaster::describe() const {
  const ForecasterOptions& o = options_;
  return fmt::format("Forecaster {}-D, {} -> {} channels, {} blocks of {}, neighbourhoods {}",
                     o.dims, o.in_channels, o.out_channels, o.depth, o.channels,
                     fmt::join(o.window, "x"));
}

}  // namespace tessera::models
