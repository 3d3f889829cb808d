#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/encodings.hpp>
#include <tessera/nn/patches.hpp>

namespace tessera::nn {
namespace {

Dims domain_of(const Tensor& x) {
  Dims size;
  for (int d = 1; d + 1 < x.dims(); ++d) size.push_back(x.size(d));
  return size;
}

Shape weight_shape(const LearnedPositionsOptions& o) {
  Shape shape = o.grid;
  shape.push_back(o.channels);
  for (const std::int64_t n : shape) {
    if (n <= 0 || shape.size() < 2 || shape.size() > 4) {
      throw UsageError(str("LearnedPositions: a grid ", o.grid, " with ", o.channels,
                           " channels (1 to 3 positive sizes and positive channels are needed). "
                           "Set .grid and .channels."));
    }
  }
  return shape;
}

}  // namespace

LearnedPositions::LearnedPositions(const LearnedPositionsOptions& options,
                                   const Mesh& mesh,
                                   DType dtype)
    : weight(weight_shape(options), options.init, mesh, dtype), mode_(options.mode) {}

void LearnedPositions::fields(Fields& f) { f("weight", weight); }

Tensor LearnedPositions::forward(const Tensor& x) const {
  const Shape& w = weight.shape();
  if (x.dims() != w.size() + 1 || x.size(-1) != w.back()) {
    throw ShapeError(str("positions: tokens ", x.shape(), " do not fit the learned ", w,
                         " (the order is [N, domain..., C]). Reshape them."));
  }
  const Dims size = domain_of(x);
  if (Dims(std::span(w.begin(), w.end() - 1)) == size) return x + weight();
  Shape one = w;
  one.insert(0, 1);
  const Layout like = domain_layout(x.layout(), 1, w.back());
  return x + interpolate(reshape(weight(), one), size, {.mode = mode_, .like = like});
}

std::string LearnedPositions::describe() const {
  const Shape& w = weight.shape();
  return fmt::format("LearnedPositions {}", fmt::join(w, "x"));
}

Tensor SinusoidalPositions::forward(const Tensor& x) const {
  const Layout layout = domain_layout(x.layout(), 1, x.size(-1));
  if (!latest_.defined() || !(latest_.layout() == layout) || latest_.dtype() != x.dtype()) {
    const std::int64_t half = x.size(-1) / 2;
    const std::vector<PositionWave> waves = position_waves(domain_of(x), half, options_);
    latest_ = Tensor::from_function(
        layout,
        [&](const Index& i) {
          const std::int64_t c = i.back();
          if (c >= 2 * half) return 0.0;
          const PositionWave& wave = waves[static_cast<std::size_t>(c % half)];
          const double angle = wave.step * static_cast<double>(i[1 + wave.dim]);
          return c < half ? std::sin(angle) : std::cos(angle);
        },
        x.dtype());
  }
  return x + latest_;
}

void SinusoidalPositions::set_edges(const std::vector<EdgeRule>& edges) {
  options_.circular = circular_flags(edges);
  latest_ = {};
}

std::vector<bool> circular_flags(const std::vector<EdgeRule>& edges) {
  std::vector<bool> flags;
  flags.reserve(edges.size());
  for (const EdgeRule edge : edges) flags.push_back(edge == EdgeRule::kCircular);
  return flags;
}

}  // namespace tessera::nn
