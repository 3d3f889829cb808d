// ranks: 1 2 4
#include <catch2/catch.hpp>
#include <cstring>
#include <set>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/nn/inspect/compare.hpp>
#include <tessera/nn/inspect/plan.hpp>
#include <tessera/nn/optim.hpp>
#include <tessera/parallel/stats.hpp>

#include "support/autograd/stencil.hpp"
#include "support/faulty_transport.hpp"

namespace tessera::test {
namespace {

/// x times a trained number for each column.
struct Scale : nn::Layer {
  nn::Parameter factor;
  explicit Scale(const Mesh& mesh) : factor({kColumns}, nn::init::uniform(0.5, 1.5), mesh) {}
  void fields(nn::Fields& f) override { f("factor", factor); }
  Tensor forward(const Tensor& x) const override { return x * factor(); }
  static constexpr std::int64_t kColumns = 12;
};

struct Blur : nn::Layer {
  const OpDef* op = &stencil_op;
  void fields(nn::Fields&) override {}
  Tensor forward(const Tensor& x) const override { return stencil(x, {}, *op); }
};

struct Net : nn::Module {
  Scale first;
  Blur blur;
  Scale second;
  explicit Net(const Mesh& mesh) : first(mesh), second(mesh) { nn::initialize(*this, 3); }
  void fields(nn::Fields& f) override {
    f("first", first);
    f("blur", blur);
    f("second", second);
  }
  Tensor operator()(const Tensor& x) const { return second(blur(first(x))); }
};

/// Reads no neighbours: wrong where a neighbour is on another rank.
void no_windows(const Problem&, std::vector<Window>& windows) {
  for (int d = 1; d < 3; ++d) {
    windows.push_back(
        {.input = 0, .in_dim = d, .work_dim = d, .need = [](Interval y) { return y; }});
  }
}
OpDef narrow(const OpDef& op) {
  OpDef wrong = op;
  wrong.windows = no_windows;
  return wrong;
}

class Fit : public nn::Workload {
 public:
  explicit Fit(const Mesh& mesh, const OpDef& blur = stencil_op)
      : net_(mesh), sgd_(net_.parameters(), {.lr = 0.05, .momentum = 0.9}) {
    net_.blur.op = &blur;
    Placement placement(mesh);
    for (int a = 0; a < mesh.axis_count(); ++a) {
      placement = placement.shard(mesh.axis_name(a) == "data" ? 0
                                  : mesh.axis_name(a) == "h"  ? 1
                                                              : 2,
                                  {mesh.axis_name(a)});
    }
    layout_ = placement.resolve({4, 16, Scale::kColumns});
  }
  nn::Module& model() override { return net_; }
  Tensor loss(std::int64_t step) override {
    const auto noise = [step](std::int64_t salt) {
      return [=](const Index& i) {
        std::int64_t n = salt + 7 * step;
        for (int d = 0; d < i.size(); ++d) n = (n * 31 + i[d] * 17 + 5) % 1009;
        return static_cast<double>(n) / 1009.0;
      };
    };
    const Tensor y = net_(Tensor::from_function(layout_, noise(1)));
    return mean(square(y - Tensor::from_function(layout_, noise(2))));
  }
  void update() override { sgd_.step(); }

 private:
  Net net_;
  optim::Sgd sgd_;
  Layout layout_;
};

Mesh mesh_of(const std::string& axis) {
  if (process().count == 4 && axis == "both") return Mesh::world({{"h", 2}, {"w", 2}});
  return Mesh::world({{axis == "both" ? "h" : axis, process().count}});
}

}  // namespace

TEST_CASE("a correct program is the same on a mesh and on one rank") {
  for (const char* axis : {"data", "h", "w", "both"}) {
    const Mesh mesh = mesh_of(axis);
    const nn::Comparison result = nn::compare_steps(
        mesh, [](const Mesh& m) { return std::make_unique<Fit>(m); }, {.steps = 4});
    INFO(mesh.str() << (result.first ? result.first->str() : ""));
    CHECK(!result.first);
    CHECK(result.tensors > 4 * 20);
    CHECK(!result.closest.empty());
    if (process().count == 1) CHECK(result.closest.find("differs by 0 ") != std::string::npos);
  }
}

TEST_CASE("compare names the layer with a wrong halo") {
  static const OpDef wrong = narrow(stencil_op);
  for (const char* axis : {"data", "h", "both"}) {
    const Mesh mesh = mesh_of(axis);
    const nn::Comparison result = nn::compare_steps(
        mesh, [](const Mesh& m) { return std::make_unique<Fit>(m, wrong); }, {.steps = 2});
    INFO(mesh.str());
    const bool visible = process().count > 1 && std::string(axis) != "data";
    REQUIRE(result.first.has_value() == visible);
    if (!visible) continue;
    CHECK(result.first->step == 0);
    CHECK(result.first->layer == "blur");
    CHECK(result.first->what == "output of stencil (forward)");
    CHECK(result.first->error > 0.01);
    CHECK(result.first->str().find("blur: output of stencil (forward) [4, ") != std::string::npos);
  }
}

TEST_CASE("compare names the gradient whose sum was lost") {
  const FaultyTransport lost([](const parallel::Call& call, const std::byte* before) {
    if (std::strcmp(call.info.op, "gradient reduction") != 0) return;
    std::memcpy(call.out, before,
                static_cast<std::size_t>(call.in_counts[0]) * size_of(call.dtype));
  });
  const nn::Comparison result = nn::compare_steps(
      mesh_of("h"), [](const Mesh& m) { return std::make_unique<Fit>(m); }, {.steps = 2});
  REQUIRE(result.first.has_value() == (process().count > 1));
  if (!result.first) return;
  CHECK(result.first->step == 0);
  CHECK(result.first->layer == "second.factor");
  CHECK(result.first->what == "gradient");
}

TEST_CASE("compare names the step in which a fault begins") {
  int exchanges = 0;
  const FaultyTransport late([&](const parallel::Call& call, const std::byte*) {
    if (std::strcmp(call.info.op, "stencil") != 0 || call.recvs.empty()) return;
    if (++exchanges == 3)
      std::memset(call.recvs[0].data, 0, static_cast<std::size_t>(call.recvs[0].bytes));
  });
  const nn::Comparison result = nn::compare_steps(
      mesh_of("h"), [](const Mesh& m) { return std::make_unique<Fit>(m); }, {.steps = 5});
  REQUIRE(result.first.has_value() == (process().count > 1));
  if (!result.first) return;
  CHECK(result.first->step == 2);
  CHECK(result.first->layer == "blur");
}

TEST_CASE("a plan books a step's traffic under layers, windows and phases") {
  const nn::MakeWorkload make = [](const Mesh& m) { return std::make_unique<Fit>(m); };
  const nn::Plan plan = nn::plan_step({{"h", 4}}, make);
  REQUIRE(plan.plans.size() == 4);
  std::set<std::string> names;
  for (const nn::LayerPlan& layer : plan.layers()) names.insert(layer.layer);
  for (const char* layer : {"first", "blur", "second", "", "gradient buckets"})
    CHECK(names.count(layer) == 1);
  for (const nn::LayerPlan& layer : plan.layers()) {
    if (layer.layer != "blur") continue;
    // One row of 4 samples and 12 columns goes to each of two neighbours.
    CHECK(layer.ops == std::vector<std::string>{"stencil"});
    CHECK(layer.window_lo == Dims{0, 1, 0});  // nothing is read beyond a zero edge
    CHECK(layer.window_hi == Dims{0, 1, 0});
    CHECK(layer.forward == nn::Traffic{2, 2 * 4 * 12 * 4});
    CHECK(layer.backward == layer.forward);
    CHECK(layer.layout == "[4, 16/h, 12]");
  }
  CHECK(plan.plans[0].layers.size() == plan.plans[1].layers.size());
  CHECK(plan.busiest().rank == 1);
  CHECK(plan.table().find("gradient buckets") != std::string::npos);
  CHECK(plan.json().find("\"window_lo\"") != std::string::npos);

  // The processes of this job count the same.
  const Mesh mesh = mesh_of("h");
  const nn::RankPlan mine = nn::plan_rank({{"h", mesh.size()}}, mesh.rank(), make);
  Fit real(mesh);
  const nn::RankPlan measured = nn::measure_rank(mesh, real);
  CHECK(mine.sent.total().messages == measured.sent.total().messages);
  CHECK(mine.sent.total().bytes == measured.sent.total().bytes);
}

TEST_CASE("a plan for more ranks than there are processes anywhere") {
  const nn::MakeWorkload make = [](const Mesh& m) { return std::make_unique<Fit>(m); };
  const nn::Plan plan = nn::plan_step({{"data", 2}, {"h", 8}, {"w", 6}}, make);
  CHECK(plan.ranks == 96);
  CHECK(plan.plans.size() == 2 * 5 * 5);
  const nn::Plan all = nn::plan_step({{"data", 2}, {"h", 8}, {"w", 6}}, make, {.all_ranks = 96});
  CHECK(all.plans.size() == 96);
  CHECK(all.busiest().sent.total().bytes == plan.busiest().sent.total().bytes);
  CHECK(all.largest().peak_bytes == plan.largest().peak_bytes);
  CHECK_THROWS_AS(nn::plan_step({{"h", 1 << 20}, {"w", 1 << 20}}, make), UsageError);
}

TEST_CASE("a dry run has metadata only") {
  const MemoryStats before = MemoryPool::of({}).stats();
  const parallel::CommStats sent = parallel::comm_stats();
  const Process self = process();
  {
    const DryRun dry(1000);
    const Mesh mesh = dry.mesh({{"h", 10}, {"w", 100}}, 555);
    CHECK(mesh.rank() == 555);
    CHECK_THROWS_AS(DryRun(2), UsageError);
    CHECK_THROWS_AS(dry.mesh({{"h", 1000}}, 1000), UsageError);
    // 40 TB in all
    const Layout layout =
        Placement(mesh).shard(0, {"h"}).shard(1, {"w"}).resolve({1 << 20, 10'000'000});
    const Tensor x = require_grad(Tensor::full(layout, 2.0));
    CHECK(MemoryPool::of({}).stats().live_bytes >= x.local_bytes());
    CHECK(x.at(x.local_box().lo) == 0.0);
    const Tensor loss = reduced(sum(square(x)));
    CHECK(loss.item() == 0.0);
    backward(loss);
    CHECK(gradient(x).layout() == layout);
    const Tensor index =
        Tensor::empty(Placement(mesh).shard(0, {"h"}).resolve({100}), DType::kInt64);
    CHECK_THROWS_AS(gather(x, index), NotSupported);
  }
  CHECK(process().rank == self.rank);
  CHECK(process().count == self.count);
  CHECK(MemoryPool::of({}).stats().live_bytes == before.live_bytes);
  CHECK(parallel::comm_stats().total().messages == sent.total().messages);
}

}  // namespace tessera::test
