#include "unet_settings.hpp"

#include <charconv>

#include "nodes.hpp"

namespace tessera::app {
namespace {

template <class T>
T choose(const char* option,
         const std::string& word,
         std::initializer_list<std::pair<const char*, T>> words) {
  std::string known;
  for (const auto& [name, value] : words) {
    if (word == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw UsageError(str(option, ": \"", word, "\" is unknown. Use one of ", known, "."));
}

}  // namespace

void UNetSettings::declare(io::Settings& s) {
  const io::Settings::Rule positive = {.min = 1};
  const io::Settings::Rule not_negative = {.min = 0};
  const io::Settings::Rule share = {.min = 0, .max = 1};
  s.add("data.task", task,
        "What is learnt: refine, a field from its block means; forecast, fields some frames later.",
        {.choices = {"refine", "forecast"}});
  s.add("data.file", file, "NetCDF file that holds the field.");
  s.add("data.variable", variable, "Refine: variable in the file; empty: the only field in it.");
  s.add("data.variables", variables,
        "Forecast: variables of one shape; empty: all with the time dimension.");
  s.add("data.time", time, "Forecast: name of the time dimension, capitals or not.");
  s.add("data.history", history, "Forecast: frames that are seen.", positive);
  s.add("data.lead", lead, "Forecast: frames from the last one seen to the one foretold.",
        positive);
  s.add(
      "data.season", season,
      "Forecast: frames of a cycle (12 months); inputs are then anomalies and the network corrects "
      "the damped anomaly. 0: no cycle; it corrects persistence.",
      not_negative);
  s.add("data.test", test,
        "Forecast: the last frames that training never aims at; of several samples, the last "
        "samples.",
        not_negative);
  s.add("data.factor", factor, "Refine: fine points per coarse point in each dimension.", positive);
  s.add("data.crop", crop, "Refine: fine points of a training crop in each dimension.", positive);
  s.add("data.holdout", holdout,
        "Refine: coordinates of the last dimension, from and to, that training never sees; empty: "
        "none.");
  s.add("data.periodic", periodic,
        "Periodic dimensions; a longitude around the globe is found without being named.");
  s.add("data.flips", flips, "Refine: mirror half of the crops along each dimension.");
  s.add("data.coordinates", coordinates, "Give the network the coordinates as further channels.");
  s.add("model.base", base, "Channels of the finest level.", positive);
  s.add("model.multipliers", multipliers,
        "Channels of each level in multiples of base; each level is half as fine.", positive);
  s.add("model.blocks", blocks, "Residual blocks per level, on the way down and up.", positive);
  s.add("model.norm_groups", norm_groups, "Groups of the group norms; 0: no norms.", not_negative);
  s.add("model.activation", activation, "Activation.",
        {.choices = {"none", "relu", "silu", "gelu"}});
  s.add("model.dropout", dropout, "Probability that a value is dropped.", share);
  s.add("model.down", down, "How a level gets coarser.", {.choices = {"conv", "max", "mean"}});
  s.add("model.up", up, "How a level gets finer.",
        {.choices = {"transposed", "linear", "nearest"}});
  s.add("model.kernel", kernel, "Taps of a convolution in each dimension; odd.", positive);
  s.add("model.input_skip", input_skip,
        "Refine: interpolation of the input that is added to the output.",
        {.choices = {"none", "nearest", "linear", "cubic"}});
  s.add("model.conserve_means", conserve_means,
        "Refine: keep the means over coarse points exactly.");
  s.add("model.detail_scale", detail_scale,
        "Refine: size of details relative to the normalised values; the network works in this "
        "unit. 0: no "
        "distinction.",
        not_negative);
  s.add("training.steps", steps, "Optimiser steps.", positive);
  s.add("training.batch", batch, "Crops per step, over the whole mesh.", positive);
  s.add("training.lr", lr, "Learning rate after the warm-up.", not_negative);
  s.add("training.final_lr", final_lr, "Learning rate at the end of the cosine.", not_negative);
  s.add("training.warmup", warmup, "Steps in which the learning rate rises.", not_negative);
  s.add("training.weight_decay", weight_decay,
        "AdamW's weight decay, on weights of two and more dimensions.", not_negative);
  s.add("training.clip", clip, "Largest norm of the gradient; 0: any.", not_negative);
  s.add("training.ema", ema, "Decay of the average of the weights that is kept; 0: none.", share);
  s.add("training.loss", loss, "What is minimised.", {.choices = {"mse", "l1", "huber"}});
  s.add("training.precision", precision, "Element type.", {.choices = {"f32", "f64"}});
  s.add("training.seed", seed, "Key of all random numbers.");
}

DType UNetSettings::dtype() const {
  return choose<DType>("precision", precision,
                       {{"f32", DType::kFloat32}, {"f64", DType::kFloat64}});
}

models::UNetOptions UNetSettings::model(int dims, const std::vector<EdgeRule>& edges) const {
  using O = models::UNetOptions;
  O o;
  o.dims = dims;
  o.in_channels = 1;
  if (coordinates) {
    for (const EdgeRule edge : edges) o.in_channels += edge != EdgeRule::kCircular ? 1 : 0;
  }
  o.base = base;
  o.multipliers = multipliers;
  o.blocks = static_cast<int>(blocks);
  o.norm_groups = norm_groups;
  o.activation = nn::parse_activation(activation);
  o.dropout = dropout;
  o.down = choose<O::Down>(
      "down", down,
      {{"conv", O::Down::kConv}, {"max", O::Down::kMaxPool}, {"mean", O::Down::kAvgPool}});
  o.up = choose<O::Up>("up", up,
                       {{"transposed", O::Up::kTransposed},
                        {"linear", O::Up::kLinear},
                        {"nearest", O::Up::kNearest}});
  o.kernel = kernel;
  o.edges = edges;
  o.upscale = factor;
  o.input_skip = choose<O::InputSkip>("input_skip", input_skip,
                                      {{"none", O::InputSkip::kNone},
                                       {"nearest", O::InputSkip::kNearest},
                                       {"linear", O::InputSkip::kLinear},
                                       {"cubic", O::InputSkip::kCubic}});
  o.conserve_means = conserve_means;
  o.detail_scale = detail_scale;
  o.seed = seed;
  if (forecasts()) {
    o.upscale = 1;
    o.input_skip = O::InputSkip::kNone;
    o.conserve_means = false;
    o.detail_scale = 0.0;
    o.zero_head = true;
  }
  return o;
}

std::vector<MeshAxis> parse_axes(const std::string& text) {
  std::vector<MeshAxis> axes;
  std::size_t from = 0;
  while (from <= text.size()) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string axis = text.substr(from, end - from);
    const std::size_t equals = axis.find('=');
    int size = 0;
    if (equals != std::string::npos) {
      const char* const last = axis.data() + axis.size();
      const auto [stop, error] = std::from_chars(axis.data() + equals + 1, last, size);
      if (error != std::errc() || stop != last) size = 0;
    }
    if (equals == 0 || size < 1) {
      throw UsageError(str("mesh: \"", text,
                           "\" is not a list of axes and sizes. Write for example h=2,w=2 or "
                           "data=2,h=2."));
    }
    axes.push_back({axis.substr(0, equals), size});
    from = end + 1;
  }
  return axes;
}

Mesh parse_mesh(const std::string& text) {
  return Mesh::of(processes_by_node(),
                  text.empty() ? std::vector<MeshAxis>{{"h", process().count}} : parse_axes(text));
}

Placement field_placement(const Mesh& mesh, int dims) {
  Placement placement(mesh);
  int next = 0;
  for (int a = 0; a < mesh.axis_count(); ++a) {
    if (mesh.axis_name(a) == "data") {
      placement = placement.batch("data");
    } else if (next < dims) {
      placement = placement.domain(next++, mesh.axis_name(a));
    } else {
      throw UsageError(str("mesh: ", mesh.str(), " has more axes than the field has dimensions (",
                           dims, "). Beside \"data\" give at most one axis per dimension."));
    }
  }
  return placement;
}

}  // namespace tessera::app
