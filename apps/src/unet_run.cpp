#include "unet_run.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>
#include <tessera/autograd/autograd.hpp>
#include <tessera/nn/checkpoint.hpp>

namespace tessera::app {
namespace {

constexpr const char* kKind = "tessera.model";
constexpr const char* kUNet = "unet";

std::string text_of(const io::SafetensorsReader& reader, const std::string& key) {
  const auto it = reader.metadata().find(key);
  if (it == reader.metadata().end()) {
    throw DataError(str("model: ", reader.path(), " does not say \"", key,
                        "\" (it was not written by a training). Give the directory of a run."));
  }
  return it->second;
}

double number_of(const io::SafetensorsReader& reader, const std::string& key) {
  const std::string text = text_of(reader, key);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw DataError(str("model: ", reader.path(), " has \"", text, "\" for ", key, "."));
  }
  return value;
}

}  // namespace

data::SuperResolution open_data(const UNetSettings& settings,
                                const Mesh& mesh,
                                const std::optional<data::Normalization>& normalization) {
  data::SuperResolutionOptions o;
  o.field = {.path = settings.file, .variable = settings.variable, .periodic = settings.periodic};
  if (!settings.holdout.empty()) {
    if (settings.holdout.size() != 2) {
      throw UsageError(str("data.holdout: ", settings.holdout.size(),
                           " numbers. Give two, from and to, e.g. 0,60."));
    }
    o.holdout_lo = settings.holdout[0];
    o.holdout_hi = settings.holdout[1];
  }
  o.factor = settings.factor;
  // The ranks agree that the file is usable before any of them relies on it.
  nn::collective(mesh).together(
      [&] { o.crop = Dims::filled(data::GridField(o.field).dims(), settings.crop); });
  o.seed = settings.seed;
  o.flips = settings.flips;
  o.coordinate_channels = settings.coordinates;
  o.normalization = normalization;
  return data::SuperResolution(o, nn::collective(mesh));
}

std::vector<EdgeRule> edges_of(const data::GridField& field) {
  std::vector<EdgeRule> edges;
  for (int d = 0; d < field.dims(); ++d) {
    edges.push_back(field.periodic(d) ? EdgeRule::kCircular : EdgeRule::kReplicate);
  }
  return edges;
}

std::vector<EdgeRule> edges_of_crops(const data::SuperResolution& data) {
  std::vector<EdgeRule> edges = edges_of(data.field());
  for (std::size_t d = 0; d < edges.size(); ++d) {
    const int dim = static_cast<int>(d);
    if (data.options().crop[dim] < data.field().shape()[dim]) edges[d] = EdgeRule::kReplicate;
  }
  return edges;
}

void save_unet(const std::string& path,
               models::UNet& model,
               const UNetSettings& settings,
               const io::Metadata& numbers) {
  UNetSettings copy = settings;
  io::Settings all;
  copy.declare(all);
  std::string edges;
  for (const EdgeRule edge : model.options().edges)
    edges += edge == EdgeRule::kCircular ? 'c' : 'r';
  io::Metadata metadata = {{kKind, kUNet},
                           {"config", all.toml()},
                           {"edges", edges},
                           {"in_channels", std::to_string(model.options().in_channels)},
                           {"out_channels", std::to_string(model.options().out_channels)}};
  metadata.insert(numbers.begin(), numbers.end());
  nn::save_weights(path, model, metadata);
}

TrainedUNet load_unet(const std::string& path, const Mesh& mesh) {
  UNetSettings settings;
  data::Normalization normalization;
  std::vector<data::ForecastScale> scales;
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::vector<EdgeRule> edges;
  nn::collective(mesh).together([&] {
    const io::SafetensorsReader reader(path);
    if (text_of(reader, kKind) != kUNet) {
      throw DataError(str("model: ", path, " does not hold a UNet."));
    }
    io::Settings all;
    settings.declare(all);
    all.load_text(text_of(reader, "config"), path);
    if (settings.forecasts()) {
      std::istringstream numbers(text_of(reader, "scales"));
      for (data::ForecastScale s; numbers >> s.mean >> s.std >> s.residual;) scales.push_back(s);
      in_channels = static_cast<std::int64_t>(number_of(reader, "in_channels"));
      out_channels = static_cast<std::int64_t>(number_of(reader, "out_channels"));
    } else {
      normalization.mean = number_of(reader, "mean");
      normalization.std = number_of(reader, "std");
      normalization.missing = text_of(reader, "missing") == "1";
    }
    for (const char c : text_of(reader, "edges")) {
      edges.push_back(c == 'c' ? EdgeRule::kCircular : EdgeRule::kReplicate);
    }
  });
  const int dims = static_cast<int>(edges.size());
  models::UNetOptions options = settings.model(dims, edges);
  if (settings.forecasts()) {
    options.in_channels = in_channels;
    options.out_channels = out_channels;
  }
  models::UNet model(options, mesh, settings.dtype());
  nn::load_weights(path, model);
  model.eval();
  return {std::move(settings), normalization, std::move(scales), std::move(model)};
}

Tensor predict(const models::UNet& model, const Tensor& input) {
  const NoGrad no_grad;
  return model(input);
}

}  // namespace tessera::app
