#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/fields.hpp>

namespace tessera::models {
namespace {

InterpolateMode mode_of(InputSkip skip) {
  switch (skip) {
    case InputSkip::kLinear:
      return InterpolateMode::kLinear;
    case InputSkip::kCubic:
      return InterpolateMode::kCubic;
    case InputSkip::kNearest:
    case InputSkip::kNone:
      break;
  }
  return InterpolateMode::kNearest;
}

}  // namespace

Tensor finish_field(Tensor y,
                    const Tensor& x,
                    const FieldOutput& o,
                    const std::vector<EdgeRule>& edges) {
  if (o.input_skip == InputSkip::kNone && !o.conserve_means) return y;
  const Tensor base = x.size(-1) == y.size(-1) ? x : slice(x, -1, 0, y.size(-1));
  if (o.input_skip != InputSkip::kNone) {
    y = y + nn::upsample(base, o.upscale, mode_of(o.input_skip), edges);
  }
  if (!o.conserve_means) return y;
  const Tensor means =
      o.upscale == 1 ? y : avg_pool(y, {.kernel = Dims::filled(x.dims() - 2, o.upscale)});
  return y + nn::upsample(base - means, o.upscale, InterpolateMode::kNearest);
}

Tensor carried_input(const Tensor& x, const FieldOutput& o) {
  const bool added = o.input_skip != InputSkip::kNone || o.conserve_means;
  return added ? x : slice(x, -1, 0, 0);
}

Tensor with_details(const Tensor& x,
                    const Tensor& filter,
                    double scale,
                    const std::vector<EdgeRule>& edges) {
  const Dims one = Dims::filled(x.dims() - 2, 1);
  const std::int64_t count = x.size(-1);
  std::vector<Tensor> channels;
  for (std::int64_t c = 0; c < count; ++c) {
    const Tensor channel = count == 1 ? x : slice(x, -1, c, c + 1);
    channels.push_back(conv(channel, filter, {}, {.pad_lo = one, .edges = edges}) / scale);
  }
  channels.push_back(x);
  return concat(channels, -1);
}

Tensor detail_filter(int dims, const Mesh& mesh, DType dtype) {
  Shape shape = {1};
  for (int d = 0; d < dims; ++d) shape.push_back(3);
  shape.push_back(1);
  const double share = 1.0 / static_cast<double>(shape.product());
  return Tensor::from_function(
      Layout::replicated(mesh, shape),
      [&](const Index& i) {
        bool centre = true;
        for (int d = 1; d <= dims; ++d) centre = centre && i[d] == 1;
        return (centre ? 1.0 : 0.0) - share;
      },
      dtype);
}

nn::Init head_init(const FieldOutput& o, bool zero_head) {
  const bool correction = o.input_skip != InputSkip::kNone || zero_head;
  return correction ? nn::init::zeros() : nn::Init{};
}

void check_field_input(const char* model, const Tensor& x, int dims, std::int64_t in_channels) {
  if (x.dims() == dims + 2 && x.size(-1) == in_channels) return;
  throw ShapeError(str(model, ": input ", x.shape(), " does not fit ", dims,
                       " domain dimensions and ", in_channels,
                       " channels (the order is [N, domain..., C]). Reshape the input, or change "
                       "the options."));
}

void check_field_output(const char* model,
                        const FieldOutput& o,
                        std::int64_t in_channels,
                        std::int64_t out_channels) {
  if (o.upscale < 1)
    throw UsageError(str(model, ": upscale ", o.upscale, " (must be at least 1)."));
  const bool adds_input = o.input_skip != InputSkip::kNone || o.conserve_means;
  if (adds_input && in_channels < out_channels) {
    throw UsageError(str(model, ": ", in_channels, " input channels cannot be added to ",
                         out_channels,
                         " output channels. Leave out input_skip and conserve_means, or give at "
                         "least as many input channels."));
  }
}

}  // namespace tessera::models
