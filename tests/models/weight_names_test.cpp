// ranks: 1 2 3
// Weights under the names and in the dimension orders of PyTorch: tests/data/torch_weights.py.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/nn/layers.hpp>
#include <tessera/nn/weight_names.hpp>

#include "support/op_test.hpp"

namespace tessera::test {
namespace {

const char* const kFile = TESSERA_SOURCE_DIR "/tests/data/torch_weights.safetensors";

struct Net : nn::Module {
  nn::Conv conv0, conv1;
  nn::GroupNorm norm0, norm1;
  nn::ConvTranspose up;
  nn::Linear query, key, value, proj, head;
  explicit Net(const Mesh& mesh)
      : conv0({.in = 2, .out = 4, .kernel = {3, 2}, .pad_lo = {0}, .pad_hi = {0}}, mesh),
        conv1({.in = 4, .out = 4, .kernel = {1, 3}, .pad_lo = {0}, .pad_hi = {0}, .groups = 2},
              mesh),
        norm0({.groups = 2, .channels = 4}, mesh),
        norm1({.groups = 2, .channels = 4}, mesh),
        up({.in = 4, .out = 6, .kernel = {2, 3}, .stride = {2, 3}}, mesh),
        query({.in = 6, .out = 6}, mesh),
        key({.in = 6, .out = 6}, mesh),
        value({.in = 6, .out = 6}, mesh),
        proj({.in = 6, .out = 6}, mesh),
        head({.in = 6, .out = 5}, mesh) {
    nn::initialize(*this, 1);
    const Placement split(mesh);
    nn::place(*this, {{"conv0.weight", {.rest = split.shard(0, {"x"})}},
                      {"up.weight", {.rest = split.shard(3, {"x"})}},
                      {"key.*", {.rest = split.shard(0, {"x"})}},
                      {"head.weight", {.rest = split.shard(1, {"x"})}}});
  }
  void fields(nn::Fields& f) override {
    f("conv0", conv0);
    f("conv1", conv1);
    f("norm0", norm0);
    f("norm1", norm1);
    f("up", up);
    f("query", query);
    f("key", key);
    f("value", value);
    f("proj", proj);
    f("head", head);
  }
  Tensor operator()(const Tensor& x) const {
    const Tensor h = up(silu(norm1(conv1(silu(norm0(conv0(x)))))));
    return head(proj(query(h) + 2.0 * key(h) + 3.0 * value(h)));
  }
};

nn::WeightNames torch_names() {
  nn::WeightNames names;
  names.rules = {{.ours = "conv*.*", .theirs = "layers.*.conv.*"},
                 {.ours = "norm*.*", .theirs = "layers.*.norm.*"},
                 {.ours = "proj.*", .theirs = "attn.out_proj.*"},
                 {.ours = "query.*", .theirs = "attn.in_proj_*", .part = 0, .parts = 3},
                 {.ours = "key.*", .theirs = "attn.in_proj_*", .part = 1, .parts = 3},
                 {.ours = "value.*", .theirs = "attn.in_proj_*", .part = 2, .parts = 3}};
  names.ignored = {"batches_seen", "test.*"};
  return names;
}

std::string shared_path() {
  static std::uint64_t count = 0;
  const std::uint64_t id = from_process_0(
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  return (std::filesystem::temp_directory_path() / str("tessera-weights-", id, "-", ++count))
      .string();
}

DenseArray read_dense(const io::SafetensorsReader& file, const std::string& name) {
  return to_dense(file.read(name, Layout::replicated(Mesh::self(), file.entry(name).shape)));
}
DenseArray channels_last(const DenseArray& a) {
  DenseArray b(Shape{a.shape[0], a.shape[2], a.shape[3], a.shape[1]});
  for_each(a.shape, [&](const Index& i) { b(i[0], i[2], i[3], i[1]) = a[i]; });
  return b;
}

}  // namespace

TEST_CASE("a network of PyTorch computes the same here, and goes back to the bit") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  const io::SafetensorsReader file(kFile);
  Net net(mesh);
  nn::import_weights(kFile, net, torch_names());
  const DenseArray x = channels_last(read_dense(file, "test.x"));
  const Tensor y = net(to_tensor(x, Layout::replicated(mesh, x.shape), DType::kFloat32));
  CHECK(compare("y", y, channels_last(read_dense(file, "test.y")), 1e-5) == "");

  const std::string path = shared_path();
  nn::export_weights(path, net, torch_names());
  {
    const io::SafetensorsReader written(path);
    CHECK(written.metadata() == io::Metadata{{"format", "pt"}});
    CHECK(written.entries().size() == file.entries().size() - 3);
    for (const auto& entry : written.entries()) {
      CHECK(entry.shape == file.entry(entry.name).shape);
      CHECK(read_dense(written, entry.name).values == read_dense(file, entry.name).values);
    }
  }
  any_process(false);
  if (process().rank == 0) std::filesystem::remove(path);
}

TEST_CASE("names that do not fit are refused before anything is changed") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Net net(mesh);
  const Net same(mesh);
  const auto refused = [&](const std::string& word,
                           const std::function<void(nn::WeightNames&)>& f) {
    nn::WeightNames names = torch_names();
    f(names);
    try {
      nn::import_weights(kFile, net, names);
      FAIL("accepted");
    } catch (const Error& e) {
      INFO(e.what());
      CHECK(std::string(e.what()).find(word) != std::string::npos);
    }
  };
  refused("batches_seen", [](auto& n) { n.ignored = {"test.*"}; });
  refused("proj.weight", [](auto& n) { n.rules.erase(n.rules.begin() + 2); });
  refused("[4, 3, 2, 2]", [](auto& n) { n.rules[0].order = nn::WeightRule::Order::kAsHere; });
  refused("[12, 6]", [](auto& n) { n.rules[3].parts = 2; });
  refused("part 3 of 3", [](auto& n) { n.rules[5].part = 3; });
  refused("more *", [](auto& n) { n.rules[1].theirs = "layers.*.*.*"; });
  CHECK(compare("conv0", net.conv0.weight.value(), to_dense(same.conv0.weight.value()), 0.0) == "");

  nn::WeightNames twice = torch_names();
  twice.rules[5].part = 1;
  CHECK_THROWS_AS(nn::export_weights("unused", net, twice), UsageError);
  nn::WeightNames missing = torch_names();
  missing.rules[5].theirs = "";
  CHECK_THROWS_AS(nn::export_weights("unused", net, missing), UsageError);
}

TEST_CASE("names are read from a JSON file") {
  const std::string path = shared_path();
  const auto read = [&](const std::string& text) {
    any_process(false);
    if (process().rank == 0) std::ofstream(path) << text;
    any_process(false);
    return nn::read_weight_names(path);
  };
  const nn::WeightNames names = read(
      R"({"rules": [{"ours": "a.*", "theirs": "b.*", "part": 1, "parts": 2},
                    {"ours": "c", "theirs": "d", "order": "channels_first"}], "ignored": ["e*"]})");
  REQUIRE(names.rules.size() == 2);
  CHECK(names.rules[0].ours == "a.*");
  CHECK(names.rules[0].theirs == "b.*");
  CHECK(names.rules[0].part == 1);
  CHECK(names.rules[0].parts == 2);
  CHECK(names.rules[1].order == nn::WeightRule::Order::kChannelsFirst);
  CHECK(names.ignored == std::vector<std::string>{"e*"});
  CHECK(read("{}").rules.empty());
  for (const char* wrong :
       {"", "[]", "{\"rule\": []}", R"({"rules": [{"our": "a"}]})", R"({"rules": [{"part": "a"}]})",
        R"({"rules": [{"order": "upside down"}]})", R"({"ignored": [1]})", R"({"rules": 3})"})
    CHECK_THROWS_AS(read(wrong), DataError);
  any_process(false);
  if (process().rank == 0) std::filesystem::remove(path);
}

}  // namespace tessera::test
