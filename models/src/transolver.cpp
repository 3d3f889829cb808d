#include <fmt/format.h>

#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/transolver.hpp>

namespace tessera::models {
namespace {

const TransolverOptions& checked(const TransolverOptions& o) {
  if (o.depth < 1 || o.mlp_ratio < 1) {
    throw UsageError(str("transolver: depth ", o.depth, ", mlp_ratio ", o.mlp_ratio,
                         " (both must be at least 1). Use for example 5 and 2."));
  }
  return o;
}

nn::LinearOptions head_of(const TransolverOptions& o) {
  const nn::Init init = o.zero_head ? nn::init::zeros() : nn::Init{};
  return {.in = o.channels, .out = o.out_channels, .weight_init = init, .bias_init = init};
}

}  // namespace

Transolver::Block::Block(const TransolverOptions& o, const Mesh& mesh, DType dtype)
    : norm1({.channels = o.channels}, mesh, dtype),
      attn({.channels = o.channels, .heads = o.heads, .slices = o.slices}, mesh, dtype),
      norm2({.channels = o.channels}, mesh, dtype),
      mlp({.channels = o.channels, .hidden = o.mlp_ratio * o.channels}, mesh, dtype),
      dropout(o.dropout) {}

void Transolver::Block::fields(nn::Fields& f) {
  f("norm1", norm1);
  f("attn", attn);
  f("norm2", norm2);
  f("mlp", mlp);
  f("dropout", dropout);
}

Tensor Transolver::Block::forward(const Tensor& x) const {
  const auto added = [](const Tensor& a, const Tensor& b) { return a + cast(b, a.dtype()); };
  const Tensor y = added(x, dropout(attn(norm1(x))));
  return added(y, dropout(mlp(norm2(y))));
}

Transolver::Transolver(const TransolverOptions& options, const Mesh& mesh, DType dtype)
    : options_(checked(options)),
      embed_({.channels = options.in_channels,
              .hidden = 2 * options.channels,
              .out = options.channels},
             mesh,
             dtype),
      norm_({.channels = options.channels}, mesh, dtype),
      head_(head_of(options), mesh, dtype) {
  for (int b = 0; b < options.depth; ++b) blocks_.emplace_back(options, mesh, dtype);
  nn::initialize(*this, options.seed);
}

void Transolver::fields(nn::Fields& f) {
  f("embed", embed_);
  f("blocks", blocks_);
  f("norm", norm_);
  f("head", head_);
}

Tensor Transolver::forward(const Tensor& x) const {
  if (x.dims() != 3 || x.size(-1) != options_.in_channels) {
    throw ShapeError(str("transolver: input ", x.shape(), " is not [N, points, ",
                         options_.in_channels, "]. Reshape it, or change .in_channels."));
  }
  Tensor y = embed_(x);
  for (const Block& block : blocks_) y = block(y);
  return cast(head_(norm_(y)), x.dtype());
}

std::string Transolver::describe() const {
  return fmt::format("Transolver {} -> {} channels, {} blocks of {}, {} slices",
                     options_.in_channels, options_.out_channels, options_.depth, options_.channels,
                     options_.slices);
}

}  // namespace tessera::models
