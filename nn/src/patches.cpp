#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/patches.hpp>

namespace tessera::nn {
namespace {

ConvLayerOptions patch_conv(const PatchOptions& o) {
  return {.dims = o.dims,
          .in = o.in,
          .out = o.out,
          .kernel = o.patch,
          .stride = o.patch,
          .pad_lo = {0},
          .bias = o.bias,
          .weight_init = o.weight_init,
          .bias_init = o.bias_init};
}

/// The kernel of a convolution weight [., k..., .].
Dims kernel_of(const Parameter& weight) {
  const Shape& w = weight.shape();
  return Dims(std::span(w.begin() + 1, w.end() - 1));
}

}  // namespace

PatchEmbed::PatchEmbed(const PatchOptions& options, const Mesh& mesh, DType dtype)
    : proj(patch_conv(options), mesh, dtype), patch_(kernel_of(proj.weight)) {}

void PatchEmbed::fields(Fields& f) { f("proj", proj); }

Tensor PatchEmbed::forward(const Tensor& x) const {
  const int dims = patch_.size();
  if (x.dims() != dims + 2 || x.size(-1) != proj.weight.shape().back()) {
    throw ShapeError(str("patch_embed: input ", x.shape(), " does not fit ", dims,
                         " domain dimensions and ", proj.weight.shape().back(),
                         " channels (the order is [N, domain..., C]). Reshape it."));
  }
  Dims none = Dims::filled(x.dims(), 0);
  Dims lacking = none;
  for (int d = 0; d < dims; ++d)
    lacking[d + 1] = (patch_[d] - x.size(d + 1) % patch_[d]) % patch_[d];
  return proj(lacking == none ? x : pad(x, none, lacking));
}

std::string PatchEmbed::describe() const {
  return fmt::format("PatchEmbed {}", fmt::join(patch_, "x"));
}

PatchUnembed::PatchUnembed(const PatchOptions& options, const Mesh& mesh, DType dtype)
    : proj(patch_conv(options), mesh, dtype) {}

void PatchUnembed::fields(Fields& f) { f("proj", proj); }

Tensor PatchUnembed::forward(const Tensor& x) const { return proj(x); }

Tensor PatchUnembed::forward_to(const Tensor& x, const Layout& grid) const {
  const LayerScope scope(scope_name());
  Dims size;
  for (int d = 1; d + 1 < grid.dims(); ++d) size.push_back(grid.shape()[d]);
  const Tensor y = proj.forward_to(x, size);
  return redistribute(y, domain_layout(grid, y.size(0), y.size(-1)));
}

std::string PatchUnembed::describe() const {
  return fmt::format("PatchUnembed {}", fmt::join(kernel_of(proj.weight), "x"));
}

Layout domain_layout(const Layout& x,
                     std::int64_t samples,
                     std::int64_t channels,
                     std::int64_t factor) {
  Shape shape = x.shape();
  std::vector<DimSplit> splits(static_cast<std::size_t>(x.dims()));
  for (int d = 0; d + 1 < x.dims(); ++d) {
    if (d == 0 && shape[0] != samples) continue;
    DimSplit split = x.split(d);
    if (d > 0)
      for (std::int64_t& b : split.bounds) b *= factor;
    splits[static_cast<std::size_t>(d)] = std::move(split);
    if (d > 0) shape[d] *= factor;
  }
  shape[0] = samples;
  shape.back() = channels;
  return Layout::make(x.mesh(), shape, std::move(splits));
}

}  // namespace tessera::nn
