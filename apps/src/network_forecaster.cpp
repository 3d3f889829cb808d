#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/models/forecaster.hpp>

#include "network.hpp"

namespace tessera::app {
namespace {

/// A Forecaster whose condition comes as channels that are the same at every point.
class Conditioned : public models::Forecaster {
 public:
  Conditioned(const models::ForecasterOptions& options,
              Interval condition,
              const Mesh& mesh,
              DType dtype)
      : Forecaster(options, mesh, dtype), condition_(condition) {}
  Tensor forward(const Tensor& x) const override {
    if (condition_.empty()) return Forecaster::forward(x);
    std::vector<Tensor> fields;
    if (condition_.lo > 0) fields.push_back(slice(x, -1, 0, condition_.lo));
    if (condition_.hi < x.size(-1)) fields.push_back(slice(x, -1, condition_.hi, x.size(-1)));
    Dims domain;
    for (int d = 1; d + 1 < x.dims(); ++d) domain.push_back(d);
    // Summed here, where it is small: a partial one would go through the first layer.
    const Tensor sums = mean(slice(x, -1, condition_.lo, condition_.hi), domain);
    const Tensor condition = redistribute(sums, sums.layout().dual());
    return Forecaster::forward(fields.size() == 1 ? fields[0] : concat(fields, -1), condition);
  }

 private:
  Interval condition_;
};

class Settings : public NetworkSettings {
 public:
  void declare(io::Settings& s) override {
    const io::Settings::Rule positive = {.min = 1};
    s.add("model.channels", channels_, "Channels of a token.", positive);
    s.add("model.depth", depth_, "Blocks.", positive);
    s.add("model.heads", heads_, "Attention heads.", positive);
    s.add("model.patch", patch_,
          "Elements of the input in a patch, in each dimension or one for all.", positive);
    s.add("model.window", window_,
          "Tokens of a neighbourhood, in each dimension or one for all; odd ones are centred.",
          positive);
    s.add("model.dilations", dilations_,
          "Each block looks at every so many-th token, in turn; they must divide periodic "
          "dimensions.",
          positive);
    s.add("model.mlp_ratio", mlp_ratio_, "Channels inside a block's MLP over channels.", positive);
    s.add("model.qk_norm", qk_norm_, "Normalise queries and keys per head.");
    s.add("model.dropout", dropout_, "Probability that a value of a branch is dropped.",
          {.min = 0, .max = 1});
  }

  std::unique_ptr<Network> make(const Transform& transform,
                                const Mesh& mesh,
                                DType dtype) const override {
    models::ForecasterOptions o;
    transform.set_plain(o);
    o.in_channels -= transform.constants.size();
    o.condition_features = transform.constants.size();
    o.patch = dims_of("patch", patch_);
    o.channels = channels_;
    o.depth = static_cast<int>(depth_);
    o.heads = heads_;
    o.window = dims_of("window", window_);
    o.dilations = dilations_;
    o.mlp_ratio = mlp_ratio_;
    o.qk_norm = qk_norm_;
    o.dropout = dropout_;
    o.predict_change = false;  // the task has a base of its own
    return network_of(Conditioned(o, transform.constants, mesh, dtype));
  }

  void set_bench(std::int64_t width) override {
    channels_ = width;
    depth_ = 4;
    heads_ = std::max<std::int64_t>(width / 32, 1);
  }

 private:
  std::int64_t channels_ = 96;
  std::int64_t depth_ = 4;
  std::int64_t heads_ = 4;
  std::vector<std::int64_t> patch_ = {2};
  std::vector<std::int64_t> window_ = {7};
  std::vector<std::int64_t> dilations_ = {1};
  std::int64_t mlp_ratio_ = 4;
  bool qk_norm_ = false;
  double dropout_ = 0.0;
};

}  // namespace

std::unique_ptr<NetworkSettings> forecaster_settings() { return std::make_unique<Settings>(); }

}  // namespace tessera::app
