// ranks: 1 2 3 4
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/layers.hpp>

#include "glob.hpp"
#include "support/op_test.hpp"

namespace tessera::test {
namespace {

using nn::Fields;

Mesh line() { return Mesh::world({{"x", process().count}}); }

struct Pair : nn::Module {
  nn::Linear first;
  nn::Linear second;
  nn::Parameter absent;
  Tensor buffer;

  explicit Pair(const Mesh& mesh, DType dtype = DType::kFloat64)
      : first({.in = 5, .out = 7}, mesh, dtype),
        second({.in = 7, .out = 3, .bias = false}, mesh, dtype),
        buffer(Tensor::full(Layout::replicated(mesh, {2}), 4.0, dtype)) {}
  void fields(Fields& f) override {
    f("first", first);
    f("second", second);
    f("absent", absent);
    f("offset", buffer);
  }
  Tensor operator()(const Tensor& x) const { return second(relu(first(x))); }
};

struct Tree : nn::Module {
  std::vector<Pair> pairs;
  std::optional<nn::Linear> none;
  std::unique_ptr<nn::Linear> head;
  nn::Dropout drop{0.5};
  nn::Parameter tied;

  explicit Tree(const Mesh& mesh, std::uint64_t seed = 3) {
    pairs.emplace_back(mesh);
    pairs.emplace_back(mesh);
    head = std::make_unique<nn::Linear>(nn::LinearOptions{.in = 3, .out = 1}, mesh);
    tied = pairs[1].first.weight;
    nn::initialize(*this, seed);
  }
  void fields(Fields& f) override {
    f("pairs", pairs);
    f("none", none);
    f("head", head);
    f("drop", drop);
    f("tied", tied);
  }
};

}  // namespace

TEST_CASE("members are found by path, each parameter once") {
  Tree tree(line());
  std::vector<std::string> names;
  for (const auto& [name, p] : tree.named_parameters()) {
    CHECK(p.path() == name);
    names.push_back(name);
  }
  CHECK(names == std::vector<std::string>{"pairs.0.first.weight", "pairs.0.first.bias",
                                          "pairs.0.second.weight", "pairs.1.first.weight",
                                          "pairs.1.first.bias", "pairs.1.second.weight",
                                          "head.weight", "head.bias"});
  std::vector<std::string> buffers;
  for (const auto& [name, t] : tree.named_buffers()) buffers.push_back(name);
  CHECK(buffers == std::vector<std::string>{"pairs.0.offset", "pairs.1.offset"});
  std::vector<std::string> modules;
  for (const auto& [name, m] : tree.named_modules()) modules.push_back(name);
  CHECK(modules == std::vector<std::string>{"", "pairs.0", "pairs.0.first", "pairs.0.second",
                                            "pairs.1", "pairs.1.first", "pairs.1.second", "head",
                                            "drop"});
  CHECK(tree.parameter_count() == 2 * (35 + 7 + 21) + 4);

  tree.eval();
  CHECK_FALSE(tree.pairs[1].first.training());
  tree.train();
  CHECK(tree.pairs[1].first.training());

  const std::string table = tree.summary();
  for (const char* part :
       {"pairs.1.first.weight", "[7, 5]", "Linear 5 -> 7", "Dropout 0.5", "130"}) {
    INFO(table);
    CHECK(table.find(part) != std::string::npos);
  }
}

TEST_CASE("field names that cannot be part of a path are refused") {
  struct Bad : nn::Module {
    nn::Dropout d{0.1};
    std::string name;
    void fields(Fields& f) override { f(name, d); }
  } bad;
  bad.name = "a.b";
  CHECK_THROWS_AS(bad.named_modules(), UsageError);
  bad.name = "";
  CHECK_THROWS_AS(bad.named_modules(), UsageError);
}

TEST_CASE("a model that was not initialised says so") {
  Pair pair(line());
  CHECK_THROWS_AS(pair.first.weight(), UsageError);
  CHECK_THROWS_AS(pair.random(), UsageError);
  nn::initialize(pair, 1);
  CHECK(pair.first.weight().shape() == Shape{7, 5});
  CHECK_FALSE(pair.absent().defined());
}

TEST_CASE("initial values depend on seed and path alone") {
  const Mesh mesh = line();
  Tree a(mesh);
  Tree b(Mesh::self());
  Tree c(mesh, 4);
  std::set<double> seen;
  const auto pa = a.parameters();
  const auto pb = b.parameters();
  const auto pc = c.parameters();
  for (std::size_t i = 0; i < pa.size(); ++i) {
    const DenseArray whole = to_dense(pb[i].value());
    CHECK(compare(pa[i].path(), pa[i].value(), whole, 0.0) == "");
    CHECK(compare(pc[i].path(), pc[i].value(), whole, 0.1) != "");
    for (const double v : whole.values) CHECK(seen.insert(v).second);
  }

  // A split parameter makes its part alone.
  Tree d(mesh);
  nn::place(d, {{"*.first.weight", {.rest = Placement(mesh).shard(0, {"x"})}}});
  for (const nn::Parameter& p : d.parameters()) {
    const bool split = p.path().find("first.weight") != std::string::npos;
    CHECK(p.rest().is_split(0) == (split && mesh.size() > 1));
    CHECK(p.value().layout() == p.rest());
    for (std::size_t i = 0; i < pa.size(); ++i) {
      if (pa[i].path() == p.path()) {
        CHECK(compare(p.path(), p.value(), to_dense(pb[i].value()), 0.0) == "");
      }
    }
  }
}

TEST_CASE("initialisers have the stated moments") {
  const Mesh mesh = Mesh::self();
  const Shape shape = {64, 3, 3, 32};  // fan in 288, fan out 576
  const auto moments = [&](const nn::Init& init) {
    const DenseArray a = to_dense(init(Layout::replicated(mesh, shape), {1, 2}, DType::kFloat64));
    double mean = 0;
    double square = 0;
    for (const double v : a.values) {
      mean += v;
      square += v * v;
    }
    const auto n = static_cast<double>(a.size());
    return std::pair(mean / n, std::sqrt(square / n));
  };
  const auto check = [&](const nn::Init& init, double stddev) {
    const auto [mean, rms] = moments(init);
    CHECK(std::abs(mean) < 0.05 * stddev);
    CHECK(rms == Approx(stddev).epsilon(0.03));
  };
  CHECK(nn::fan_of(shape).in == 288);
  CHECK(nn::fan_of(shape).out == 576);
  check(nn::init::kaiming_uniform(shape), std::sqrt(2.0 / 288));
  check(nn::init::kaiming_normal(shape), std::sqrt(2.0 / 288));
  check(nn::init::kaiming_normal(shape, 1.0), std::sqrt(1.0 / 288));
  check(nn::init::xavier_uniform(shape), std::sqrt(2.0 / 864));
  check(nn::init::xavier_normal(shape), std::sqrt(2.0 / 864));
  check(nn::init::torch_default(shape), std::sqrt(1.0 / 288 / 3));
  check(nn::init::normal(0.0, 0.3), 0.3);
  CHECK(moments(nn::init::constant(2.5)).first == 2.5);
  CHECK_THROWS_AS(moments(nn::Init{}), UsageError);
  CHECK_THROWS_AS(nn::fan_of({3}), ShapeError);
}

TEST_CASE("rest and use layouts change neither values nor gradients") {
  const Mesh mesh = line();
  const DenseArray x = random_array({6, 5}, 11);
  const DenseArray seed = random_array({6, 3}, 12);
  const auto run = [&](Pair& pair, const Mesh& on) {
    nn::initialize(pair, 5);
    if (on == mesh) {
      nn::place(pair, {{"first.weight", {.rest = Placement(on).shard(1, {"x"})}},
                       {"first.bias", {.rest = Placement(on).shard(0, {"x"})}},
                       {"second.weight", {.rest = Placement(on).shard(0, {"x"})}}});
    }
    const Tensor y = pair(to_tensor(x, Layout::replicated(on, x.shape)));
    backward(sum(y * to_tensor(seed, y.layout().dual())));
    std::vector<Tensor> all = {y};
    for (const nn::Parameter& p : pair.parameters()) all.push_back(gradient(p.value()));
    return all;
  };
  Pair one(Mesh::self());
  Pair many(mesh);
  const auto expected = run(one, Mesh::self());
  const auto actual = run(many, mesh);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(compare(str("tensor ", i), actual[i], to_dense(expected[i]), 1e-13) == "");
  }
  CHECK(actual[1].layout() == many.first.weight.rest());
}

TEST_CASE("tensor parallel: columns, then rows, split in use") {
  const Mesh mesh = line();
  const DenseArray x = random_array({4, 5}, 21);
  Pair one(Mesh::self());
  Pair many(mesh);
  nn::initialize(one, 5);
  nn::initialize(many, 5);
  const Placement rows = Placement(mesh).shard(0, {"x"});
  const Placement columns = Placement(mesh).shard(1, {"x"});
  nn::place(many, {{"first.*", {.rest = rows, .use = rows}},
                   {"second.weight", {.rest = columns, .use = columns}}});
  const Tensor y = many(to_tensor(x, Layout::replicated(mesh, x.shape)));
  CHECK(compare("y", y, to_dense(one(to_self(x))), 1e-13) == "");
  if (mesh.size() > 1) CHECK(y.layout().partial_axes() == mesh.all_axes());
}

TEST_CASE("placing is refused where it means nothing") {
  const Mesh mesh = line();
  Pair pair(mesh);
  nn::initialize(pair, 1);
  CHECK_THROWS_AS(nn::place(pair, {{"third.*", {}}}), UsageError);
  CHECK_THROWS_AS(nn::place(pair, {{"first.bias", {.rest = Placement(mesh).shard(1, {"x"})}}}),
                  LayoutError);
  pair(Tensor::zeros(Layout::replicated(mesh, {2, 5}), DType::kFloat64));
  CHECK_THROWS_AS(nn::place(pair, {{"first.bias", {.rest = Placement(mesh).shard(0, {"x"})}}}),
                  UsageError);
}

TEST_CASE("patterns") {
  CHECK(nn::glob_match("*", ""));
  CHECK(nn::glob_match("*.bias", "a.b.bias"));
  CHECK_FALSE(nn::glob_match("*.bias", "bias"));
  CHECK(nn::glob_match("blocks.*.fc1.weight", "blocks.11.fc1.weight"));
  CHECK(nn::glob_match("a?c*d", "abcXdYd"));
  CHECK_FALSE(nn::glob_match("a?c", "ac"));
  CHECK(nn::glob_match("**", "x"));
  CHECK_FALSE(nn::glob_match("", "x"));
  using Taken = std::vector<std::string_view>;
  const auto taken = [](std::string_view pattern, std::string_view path) {
    Taken all;
    return nn::glob_match(pattern, path, all) ? all : Taken{"no match"};
  };
  CHECK(taken("a.*.b.*", "a.x.b.b.y") == Taken{"x", "b.y"});
  CHECK(taken("*b*b", "abcbdb") == Taken{"a", "cbd"});
  CHECK(taken("*?*", "xy") == Taken{"", "y"});
  CHECK(taken("a**", "a") == Taken{"", ""});
  CHECK(taken("a", "a").empty());
  // Thirty stars: every way to share the text out would take for ever.
  std::string stars;
  for (int i = 0; i < 30; ++i) stars += "*a";
  CHECK(taken(stars + "b", std::string(60, 'a')) == Taken{"no match"});
}

TEST_CASE("dropout draws the same on every mesh, and anew each call and step") {
  const Mesh mesh = line();
  const DenseArray x = random_array({4, 9, 3}, 31, 0.5, 1.0);
  const auto draws = [&](const Mesh& on) {
    struct Two : nn::Module {
      nn::Dropout a{0.4};
      nn::Dropout b{0.4};
      void fields(Fields& f) override {
        f("a", a);
        f("b", b);
      }
    } model;
    nn::initialize(model, 9);
    const Tensor t = to_tensor(x, on.size() > 1 ? Placement(on).shard(1, {"x"}).resolve(x.shape)
                                                : Layout::replicated(on, x.shape));
    std::vector<DenseArray> all;
    const auto draw = [&](const nn::Dropout& d) { all.push_back(to_dense(d(t))); };
    draw(model.a);
    draw(model.a);
    draw(model.b);
    model.random().step = 1;
    draw(model.a);
    model.random().micro_batch = 1;
    draw(model.a);
    model.random() = {.seed = 9};
    draw(model.a);
    model.eval();
    draw(model.a);
    return all;
  };
  const auto expected = draws(Mesh::self());
  const auto actual = draws(mesh);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(actual[i].values == expected[i].values);
    for (std::size_t j = 0; j < i; ++j) {
      const bool same = i == 5 && j == 0;  // the context of the first draw again
      CHECK((expected[i].values == expected[j].values) == same);
    }
  }
  CHECK(expected[6].values == x.values);
}

TEST_CASE("element types can be changed") {
  Pair pair(line(), DType::kFloat32);
  nn::initialize(pair, 2);
  const DenseArray before = to_dense(pair.first.weight.value());
  pair.to(DType::kFloat64);
  CHECK(pair.first.weight.value().dtype() == DType::kFloat64);
  CHECK(pair.second.weight.value().dtype() == DType::kFloat64);  // not made before
  CHECK(pair.buffer.dtype() == DType::kFloat64);
  CHECK(to_dense(pair.first.weight.value()).values == before.values);
  CHECK(requires_grad(pair.first.weight.value()));
  CHECK_THROWS_AS(pair.to(DType::kInt32), DTypeError);
}

}  // namespace tessera::test
