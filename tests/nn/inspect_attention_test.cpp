// ranks: 1 2 4
#include <catch2/catch.hpp>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/optim.hpp>

namespace tessera::test {
namespace {

constexpr std::int64_t kHeads = 3, kDepth = 4, kTokens = 25;

struct Attention : nn::Layer {
  AttentionParameters parameters;
  nn::Linear qkv;
  nn::Parameter bias;
  Attention(const Mesh& mesh, AttentionParameters p)
      : parameters(std::move(p)),
        qkv({.in = kDepth, .out = 3 * kHeads * kDepth}, mesh),
        bias({1, 1, kTokens, kTokens}, nn::init::uniform(-1, 1), mesh) {}
  void fields(nn::Fields& f) override {
    f("qkv", qkv);
    f("bias", bias);
  }
  Tensor forward(const Tensor& x) const override {
    const Tensor all = reshape(qkv(x), {2, kTokens, 3, kHeads, kDepth});
    const auto part = [&](std::int64_t i) {
      return reshape(slice(all, 2, i, i + 1), {2, kTokens, kHeads, kDepth});
    };
    AttentionParameters p = parameters;
    p.bias = bias();
    return scaled_dot_product_attention(part(0), part(1), part(2), p);
  }
};

struct Net : nn::Module {
  Attention attention;
  Net(const Mesh& mesh, const AttentionParameters& p) : attention(mesh, p) {
    nn::initialize(*this, 1);
  }
  void fields(nn::Fields& f) override { f("attention", attention); }
};

class NetWorkload : public nn::Workload {
 public:
  NetWorkload(const Mesh& mesh, const AttentionParameters& p)
      : net_(mesh, p), sgd_(net_.parameters(), {.lr = 0.1}) {
    Placement placement(mesh);
    std::vector<std::string_view> axes;
    for (int a = 0; a < mesh.axis_count(); ++a) axes.push_back(mesh.axis_name(a));
    x_ = Tensor::from_function(placement.shard(1, axes).resolve({2, kTokens, kDepth}),
                               [](const Index& i) { return 0.1 * double(i[1] - i[2]); });
  }
  nn::Module& model() override { return net_; }
  Tensor loss(std::int64_t) override {
    const Tensor y = net_.attention(x_);
    return sum(y * y);
  }
  void update() override { sgd_.step(); }

 private:
  Net net_;
  optim::Sgd sgd_;
  Tensor x_;
};

}  // namespace

TEST_CASE("the plan counts what a step with attention counts, however it is shared") {
  const int ranks = process().count;
  std::vector<MeshAxis> axes{{"s", ranks}};
  if (ranks == 4) axes = {{"outer", 2}, {"inner", 2}};
  const std::vector<std::string> inner{axes.back().name};
  struct Case {
    AttentionParameters parameters;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{.exchange = std::vector<std::string>{}},
       ranks == 4 ? "attention[ring(outer*inner)]" : "attention[ring(s)]"},
      {{.exchange = inner},
       ranks == 4 ? "attention[heads(inner) ring(outer)]" : "attention[heads(s)]"},
      {{.causal = true, .exchange = std::vector<std::string>{}, .balance = true},
       ranks == 4 ? "attention[ring(outer*inner) zigzag]" : "attention[ring(s) zigzag]"}};
  for (const Case& c : cases) {
    const nn::MakeWorkload make = [&](const Mesh& mesh) {
      return std::make_unique<NetWorkload>(mesh, c.parameters);
    };
    const Mesh mesh = Mesh::world(axes);
    const nn::RankPlan planned = nn::plan_rank(axes, mesh.rank(), make);
    NetWorkload real(mesh, c.parameters);
    const nn::RankPlan counted = nn::measure_rank(mesh, real);
    CHECK(planned.sent.total().messages == counted.sent.total().messages);
    CHECK(planned.sent.total().bytes == counted.sent.total().bytes);
    const auto counted_peak = static_cast<double>(counted.peak_bytes);
    CHECK(static_cast<double>(planned.peak_bytes) == Approx(counted_peak).epsilon(0.05));
    bool named = false;
    for (const nn::LayerPlan& layer : planned.layers)
      for (const std::string& op : layer.ops) named = named || op == c.text;
    CHECK(named == (ranks > 1));
  }
}

}  // namespace tessera::test
