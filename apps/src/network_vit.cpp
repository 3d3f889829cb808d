#include <tessera/models/vit.hpp>

#include "network.hpp"

namespace tessera::app {
namespace {

using models::ViTOptions;

class Settings : public NetworkSettings {
 public:
  void declare(io::Settings& s) override {
    const io::Settings::Rule positive = {.min = 1};
    const io::Settings::Rule not_negative = {.min = 0};
    const io::Settings::Rule share = {.min = 0, .max = 1};
    s.add("model.preset", preset_,
          "Channels, depth and heads: small is 384, 12, 6; base 768, 12, 12; large 1024, 24, 16; "
          "huge 1280, 32, 16.",
          {.choices = {"small", "base", "large", "huge"}});
    s.add("model.channels", channels_, "Channels of a token; 0: those of the preset.",
          not_negative);
    s.add("model.depth", depth_, "Transformer blocks; 0: those of the preset.", not_negative);
    s.add("model.heads", heads_, "Attention heads; 0: those of the preset.", not_negative);
    s.add("model.patch", patch_,
          "Elements of the input in a patch, in each dimension or one for all.", positive);
    s.add("model.key_heads", key_heads_,
          "Heads of keys and values, a divisor of heads; 0: as many as heads.", not_negative);
    s.add("model.mlp_ratio", mlp_ratio_, "Channels inside a block's MLP over channels.", positive);
    s.add("model.positions", positions_, "How tokens know where they are.",
          {.choices = {"rotary", "sinusoidal", "none"}});
    s.add("model.wave_base", wave_base_, "Longest to shortest wave of the positions.", positive);
    s.add("model.qk_norm", qk_norm_, "Normalise queries and keys per head.");
    s.add("model.gated_mlp", gated_mlp_, "SwiGLU instead of GELU.");
    s.add("model.dropout", dropout_, "Probability that a value of a branch is dropped.", share);
    s.add("model.attention_dropout", attention_dropout_,
          "Probability that an attention weight is dropped.", share);
  }

  std::unique_ptr<Network> make(const Transform& transform,
                                const Mesh& mesh,
                                DType dtype) const override {
    ViTOptions o = ViTOptions::preset(preset_);
    transform.set(o);
    if (channels_ > 0) o.channels = channels_;
    if (depth_ > 0) o.depth = static_cast<int>(depth_);
    if (heads_ > 0) o.heads = heads_;
    o.patch = dims_of("patch", patch_);
    o.key_heads = key_heads_;
    o.mlp_ratio = mlp_ratio_;
    o.positions = choose<ViTOptions::Positions>("positions", positions_,
                                                {{"rotary", ViTOptions::Positions::kRotary},
                                                 {"sinusoidal", ViTOptions::Positions::kSinusoidal},
                                                 {"none", ViTOptions::Positions::kNone}});
    o.wave_base = wave_base_;
    o.qk_norm = qk_norm_;
    o.gated_mlp = gated_mlp_;
    o.dropout = dropout_;
    o.attention_dropout = attention_dropout_;
    return network_of(models::ViT(o, mesh, dtype));
  }

  void set_bench(std::int64_t width) override {
    channels_ = width;
    depth_ = 4;
    heads_ = std::max<std::int64_t>(width / 64, 1);
    patch_ = {8};
  }

 private:
  std::string preset_ = "small";
  std::int64_t channels_ = 0;
  std::int64_t depth_ = 0;
  std::int64_t heads_ = 0;
  std::vector<std::int64_t> patch_ = {4};
  std::int64_t key_heads_ = 0;
  std::int64_t mlp_ratio_ = 4;
  std::string positions_ = "rotary";
  double wave_base_ = 100.0;
  bool qk_norm_ = false;
  bool gated_mlp_ = false;
  double dropout_ = 0.0;
  double attention_dropout_ = 0.0;
};

}  // namespace

std::unique_ptr<NetworkSettings> vit_settings() { return std::make_unique<Settings>(); }

}  // namespace tessera::app
