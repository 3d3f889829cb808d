// ranks: 1 2 3
#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/convolutions.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/nn/pools.hpp>
#include <tessera/nn/weight_names.hpp>
#include <tessera/nn/weight_norms.hpp>

#include "nn/layer_cuts.hpp"
#include "nn/shared_dir.hpp"

namespace tessera::test {
namespace {

constexpr DType kDouble = DType::kFloat64;

Mesh line() { return Mesh::world({{"x", process().count}}); }

/// Values of a parameter of a model with the seed of `outcome`.
DenseArray values(nn::Module& model, const std::string& path) {
  nn::initialize(model, 5);
  return value_of(model, path);
}

/// Zero-padded convolution of x [N, H, W, C]: w [out, k, k, C / groups], padding `lo`.
DenseArray convolved(const DenseArray& x,
                     const DenseArray& w,
                     std::int64_t lo0,
                     std::int64_t lo1,
                     std::int64_t groups = 1) {
  DenseArray y({x.shape[0], x.shape[1], x.shape[2], w.shape[0]});
  const std::int64_t per = w.shape[3], out_per = w.shape[0] / groups;
  for_each(y.shape, [&](const Index& i) {
    for_each({w.shape[1], w.shape[2], per}, [&](const Index& t) {
      const std::int64_t a = i[1] - lo0 + t[0], b = i[2] - lo1 + t[1];
      if (a < 0 || b < 0 || a >= x.shape[1] || b >= x.shape[2]) return;
      y[i] += w(i[3], t[0], t[1], t[2]) * x(i[0], a, b, i[3] / out_per * per + t[2]);
    });
  });
  return y;
}

DenseArray plus_bias(DenseArray y, const DenseArray& bias) {
  for_each(y.shape, [&](const Index& i) { y[i] += bias(i.back()); });
  return y;
}

/// The weight that spectral normalisation aims at: w over its largest singular value, by many
/// steps of the power iteration.
double largest_singular_value(const DenseArray& w) {
  const std::int64_t rows = w.shape[0], columns = w.size() / rows;
  std::vector<double> v(static_cast<std::size_t>(columns), 1.0);
  v[0] = 0.3;
  double sigma = 0;
  for (int step = 0; step < 3000; ++step) {
    std::vector<double> u(static_cast<std::size_t>(rows), 0.0), next(v.size(), 0.0);
    const auto at = [&](std::int64_t r, std::int64_t c) {
      return w.values[static_cast<std::size_t>(r * columns + c)];
    };
    double length = 0;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        u[static_cast<std::size_t>(r)] += at(r, c) * v[static_cast<std::size_t>(c)];
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        next[static_cast<std::size_t>(c)] += at(r, c) * u[static_cast<std::size_t>(r)];
    for (const double x : next) length += x * x;
    length = std::sqrt(length);
    for (std::size_t c = 0; c < v.size(); ++c) v[c] = next[c] / length;
    sigma = std::sqrt(length);
  }
  return sigma;
}

}  // namespace

TEST_CASE("causal convolutions see nothing behind an element") {
  const DenseArray x = random_array({2, 7, 5, 2}, 2);
  const auto make = [](const Mesh& mesh) {
    return nn::CausalConv({.dims = 2, .in = 2, .out = 3, .kernel = {3, 3}}, mesh, kDouble, {0});
  };
  const std::vector<DenseArray> one = check_layer_cuts(make, x.shape);
  nn::CausalConv layer = make(Mesh::self());
  const DenseArray w = values(layer, "weight"), b = values(layer, "bias");
  CHECK(compare("", one[0], plus_bias(convolved(x, w, 2, 1), b), 1e-12) == "");
  CHECK(layer.describe() == "CausalConv 2 -> 3, 3x3");

  // What comes later changes nothing before it, to the bit.
  nn::CausalConv sequence({.dims = 1, .in = 1, .out = 1, .kernel = {3}, .dilation = {2}},
                          Mesh::self(), kDouble);
  nn::initialize(sequence, 5);
  DenseArray early = random_array({1, 11, 1}, 3), late = early;
  for (std::int64_t i = 6; i < 11; ++i) late(0, i, 0) += 1;
  const DenseArray y = to_dense(sequence(to_self(early))), z = to_dense(sequence(to_self(late)));
  REQUIRE(y.shape == Shape{1, 11, 1});
  for (std::int64_t i = 0; i < 11; ++i) CHECK((y(0, i, 0) == z(0, i, 0)) == (i < 6));

  CHECK_THROWS_AS(nn::causal({.dims = 1, .in = 1, .out = 1, .pad_lo = {1}}), UsageError);
  CHECK_THROWS_AS(nn::causal({.dims = 1, .in = 1, .out = 1}, {1}), UsageError);
}

TEST_CASE("separable convolutions are one per channel and a mixture") {
  const DenseArray x = random_array({2, 7, 5, 2}, 2);
  const auto make = [](const Mesh& mesh) {
    return nn::SeparableConv(
        {.conv = {.dims = 2, .in = 2, .out = 3, .kernel = {3}}, .multiplier = 2}, mesh, kDouble);
  };
  const std::vector<DenseArray> one = check_layer_cuts(make, x.shape);
  nn::SeparableConv layer = make(Mesh::self());
  const DenseArray deep = values(layer, "depthwise.weight"), w = values(layer, "pointwise.weight"),
                   b = values(layer, "pointwise.bias");
  REQUIRE(deep.shape == Shape{4, 3, 3, 1});
  REQUIRE(w.shape == Shape{3, 1, 1, 4});
  CHECK(layer.parameters().size() == 3);
  const DenseArray expected = plus_bias(convolved(convolved(x, deep, 1, 1, 2), w, 0, 0), b);
  CHECK(compare("", one[0], expected, 1e-12) == "");
  CHECK_THROWS_AS(nn::SeparableConv({.conv = {.in = 2, .out = 2, .groups = 2}}, line()),
                  UsageError);
  CHECK_THROWS_AS(nn::SeparableConv({.conv = {.in = 2, .out = 2}, .multiplier = 0}, line()),
                  UsageError);
}

TEST_CASE("partial convolutions read no holes and grow the mask") {
  const Mesh mesh = line();
  const bool shared = GENERATE(true, false);  // one mask for all samples
  const DenseArray clean = random_array({2, 7, 6, 2}, 2);
  DenseArray x = clean, mask({shared ? 1 : 2, 7, 6, 1}, 1.0);
  for_each(mask.shape, [&](const Index& i) {
    const bool hole = i[1] < 4 && i[2] > i[0] && (i[2] < 5 || i[1] % 2 == 0);
    if (hole) mask[i] = 0;
  });
  const auto valid = [&](const Index& i) { return mask(shared ? 0 : i[0], i[1], i[2], 0); };
  for_each(x.shape, [&](const Index& i) {
    if (valid(i) == 0) x[i] = std::numeric_limits<double>::quiet_NaN();
  });
  nn::PartialConv layer({.dims = 2, .in = 2, .out = 3, .kernel = {3}}, mesh, kDouble);
  const DenseArray w = values(layer, "weight"), b = values(layer, "bias");

  DenseArray y({2, 7, 6, 3}), grown(mask.shape), dx(x.shape);
  const DenseArray dy = random_array(y.shape, 7);
  for_each(y.shape, [&](const Index& i) {
    double sum = 0, count = 0;
    const auto each = [&](const auto& f) {
      for_each({3, 3}, [&](const Index& t) {
        const Index at = {i[0], i[1] - 1 + t[0], i[2] - 1 + t[1], 0};
        if (at[1] < 0 || at[2] < 0 || at[1] >= 7 || at[2] >= 6 || valid(at) == 0) return;
        f(at, t);
      });
    };
    each([&](Index at, const Index& t) {
      count += 1;
      for (std::int64_t c = 0; c < 2; ++c) {
        at[3] = c;
        sum += w(i[3], t[0], t[1], c) * x[at];
      }
    });
    each([&](Index at, const Index& t) {
      for (std::int64_t c = 0; c < 2; ++c) {
        at[3] = c;
        dx[at] += dy[i] * w(i[3], t[0], t[1], c) * 9 / count;
      }
    });
    y[i] = count > 0 ? sum * 9 / count + b(i[3]) : 0;
    grown(shared ? 0 : i[0], i[1], i[2], 0) = count > 0 ? 1 : 0;
  });
  double holes = 0, left = 0;
  for (const double m : mask.values) holes += 1 - m;
  for (const double m : grown.values) left += 1 - m;
  REQUIRE((holes > left && left > 0));

  for (const int dim : {0, 1, 2}) {
    for (const bool split_mask : {false, true}) {
      const auto cut = [&](const Shape& shape, bool split) {
        return split && shape[dim] > 1 ? Placement(mesh).shard(dim, {"x"}).resolve(shape)
                                       : Layout::replicated(mesh, shape);
      };
      const Tensor in = require_grad(to_tensor(x, cut(x.shape, true)));
      const nn::MaskedTensor out = layer(
          in, to_tensor(mask, cut(mask.shape, split_mask), split_mask ? kDouble : DType::kBool));
      CHECK(out.mask.dtype() == (split_mask ? kDouble : DType::kBool));
      CHECK(compare("values", out.values, y, 1e-12) == "");
      CHECK(compare("mask", out.mask, grown, 0.0) == "");
      backward(sum(out.values * to_tensor(dy, out.values.layout())));
      CHECK(compare("gradient", gradient(in), dx, 1e-12) == "");
    }
  }
  CHECK_THROWS_AS(layer(to_self(clean), to_self(DenseArray({2, 7, 5, 1}))), ShapeError);
  const nn::ConvLayerOptions transposed = {.in = 2, .out = 3, .output_padding = {1}};
  CHECK_THROWS_AS(nn::PartialConv(transposed, mesh), UsageError);
  CHECK_THROWS_AS(nn::WeightNormConv(transposed, mesh), UsageError);
}

TEST_CASE("weight normalisation separates length and direction") {
  const DenseArray x = random_array({2, 7, 5, 2}, 2);
  const auto make = [](const Mesh& mesh) {
    return nn::WeightNormConv({.dims = 2, .in = 2, .out = 3, .kernel = {3}}, mesh, kDouble);
  };
  const std::vector<DenseArray> one = check_layer_cuts(make, x.shape);
  nn::WeightNormConv layer = make(Mesh::self());
  DenseArray w = values(layer, "weight.v");
  const DenseArray g = values(layer, "weight.g"), b = values(layer, "bias");
  REQUIRE(g.shape == Shape{3, 1, 1, 1});
  CHECK(g.values[0] == Approx(std::sqrt(1.0 / 3)));  // the length of a default row
  std::vector<double> length(3, 0.0);
  for_each(w.shape, [&](const Index& i) { length[static_cast<std::size_t>(i[0])] += w[i] * w[i]; });
  for_each(w.shape, [&](const Index& i) {
    w[i] *= g.values[static_cast<std::size_t>(i[0])] /
            std::sqrt(length[static_cast<std::size_t>(i[0])]);
  });
  CHECK(compare("", one[0], plus_bias(convolved(x, w, 1, 1), b), 1e-12) == "");

  nn::WeightNormLinear linear({.in = 2, .out = 3}, Mesh::self(), kDouble);
  nn::initialize(linear, 5);
  const Tensor in = to_self(random_array({4, 2}, 1));
  const Tensor y = linear(in);
  // A longer v changes nothing.
  const View v = linear.weight.v.value().mutable_local();
  for (std::int64_t i = 0; i < v.size(); ++i) v.as<double>()[i] *= 3;
  CHECK(compare("", linear(in), to_dense(y), 1e-13) == "");
  CHECK_THROWS_AS(nn::WeightNormLinear({.in = 0, .out = 3}, Mesh::self()), UsageError);
}

TEST_CASE("other programs find the weights of convolutions channels first") {
  const Mesh mesh = line();
  const SharedDir dir(nn::collective(mesh));
  const auto check = [&](const char* file, auto& layer, auto& other, const char* name) {
    nn::initialize(layer, 5);
    nn::initialize(other, 6);
    nn::export_weights(dir / file, layer);
    CHECK(io::SafetensorsReader(dir / file).entry(name).shape == Shape{3, 2, 1, 4});
    nn::import_weights(dir / file, other);
    const auto a = layer.named_parameters(), b = other.named_parameters();
    for (std::size_t i = 0; i < a.size(); ++i)
      CHECK(compare(a[i].first, b[i].second.value(), to_dense(a[i].second.value()), 0.0) == "");
  };
  const nn::ConvLayerOptions o = {.dims = 2, .in = 2, .out = 3, .kernel = {1, 4}};
  nn::PartialConv partial(o, mesh), partial_too(o, mesh);
  check("partial", partial, partial_too, "weight");
  nn::WeightNormConv weight(o, mesh), weight_too(o, mesh);
  check("weight", weight, weight_too, "weight.v");
  nn::SpectralNormConv spectral(o, mesh), spectral_too(o, mesh);
  check("spectral", spectral, spectral_too, "weight.weight");
}

TEST_CASE("spectral normalisation divides by the largest singular value") {
  const Mesh mesh = line();
  const SharedDir dir(nn::collective(mesh));
  const DenseArray x = random_array({2, 7, 5, 2}, 2);
  const auto make = [](const Mesh& on) {
    return nn::SpectralNormConv({.dims = 2, .in = 2, .out = 4, .kernel = {3}}, on, kDouble);
  };
  check_layer_cuts(make, x.shape);
  nn::SpectralNormConv layer = make(mesh), loaded = make(mesh), one = make(Mesh::self());
  DenseArray w = values(layer, "weight.weight");
  const DenseArray b = values(layer, "bias");
  const Tensor in = to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape));
  for (int step = 0; step < 200; ++step) layer(in);
  const double sigma = largest_singular_value(w);
  for (double& v : w.values) v /= sigma;
  const DenseArray expected = plus_bias(convolved(x, w, 1, 1), b);
  CHECK(compare("", layer(in), expected, 1e-6) == "");

  // Evaluation takes no step; what is loaded goes on where the other stopped.
  layer.eval();
  const DenseArray y = to_dense(layer(in));
  CHECK(compare("", layer(in), y, 0.0) == "");
  nn::save_weights(dir / "w.safetensors", layer);
  nn::initialize(loaded, 8);
  nn::load_weights(dir / "w.safetensors", loaded);
  loaded.eval();
  CHECK(compare("", loaded(in), y, 0.0) == "");

  // The gradient is that of w / (u' W v) with u and v fixed.
  nn::initialize(one, 5);
  one(to_self(x));
  one.eval();
  const DenseArray dy = random_array({2, 7, 5, 4}, 3);
  const auto loss = [&] { return dot(to_dense(one(to_self(x))), dy); };
  backward(sum(one(to_self(x)) * to_self(dy)));
  const DenseArray dw = to_dense(gradient(one.weight.weight.value()));
  const View weight = one.weight.weight.value().mutable_local();
  for (const std::int64_t i : {0, 7, 40}) {
    double& value = weight.as<double>()[i];
    const double at = value, h = 1e-5;
    value = at + h;
    const double up = loss();
    value = at - h;
    const double down = loss();
    value = at;
    CHECK(dw.values[static_cast<std::size_t>(i)] == Approx((up - down) / (2 * h)).epsilon(1e-6));
  }
}

TEST_CASE("two uses before one backward, and computing again, with spectral normalisation") {
  const auto make = [] {
    return nn::SpectralNormLinear({.in = 3, .out = 2}, Mesh::self(), kDouble);
  };
  const Tensor x = to_self(random_array({4, 3}, 1));
  nn::SpectralNormLinear twice = make();
  nn::initialize(twice, 5);
  backward(sum(twice(x) * twice(x)));
  CHECK(gradient(twice.weight.weight.value()).defined());

  const auto run = [&](bool again) {
    nn::SpectralNormLinear layer = make();
    nn::initialize(layer, 5);
    if (again) nn::recompute(layer, "");
    for (int step = 0; step < 3; ++step) backward(sum(layer(x) * to_self(random_array({4, 2}, 2))));
    return std::vector{to_dense(gradient(layer.weight.weight.value())), to_dense(layer.weight.u)};
  };
  const auto plain = run(false), again = run(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(plain[i].values == again[i].values);
  nn::SpectralNormLinear stale = make();
  nn::initialize(stale, 5);
  nn::recompute(stale, "");
  const Tensor first = stale(x);
  stale(x);
  CHECK_THROWS_AS(backward(sum(first * first)), UsageError);
}

TEST_CASE("pooling layers") {
  const Mesh mesh = line();
  const DenseArray x = random_array({2, 9, 6, 3}, 2);
  const Tensor in = to_tensor(x, Placement(mesh).shard(1, {"x"}).resolve(x.shape));
  DenseArray mean({2, 3}), most({2, 3}, -2.0), bins({2, 3, 3, 3});
  for_each(x.shape, [&](const Index& i) {
    mean(i[0], i[3]) += x[i] / 54;
    most(i[0], i[3]) = std::max(most(i[0], i[3]), x[i]);
    bins(i[0], i[1] / 3, i[2] / 2, i[3]) += x[i] / 6;
  });
  CHECK(compare("mean", nn::GlobalAvgPool()(in), mean, 1e-13) == "");
  CHECK(compare("maximum", nn::GlobalMaxPool()(in), most, 0.0) == "");
  CHECK(compare("bins", nn::AdaptiveAvgPool({3, 3})(in), bins, 1e-13) == "");
  CHECK(nn::AdaptiveMaxPool({4, 2})(in).shape() == Shape{2, 4, 2, 3});
}

}  // namespace tessera::test
