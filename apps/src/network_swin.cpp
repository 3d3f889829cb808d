#include <tessera/models/swin.hpp>

#include "network.hpp"

namespace tessera::app {
namespace {

class Settings : public NetworkSettings {
 public:
  void declare(io::Settings& s) override {
    const io::Settings::Rule positive = {.min = 1};
    s.add("model.channels", channels_, "Channels of the finest level; each further one has twice.",
          positive);
    s.add("model.depths", depths_, "Blocks of each level on the way down, finest first.", positive);
    s.add("model.heads", heads_, "Attention heads of each level.", positive);
    s.add("model.up_depth", up_depth_, "Blocks of each level on the way up.", positive);
    s.add("model.patch", patch_,
          "Elements of the input in a patch, in each dimension or one for all.", positive);
    s.add("model.window", window_,
          "Tokens of an attention window, in each dimension or one for all; in periodic dimensions "
          "it must divide those of every level.",
          positive);
    s.add("model.mlp_ratio", mlp_ratio_, "Channels inside a block's MLP over channels.", positive);
    s.add("model.qk_norm", qk_norm_, "Normalise queries and keys per head.");
    s.add("model.dropout", dropout_, "Probability that a value of a branch is dropped.",
          {.min = 0, .max = 1});
  }

  std::unique_ptr<Network> make(const Transform& transform,
                                const Mesh& mesh,
                                DType dtype) const override {
    models::SwinOptions o;
    transform.set(o);
    o.patch = dims_of("patch", patch_);
    o.channels = channels_;
    o.depths = {depths_.begin(), depths_.end()};
    o.heads = heads_;
    o.up_depth = static_cast<int>(up_depth_);
    o.window = dims_of("window", window_);
    o.mlp_ratio = mlp_ratio_;
    o.qk_norm = qk_norm_;
    o.dropout = dropout_;
    return network_of(models::Swin(o, mesh, dtype));
  }

  void set_bench(std::int64_t width) override {
    channels_ = width;
    depths_ = {2, 2};
    heads_ = {std::max<std::int64_t>(width / 32, 1), std::max<std::int64_t>(width / 16, 1)};
    patch_ = {2};
    window_ = {4};
  }

 private:
  std::int64_t channels_ = 64;
  std::vector<std::int64_t> depths_ = {2, 2};
  std::vector<std::int64_t> heads_ = {2, 4};
  std::int64_t up_depth_ = 2;
  std::vector<std::int64_t> patch_ = {2};
  std::vector<std::int64_t> window_ = {8};
  std::int64_t mlp_ratio_ = 4;
  bool qk_norm_ = false;
  double dropout_ = 0.0;
};

}  // namespace

std::unique_ptr<NetworkSettings> swin_settings() { return std::make_unique<Settings>(); }

}  // namespace tessera::app
