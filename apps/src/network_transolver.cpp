#include <tessera/models/transolver.hpp>

#include "network.hpp"

namespace tessera::app {
namespace {

class Settings : public NetworkSettings {
 public:
  void declare(io::Settings& s) override {
    const io::Settings::Rule positive = {.min = 1};
    s.add("model.channels", channels_, "Channels of a point.", positive);
    s.add("model.depth", depth_, "Blocks.", positive);
    s.add("model.heads", heads_, "Attention heads.", positive);
    s.add("model.slices", slices_, "Slices into which each head groups the points.", positive);
    s.add("model.mlp_ratio", mlp_ratio_, "Channels inside a block's MLP over channels.", positive);
    s.add("model.dropout", dropout_, "Probability that a value of a branch is dropped.",
          {.min = 0, .max = 1});
  }

  std::unique_ptr<Network> make(const Transform& transform,
                                const Mesh& mesh,
                                DType dtype) const override {
    models::TransolverOptions o;
    o.in_channels = transform.in_channels;
    o.out_channels = transform.out_channels;
    o.zero_head = transform.zero_head;
    o.seed = transform.seed;
    o.channels = channels_;
    o.depth = static_cast<int>(depth_);
    o.heads = heads_;
    o.slices = slices_;
    o.mlp_ratio = mlp_ratio_;
    o.dropout = dropout_;
    return network_of(models::Transolver(o, mesh, dtype));
  }

  void set_bench(std::int64_t width) override {
    channels_ = width;
    heads_ = std::max<std::int64_t>(width / 16, 1);
  }

 private:
  std::int64_t channels_ = 64;
  std::int64_t depth_ = 4;
  std::int64_t heads_ = 4;
  std::int64_t slices_ = 32;
  std::int64_t mlp_ratio_ = 2;
  double dropout_ = 0.0;
};

}  // namespace

std::unique_ptr<NetworkSettings> transolver_settings() { return std::make_unique<Settings>(); }

}  // namespace tessera::app
