// ranks: 1 2 3 4
#include <tessera/models/unetr.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::Unetr;
using models::UnetrOptions;

UnetrOptions small(int dims) {
  UnetrOptions o;
  o.dims = dims;
  o.levels = 2;
  o.channels = 8;
  o.depth = 3;
  o.heads = 2;
  o.mlp_ratio = 2;
  o.base = 2;
  o.norm_groups = 2;
  return o;
}

}  // namespace

TEST_CASE("unetr: any mesh gives one answer") {
  UnetrOptions o = small(2);
  o.in_channels = 3;
  o.out_channels = 2;
  SECTION("odd sizes, dropout") {
    o.dropout = 0.2;
    check_cuts<Unetr>(o, {2, 15, 18, 3}, 2);
  }
  SECTION("one level") {
    o.levels = 1;
    o.depth = 1;
    check_cuts<Unetr>(o, {3, 5, 7, 3}, 2, 1);
  }
  SECTION("a circle, finer output, three levels, no norm") {
    o.edges = {EdgeRule::kReplicate, EdgeRule::kCircular};
    o.levels = 3;
    o.norm_groups = 0;
    o.activation = Activation::kRelu;
    o.kernel = 5;
    o.upscale = 2;
    o.input_skip = models::InputSkip::kLinear;
    o.conserve_means = true;
    o.detail_scale = 0.5;
    check_cuts<Unetr>(o, {2, 11, 24, 3}, 2);
  }
}

TEST_CASE("unetr in one and three dimensions") {
  check_cuts<Unetr>(small(1), {2, 21, 1}, 1);
  check_cuts<Unetr>(small(3), {1, 7, 6, 9, 1}, 3, 1);
}

TEST_CASE("unetr: training is the same on any mesh") {
  check_training<Unetr>(small(2), {2, 13, 18, 1}, 2, 6, 0.1);
}

TEST_CASE("unetr in bf16, with and without recomputation") {
  UnetrOptions o = small(2);
  o.channels = 16;
  o.base = 8;
  check_narrow<Unetr>(o, {1, 14, 18, 1});
}

TEST_CASE("unetr has the sizes it says") {
  UnetrOptions o = small(2);
  Unetr model(o, Mesh::self());
  CHECK(model.total_stride() == 4);
  const auto zeros = [](const Shape& s) {
    return Tensor::zeros(Layout::replicated(Mesh::self(), s));
  };
  for (const std::int64_t n : {1, 3, 5, 7, 12})
    CHECK(model(zeros({1, n, n + 1, 1})).shape() == Shape{1, n, n + 1, 1});
  CHECK_THROWS_AS(model(zeros({1, 8, 8, 2})), ShapeError);
  CHECK_THROWS_AS(model(zeros({1, 8, 1})), ShapeError);

  const auto refused = [](auto change) {
    UnetrOptions wrong = small(2);
    change(wrong);
    CHECK_THROWS_AS(Unetr(wrong, Mesh::self()), UsageError);
  };
  refused([](UnetrOptions& w) { w.dims = 4; });
  refused([](UnetrOptions& w) { w.levels = 0; });
  refused([](UnetrOptions& w) { w.depth = 1; });
  refused([](UnetrOptions& w) { w.kernel = 2; });
  refused([](UnetrOptions& w) { w.base = 0; });
  refused([](UnetrOptions& w) { w.base = 3; });   // two groups of the norms
  refused([](UnetrOptions& w) { w.heads = 3; });  // of 8 channels
  refused([](UnetrOptions& w) {
    w.out_channels = 2;
    w.conserve_means = true;
  });
}

TEST_CASE("unetr has the weights of its paper's plan") {
  for (int dims = 1; dims <= 3; ++dims) {
    UnetrOptions o = small(dims);
    o.in_channels = 3;
    o.out_channels = 5;
    o.levels = 4;
    o.depth = 9;
    const auto power = [&](std::int64_t n) {
      std::int64_t p = 1;
      for (int d = 0; d < dims; ++d) p *= n;
      return p;
    };
    const auto conv = [&](std::int64_t in, std::int64_t out, std::int64_t kernel) {
      return in * out * power(kernel) + out;
    };
    const auto block = [&](std::int64_t in, std::int64_t out) {
      return 2 * in + conv(in, out, 3) + 2 * out + conv(out, out, 3) +
             (in == out ? 0 : conv(in, out, 1));
    };
    const std::int64_t c = o.channels;
    const std::int64_t transformer =
        conv(3, c, 16) + 2 * c + o.depth * (2 * 2 * c + 4 * (c * c + c) + (2 * 2 * c * c + 3 * c));
    const auto ascent = [&](std::int64_t in, std::int64_t out) {
      return conv(in, out, 2) + block(2 * out, out);
    };
    // Figure 1: from the tokens after a quarter of the blocks to half the input's resolution, ...
    const std::int64_t rises = conv(c, 4, 2) + 2 * (conv(4, 4, 2) + block(4, 4)) +  // level 1
                               conv(c, 8, 2) + conv(8, 8, 2) + block(8, 8) +        // level 2
                               conv(c, 16, 2);                                      // level 3
    const std::int64_t decoder = conv(3, 2, 3) + block(2, 2) + ascent(c, 16) + ascent(16, 8) +
                                 ascent(8, 4) + ascent(4, 2) + 2 * 2 + conv(2, 5, 3);
    CHECK(Unetr(o, Mesh::self()).parameter_count() == transformer + rises + decoder);
  }
}

TEST_CASE("unetr: every skip matters, and comes from the depth it says") {
  UnetrOptions o = small(2);
  o.levels = 4;
  o.depth = 9;
  o.base = 4;
  const Tensor x = to_self(random_array({1, 32, 16, 1}, 3));
  // The weights below these paths set to zero, the output and the gradients of the rest.
  const auto changed = [&](const std::vector<std::string>& zeroed) {
    Unetr model(o, Mesh::self(), DType::kFloat64);
    stir(model, 7);
    for (const auto& [name, p] : model.named_parameters()) {
      for (const std::string& prefix : zeroed) {
        if (name.starts_with(prefix)) {
          const View v = p.value().mutable_local();
          for (std::int64_t i = 0; i < v.size(); ++i) store_double(v.data, v.dtype, i, 0.0);
        }
      }
    }
    return model;
  };
  Unetr whole = changed({});
  const DenseArray y = to_dense(whole(x));
  for (const std::string path : {"rises.0.", "rises.1.", "rises.2.", "input_block.", "input_conv.",
                                 "up.0.transposed", "blocks.0.", "blocks.8."}) {
    INFO(path);
    Unetr model = changed({path});
    CHECK(compare("zeroed", model(x), y, 1e-6) != "");
  }

  // With all ways but one closed, only the blocks before it get gradients.
  struct Way {
    std::string open;
    int blocks;
  };
  for (const Way& way : {Way{"rises.2.", 2}, Way{"rises.1.", 4}, Way{"rises.0.", 6},
                         Way{"up.0.", 9}, Way{"input", 0}}) {
    std::vector<std::string> closed;
    for (const std::string path : {"rises.2.steps.0", "rises.1.steps.0", "rises.0.steps.0",
                                   "up.0.transposed", "input_block.", "input_conv."})
      if (!path.starts_with(way.open)) closed.push_back(path);
    Unetr model = changed(closed);
    backward(sum(model(x) * to_tensor(random_array(y.shape, 5), x.layout().dual())));
    int reached = 0;
    for (const auto& [name, p] : model.named_parameters()) {
      if (name.ends_with("mlp.fc2.weight") && to_dense(gradient(p.value())).largest() > 1e-12)
        ++reached;
    }
    INFO(way.open);
    CHECK(reached == way.blocks);
  }
}

TEST_CASE("unetr: edges can be changed afterwards, and a circle has no seam") {
  UnetrOptions o = small(2);
  o.detail_scale = 0.1;
  o.input_skip = models::InputSkip::kCubic;
  o.upscale = 2;
  const auto make = [&] {
    Unetr model(o, Mesh::self(), DType::kFloat64);
    stir(model, 7);
    return model;
  };
  Unetr model = make();
  o.edges = {EdgeRule::kReplicate, EdgeRule::kCircular};
  Unetr other = make();
  const DenseArray x = random_array({1, 6, 16, 1}, 5);
  CHECK(compare("before", model(to_self(x)), to_dense(other(to_self(x))), 1e-12) != "");
  model.set_edges(o.edges);
  CHECK(compare("after", model(to_self(x)), to_dense(other(to_self(x))), 0.0) == "");
  CHECK_THROWS_AS(model.set_edges(std::vector<EdgeRule>(3, EdgeRule::kZero)), UsageError);

  DenseArray shifted = x;
  for_each(x.shape, [&](const Index& i) { shifted[{i[0], i[1], (i[2] + 4) % 16, i[3]}] = x[i]; });
  const DenseArray y = to_dense(other(to_self(x)));
  DenseArray expected = y;
  for_each(y.shape, [&](const Index& i) { expected[{i[0], i[1], (i[2] + 8) % 32, i[3]}] = y[i]; });
  CHECK(compare("shifted", other(to_self(shifted)), expected, 1e-10) == "");
}

TEST_CASE("unetr: untrained, it interpolates") {
  UnetrOptions o = small(2);
  o.input_skip = models::InputSkip::kCubic;
  o.upscale = 2;
  Unetr model(o, Mesh::self(), DType::kFloat64);
  const Tensor x = to_self(random_array({2, 6, 7, 1}, 4));
  const DenseArray fine = to_dense(nn::upsample(x, 2, InterpolateMode::kCubic));
  CHECK(compare("untrained", model(x), fine, 1e-12) == "");
}

}  // namespace tessera::test
