#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <tessera/core/box.hpp>
#include <tessera/core/error.hpp>
#include <tessera/models/fields.hpp>
#include <tessera/nn/io/settings.hpp>
#include <tessera/nn/layers.hpp>
#include <utility>
#include <vector>

namespace tessera::app {

/// What a task asks of a model: [N, domain..., in_channels] -> [N, upscale * domain...,
/// out_channels]. The members have the names and meanings of those in the options of the models.
struct Transform {
  int dims = 2;
  std::int64_t in_channels = 1;
  std::int64_t out_channels = 1;
  std::vector<EdgeRule> edges = {};  ///< beyond the domain, one per dimension
  std::int64_t upscale = 1;
  models::InputSkip input_skip = models::InputSkip::kNone;
  bool conserve_means = false;
  double detail_scale = 0.0;
  bool zero_head = false;  ///< the output is a correction
  std::uint64_t seed = 0;

  /// Input channels that are the same at every point of a sample: a season, say.
  Interval constants = {};

  /// Sets these members of a model's options.
  template <class Options>
  void set(Options& o) const {
    set_plain(o);
    o.upscale = upscale;
    o.input_skip = input_skip;
    o.conserve_means = conserve_means;
    o.detail_scale = detail_scale;
  }
  /// Those of a model that does not refine.
  template <class Options>
  void set_plain(Options& o) const {
    o.dims = dims;
    o.in_channels = in_channels;
    o.out_channels = out_channels;
    o.edges = edges;
    o.zero_head = zero_head;
    o.seed = seed;
  }
};

/// A network, whatever its architecture.
class Network {
 public:
  virtual ~Network() = default;
  virtual nn::Layer& layer() = 0;
  /// In which multiples the boundaries of parts should lie.
  virtual std::int64_t total_stride() const = 0;
  virtual void set_edges(const std::vector<EdgeRule>& edges) = 0;
};

/// A model of `models` as a Network; one without edges has nothing to set.
template <class M>
class NetworkOf : public Network {
 public:
  explicit NetworkOf(M model) : model_(std::move(model)) {}
  nn::Layer& layer() override { return model_; }
  std::int64_t total_stride() const override { return model_.total_stride(); }
  void set_edges(const std::vector<EdgeRule>& edges) override {
    if constexpr (requires { model_.set_edges(edges); }) model_.set_edges(edges);
  }

 private:
  M model_;
};

template <class M>
std::unique_ptr<Network> network_of(M model) {
  return std::make_unique<NetworkOf<M>>(std::move(model));
}

/// The settings `model.*` of one architecture.
class NetworkSettings {
 public:
  virtual ~NetworkSettings() = default;
  /// Declares them; they are read and written through `settings` from then on.
  virtual void declare(io::Settings& settings) = 0;
  /// The network for this transform. Throws UsageError for settings that do not fit each other or
  /// the transform.
  virtual std::unique_ptr<Network> make(const Transform& transform,
                                        const Mesh& mesh,
                                        DType dtype) const = 0;
  /// Takes the values with which `bench scaling` trains.
  virtual void set_bench(std::int64_t width) = 0;
};

class DataSettings;

/// A model that the program knows. Adding one adds a file and a line to model_entries().
struct ModelEntry {
  const char* name;
  const char* help;
  std::unique_ptr<NetworkSettings> (*settings)();
  std::unique_ptr<DataSettings> (*data)();  ///< what it learns from
  std::int64_t bench_width;                 ///< of `bench scaling` by default
  int bench_dims;                           ///< its most domain dimensions
  /// Whether it knows fields of the size it was trained on only, so that larger ones are worked
  /// through in tiles.
  bool crops_only = false;
};
const std::vector<ModelEntry>& model_entries();
/// Throws UsageError for a name that is unknown.
const ModelEntry& model_entry(const std::string& name);

std::unique_ptr<NetworkSettings> unet_settings();
std::unique_ptr<NetworkSettings> vit_settings();
std::unique_ptr<NetworkSettings> swin_settings();
std::unique_ptr<NetworkSettings> unetr_settings();
std::unique_ptr<NetworkSettings> forecaster_settings();
std::unique_ptr<NetworkSettings> transolver_settings();

/// The numbers of a setting per domain dimension; throws UsageError for more than three.
Dims dims_of(const char* option, const std::vector<std::int64_t>& numbers);

/// The value of a word that a setting holds; throws UsageError for others.
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

}  // namespace tessera::app
