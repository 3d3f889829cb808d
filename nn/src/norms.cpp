#include <fmt/format.h>

#include <tessera/nn/norms.hpp>

namespace tessera::nn {
namespace {

const RowNormOptions& checked(const char* layer, const RowNormOptions& o) {
  if (o.channels <= 0)
    throw UsageError(str(layer, ": ", o.channels, " channels (must be positive). Set .channels."));
  return o;
}

Parameter vector_of(double value, const RowNormOptions& o, const Mesh& mesh, DType dtype) {
  if (!o.affine) return {};
  return Parameter({o.channels}, init::constant(value), mesh, dtype).exact();
}

}  // namespace

LayerNorm::LayerNorm(const RowNormOptions& options, const Mesh& mesh, DType dtype)
    : weight(vector_of(1.0, checked("LayerNorm", options), mesh, dtype)),
      bias(vector_of(0.0, options, mesh, dtype)),
      options_(options) {}

void LayerNorm::fields(Fields& f) {
  f("weight", weight);
  f("bias", bias);
}

Tensor LayerNorm::forward(const Tensor& x) const {
  return layer_norm(x, weight(), bias(), options_.eps);
}

std::string LayerNorm::describe() const { return fmt::format("LayerNorm {}", options_.channels); }

RmsNorm::RmsNorm(const RowNormOptions& options, const Mesh& mesh, DType dtype)
    : weight(vector_of(1.0, checked("RmsNorm", options), mesh, dtype)), options_(options) {}

void RmsNorm::fields(Fields& f) { f("weight", weight); }

Tensor RmsNorm::forward(const Tensor& x) const { return rms_norm(x, weight(), options_.eps); }

std::string RmsNorm::describe() const { return fmt::format("RmsNorm {}", options_.channels); }

}  // namespace tessera::nn
