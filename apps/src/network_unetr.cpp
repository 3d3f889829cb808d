#include <tessera/models/unetr.hpp>

#include "network.hpp"

namespace tessera::app {
namespace {

class Settings : public NetworkSettings {
 public:
  void declare(io::Settings& s) override {
    const io::Settings::Rule positive = {.min = 1};
    s.add("model.levels", levels_,
          "Times that the decoder gets finer by 2: a patch has 2^levels elements of the input in "
          "each dimension.",
          positive);
    s.add("model.channels", channels_, "Channels of a token.", positive);
    s.add("model.depth", depth_, "Transformer blocks, at least one per level.", positive);
    s.add("model.heads", heads_, "Attention heads.", positive);
    s.add("model.mlp_ratio", mlp_ratio_, "Channels inside a block's MLP over channels.", positive);
    s.add("model.qk_norm", qk_norm_, "Normalise queries and keys per head.");
    s.add("model.wave_base", wave_base_, "Longest to shortest wave of the positions.", positive);
    s.add("model.base", base_,
          "Channels of the decoder's finest level; each further one has twice.", positive);
    s.add("model.norm_groups", norm_groups_, "Groups of the decoder's group norms; 0: no norms.",
          {.min = 0});
    s.add("model.activation", activation_, "Activation of the decoder.",
          {.choices = {"none", "relu", "silu", "gelu"}});
    s.add("model.kernel", kernel_, "Taps of a convolution in each dimension; odd.", positive);
    s.add("model.dropout", dropout_, "Probability that a value is dropped.", {.min = 0, .max = 1});
  }

  std::unique_ptr<Network> make(const Transform& transform,
                                const Mesh& mesh,
                                DType dtype) const override {
    models::UnetrOptions o;
    transform.set(o);
    o.levels = static_cast<int>(levels_);
    o.channels = channels_;
    o.depth = static_cast<int>(depth_);
    o.heads = heads_;
    o.mlp_ratio = mlp_ratio_;
    o.qk_norm = qk_norm_;
    o.wave_base = wave_base_;
    o.base = base_;
    o.norm_groups = norm_groups_;
    o.activation = nn::parse_activation(activation_);
    o.kernel = kernel_;
    o.dropout = dropout_;
    return network_of(models::Unetr(o, mesh, dtype));
  }

  void set_bench(std::int64_t width) override {
    levels_ = 2;
    channels_ = width;
    depth_ = 4;
    heads_ = std::max<std::int64_t>(width / 64, 1);
    base_ = std::max<std::int64_t>(width / 8, 1);
  }

 private:
  std::int64_t levels_ = 3;
  std::int64_t channels_ = 192;
  std::int64_t depth_ = 6;
  std::int64_t heads_ = 6;
  std::int64_t mlp_ratio_ = 4;
  bool qk_norm_ = false;
  double wave_base_ = 100.0;
  std::int64_t base_ = 16;
  std::int64_t norm_groups_ = 0;
  std::string activation_ = "relu";
  std::int64_t kernel_ = 3;
  double dropout_ = 0.0;
};

}  // namespace

std::unique_ptr<NetworkSettings> unetr_settings() { return std::make_unique<Settings>(); }

}  // namespace tessera::app
