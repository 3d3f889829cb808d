#include <cmath>
#include <numbers>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/nn/field_losses.hpp>

#include "conv_options.hpp"
#include "loss_support.hpp"

namespace tessera::nn {
namespace {

/// Fields, and what stretches to them, in one type.
struct Compared {
  Tensor p, t, weight;
  Dims domain;

  Compared(const char* op, const Tensor& prediction, const Tensor& target, const Tensor& w)
      : p(widened(prediction)), t(widened(target)) {
    check_alike(op, prediction, target);
    if (p.dims() < 2)
      throw ShapeError(str(op, ": ", p.shape(), " is not [N, domain..., C]. Reshape it."));
    weight = checked_weight(op, w, p.shape(), p.dtype());
    if (!weight.defined()) weight = Tensor::full(Layout::replicated(p.mesh(), {1}), 1.0, p.dtype());
    for (int d = 1; d + 1 < p.dims(); ++d) domain.push_back(d);
  }
  void check_no_channels(const char* op) const {
    if (weight.dims() > 0 && weight.size(-1) != 1 && p.size(-1) != 1) {
      throw ShapeError(
          str(op, ": weight ", weight.shape(),
              " has channels, but each channel is a score of its own. Give [..., 1]."));
    }
  }
};

}  // namespace

Tensor latitude_weights(std::span<const double> degrees, const Tensor& like, int dim) {
  const int d = wrap_dim("latitude_weights", dim, like.dims());
  if (like.size(d) != static_cast<std::int64_t>(degrees.size()) || degrees.empty()) {
    throw ShapeError(str("latitude_weights: ", degrees.size(), " latitudes for the ", like.size(d),
                         " rows of dimension ", d, " of ", like.shape(), ". Give one per row."));
  }
  const auto cosine = [&](std::int64_t row) {
    return std::cos(degrees[static_cast<std::size_t>(row)] * std::numbers::pi / 180.0);
  };
  double total = 0.0;
  for (std::size_t row = 0; row < degrees.size(); ++row)
    total += cosine(static_cast<std::int64_t>(row));
  const double scale = static_cast<double>(degrees.size()) / total;
  Shape shape;
  std::vector<DimSplit> splits(static_cast<std::size_t>(like.dims()));
  for (int e = 0; e < like.dims(); ++e) shape.push_back(e == d ? like.size(d) : 1);
  splits[static_cast<std::size_t>(d)] = like.layout().split(d);
  return Tensor::from_function(
      Layout::make(like.mesh(), shape, std::move(splits)),
      [&](const Index& i) { return cosine(i[d]) * scale; },
      like.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
}

Tensor weighted_mse_loss(const Tensor& prediction, const Tensor& target, const Tensor& weight) {
  const Compared f("weighted_mse_loss", prediction, target, weight);
  return weighted_mean(square(f.p - f.t), f.weight);
}

Tensor weighted_rmse(const Tensor& prediction, const Tensor& target, const Tensor& weight) {
  const Compared f("weighted_rmse", prediction, target, weight);
  f.check_no_channels("weighted_rmse");
  Dims all = f.domain;
  all.insert(0, 0);
  const double times =
      static_cast<double>(f.p.numel() / f.p.size(-1)) / static_cast<double>(f.weight.numel());
  const Tensor squares = reduced(sum(square(f.p - f.t) * f.weight, all));
  return sqrt(squares / (reduced(sum(f.weight)) * times));
}

Tensor anomaly_correlation(const Tensor& prediction,
                           const Tensor& target,
                           const Tensor& climatology,
                           const Tensor& weight) {
  const Compared f("anomaly_correlation", prediction, target, weight);
  f.check_no_channels("anomaly_correlation");
  const Tensor mean_state =
      checked_weight("anomaly_correlation", climatology, f.p.shape(), f.p.dtype());
  const Tensor a = f.p - mean_state;
  const Tensor b = f.t - mean_state;
  const auto total = [&](const Tensor& x) {
    return f.domain.empty() ? x * f.weight : reduced(sum(x * f.weight, f.domain));
  };
  const Tensor both = total(a * b);
  const Tensor correlation = both / sqrt(total(square(a)) * total(square(b)));
  return reduced(mean(correlation, {0}));
}

Tensor ssim_map(const Tensor& x, const Tensor& y, const SsimOptions& options) {
  check_alike("ssim", x, y);
  const int dims = x.dims() - 2;
  if (dims < 1 || dims > 3) {
    throw ShapeError(str("ssim: ", x.shape(),
                         " is not [N, domain..., C] with 1 to 3 domain dimensions. Reshape it."));
  }
  if (options.window < 1 || !(options.sigma > 0.0) || !(options.range > 0.0)) {
    throw UsageError(str("ssim: window ", options.window, ", sigma ", options.sigma, " and range ",
                         options.range, " must be positive."));
  }
  const std::vector<EdgeRule> edges = edges_per_dim("ssim", options.edges, dims);
  for (int d = 1; d <= dims && edges.empty(); ++d) {
    if (x.size(d) < options.window) {
      throw ShapeError(str("ssim: a window of ", options.window, " does not fit the domain of ",
                           x.shape(), ". Use a smaller one, or .edges."));
    }
  }
  const Tensor a = widened(x);
  const Tensor b = widened(y);
  const std::int64_t channels = a.size(-1);

  std::vector<double> gauss(static_cast<std::size_t>(options.window));
  double total = 0.0;
  for (std::int64_t k = 0; k < options.window; ++k) {
    const double at =
        (static_cast<double>(k) - 0.5 * static_cast<double>(options.window - 1)) / options.sigma;
    total += gauss[static_cast<std::size_t>(k)] = std::exp(-0.5 * at * at);
  }
  const auto smoothed = [&](Tensor t) {
    const std::int64_t width = t.size(-1);
    for (int d = 0; d < dims; ++d) {
      Shape shape = {width};
      for (int e = 0; e < dims; ++e) shape.push_back(e == d ? options.window : 1);
      shape.push_back(1);
      const Tensor weight = Tensor::from_function(
          Layout::replicated(t.mesh(), shape),
          [&](const Index& i) { return gauss[static_cast<std::size_t>(i[d + 1])] / total; },
          t.dtype());
      ConvOptions conv_options = {.groups = width};
      if (!edges.empty()) {
        conv_options.pad_lo = conv_options.pad_hi = Dims::filled(dims, 0);
        conv_options.pad_lo[d] = (options.window - 1) / 2;
        conv_options.pad_hi[d] = options.window - 1 - conv_options.pad_lo[d];
        conv_options.edges.assign(static_cast<std::size_t>(dims), EdgeRule::kZero);
        conv_options.edges[static_cast<std::size_t>(d)] = edges[static_cast<std::size_t>(d)];
      }
      t = conv(t, weight, {}, conv_options);
    }
    return t;
  };

  // Variances and covariances are the same of values less any constant.
  const Tensor middle = reduced(mean(b.detach()));
  const Tensor u = a - middle;
  const Tensor v = b - middle;
  std::vector<Tensor> moments = {u, v, square(u), square(v), u * v};
  if (!a.layout().is_split(dims + 1)) {
    // One exchange for all.
    moments = split(smoothed(concat(moments, -1)), Dims::filled(5, channels), -1);
  } else {
    for (Tensor& t : moments) t = smoothed(t);
  }
  const double c1 = std::pow(options.k1 * options.range, 2);
  const double c2 = std::pow(options.k2 * options.range, 2);
  const Tensor mean_x = moments[0] + middle;
  const Tensor mean_y = moments[1] + middle;
  const Tensor variances = moments[2] - square(moments[0]) + moments[3] - square(moments[1]);
  const Tensor covariance = moments[4] - moments[0] * moments[1];
  return affine(mean_x * mean_y, 2.0, c1) * affine(covariance, 2.0, c2) /
         ((square(mean_x) + square(mean_y) + c1) * (variances + c2));
}

Tensor ssim(const Tensor& x, const Tensor& y, const SsimOptions& options) {
  return reduced(mean(ssim_map(x, y, options)));
}

}  // namespace tessera::nn
