#include <tessera/models/unet.hpp>

#include "network.hpp"

namespace tessera::app {
namespace {

class Settings : public NetworkSettings {
 public:
  void declare(io::Settings& s) override {
    const io::Settings::Rule positive = {.min = 1};
    s.add("model.base", base_, "Channels of the finest level.", positive);
    s.add("model.multipliers", multipliers_,
          "Channels of each level in multiples of base; each level is half as fine.", positive);
    s.add("model.patch", patch_,
          "Elements of the input in a point of the finest level, in each dimension: 2 in 3-D costs "
          "an "
          "eighth of 1.",
          positive);
    s.add("model.blocks", blocks_, "Residual blocks per level, on the way down and up.", positive);
    s.add("model.norm_groups", norm_groups_, "Groups of the group norms; 0: no norms.", {.min = 0});
    s.add("model.activation", activation_, "Activation.",
          {.choices = {"none", "relu", "silu", "gelu"}});
    s.add("model.dropout", dropout_, "Probability that a value is dropped.", {.min = 0, .max = 1});
    s.add("model.down", down_, "How a level gets coarser.", {.choices = {"conv", "max", "mean"}});
    s.add("model.up", up_, "How a level gets finer.",
          {.choices = {"transposed", "linear", "nearest"}});
    s.add("model.kernel", kernel_, "Taps of a convolution in each dimension; odd.", positive);
    s.add("model.attention_blocks", attention_blocks_,
          "Transformer blocks on the coarsest level, where every point attends to every other.",
          {.min = 0});
    s.add("model.heads", heads_, "Attention heads of these blocks.", positive);
  }

  std::unique_ptr<Network> make(const Transform& transform,
                                const Mesh& mesh,
                                DType dtype) const override {
    using O = models::UNetOptions;
    O o;
    transform.set(o);
    o.base = base_;
    o.multipliers = multipliers_;
    o.patch = patch_;
    o.blocks = static_cast<int>(blocks_);
    o.norm_groups = norm_groups_;
    o.activation = nn::parse_activation(activation_);
    o.dropout = dropout_;
    o.down = choose<O::Down>(
        "down", down_,
        {{"conv", O::Down::kConv}, {"max", O::Down::kMaxPool}, {"mean", O::Down::kAvgPool}});
    o.up = choose<O::Up>("up", up_,
                         {{"transposed", O::Up::kTransposed},
                          {"linear", O::Up::kLinear},
                          {"nearest", O::Up::kNearest}});
    o.kernel = kernel_;
    o.attention_blocks = static_cast<int>(attention_blocks_);
    o.heads = heads_;
    return network_of(models::UNet(o, mesh, dtype));
  }

  void set_bench(std::int64_t width) override {
    base_ = width;
    multipliers_ = {1, 2, 4};
    blocks_ = 1;
    norm_groups_ = 4;
    activation_ = "silu";
  }

 private:
  std::int64_t base_ = 32;
  std::vector<std::int64_t> multipliers_ = {1, 2};
  std::int64_t patch_ = 1;
  std::int64_t blocks_ = 2;
  std::int64_t norm_groups_ = 0;
  std::string activation_ = "relu";
  double dropout_ = 0.0;
  std::string down_ = "conv";
  std::string up_ = "transposed";
  std::int64_t kernel_ = 3;
  std::int64_t attention_blocks_ = 0;
  std::int64_t heads_ = 4;
};

}  // namespace

std::unique_ptr<NetworkSettings> unet_settings() { return std::make_unique<Settings>(); }

}  // namespace tessera::app
