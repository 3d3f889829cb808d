// ranks: 1 2 3 4
#include <cmath>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/recurrent.hpp>

#include "nn/layer_cuts.hpp"

namespace tessera::test {
namespace {

double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// A layer over x [N, T, ...] gives one answer for every cut of anything but time.
template <class Make>
void check_cuts(const Make& make, const Shape& shape, const DenseArray& expected) {
  auto one = make(Mesh::self());
  const DenseArray x = random_array(shape, 2);
  std::vector<DenseArray> whole;
  for (const Tensor& t : outcome(one, to_self(x))) whole.push_back(to_dense(t));
  CHECK(compare("loops", whole[0], expected, 1e-12) == "");
  std::vector<int> cuttable = {0};
  for (int d = 2; d + 1 < shape.size(); ++d) cuttable.push_back(d);
  Rng rng(from_process_0(run_seed()));
  for (const Mesh& mesh : test_meshes()) {
    for (int variant = 0; variant < 4; ++variant) {
      std::vector<int> dims;
      std::size_t next = static_cast<std::size_t>(variant);
      for (int a = 0; a < mesh.axis_count(); ++a)
        dims.push_back(a < static_cast<int>(cuttable.size()) ? cuttable[next++ % cuttable.size()]
                                                             : -1);
      const Layout layout = draw_layout(mesh, shape, dims, variant, rng);
      INFO("input " << layout.str());
      auto many = make(mesh);
      const std::vector<Tensor> actual = outcome(many, to_tensor(x, layout));
      for (std::size_t i = 0; i < actual.size(); ++i)
        CHECK(compare(str("tensor ", i), actual[i], whole[i], 1e-11, 1e-3) == "");
    }
  }
}

constexpr int kIn = 2, kHidden = 3, kSteps = 4;

/// x [2, 4, 5, 2], each point of the domain by itself; `step` changes h and c, given W x + b and
/// V h + d for the point.
using Step = std::function<void(const std::vector<double>& from_x,
                                const std::vector<double>& from_h,
                                std::vector<double>& h,
                                std::vector<double>& c)>;

DenseArray loops(nn::Module& model, int gates, bool bias, const Step& step) {
  const DenseArray x = random_array({2, kSteps, 5, kIn}, 2);
  const DenseArray w = value_of(model, "cell.weight_ih"), v = value_of(model, "cell.weight_hh");
  DenseArray b({gates * kHidden}), d({gates * kHidden});
  if (bias) b = value_of(model, "cell.bias_ih"), d = value_of(model, "cell.bias_hh");
  DenseArray y({2, kSteps, 5, kHidden});
  for_each({2, 5}, [&](const Index& i) {
    std::vector<double> h(kHidden, 0.0), c(kHidden, 0.0);
    for (int t = 0; t < kSteps; ++t) {
      std::vector<double> from_x, from_h;
      for (int g = 0; g < gates * kHidden; ++g) {
        double sum_x = b(g), sum_h = d(g);
        for (int k = 0; k < kIn; ++k) sum_x += w(g, k) * x(i[0], t, i[1], k);
        for (int k = 0; k < kHidden; ++k) sum_h += v(g, k) * h[static_cast<std::size_t>(k)];
        from_x.push_back(sum_x);
        from_h.push_back(sum_h);
      }
      step(from_x, from_h, h, c);
      for (int k = 0; k < kHidden; ++k) y(i[0], t, i[1], k) = h[static_cast<std::size_t>(k)];
    }
  });
  return y;
}

}  // namespace

TEST_CASE("lstm") {
  const bool bias = GENERATE(true, false);
  const auto make = [&](const Mesh& mesh) {
    return nn::Recurrent(
        nn::LstmCell({.in = kIn, .hidden = kHidden, .bias = bias}, mesh, DType::kFloat64));
  };
  auto model = make(Mesh::self());
  nn::initialize(model, 5);
  check_cuts(make, {2, kSteps, 5, kIn},
             loops(model, 4, bias, [](const auto& x, const auto& h_in, auto& h, auto& c) {
               for (std::size_t k = 0; k < kHidden; ++k) {
                 const auto gate = [&](std::size_t g) {
                   return x[g * kHidden + k] + h_in[g * kHidden + k];
                 };
                 c[k] = sigmoid_of(gate(1)) * c[k] + sigmoid_of(gate(0)) * std::tanh(gate(2));
                 h[k] = sigmoid_of(gate(3)) * std::tanh(c[k]);
               }
             }));
}

TEST_CASE("gru") {
  const auto make = [&](const Mesh& mesh) {
    return nn::Recurrent(nn::GruCell({.in = kIn, .hidden = kHidden}, mesh, DType::kFloat64));
  };
  auto model = make(Mesh::self());
  nn::initialize(model, 5);
  check_cuts(make, {2, kSteps, 5, kIn},
             loops(model, 3, true, [](const auto& x, const auto& h_in, auto& h, auto&) {
               for (std::size_t k = 0; k < kHidden; ++k) {
                 const double r = sigmoid_of(x[k] + h_in[k]);
                 const double z = sigmoid_of(x[kHidden + k] + h_in[kHidden + k]);
                 const double n = std::tanh(x[2 * kHidden + k] + r * h_in[2 * kHidden + k]);
                 h[k] = (1 - z) * n + z * h[k];
               }
             }));
}

TEST_CASE("convolutional lstm in 1 to 3 dimensions") {
  const int dims = GENERATE(1, 2, 3);
  Shape shape = {2, 3};
  const Shape domain = dims == 1 ? Shape{7} : dims == 2 ? Shape{5, 4} : Shape{3, 4, 3};
  for (const std::int64_t n : domain) shape.push_back(n);
  shape.push_back(kIn);
  const auto make = [&](const Mesh& mesh) {
    return nn::Recurrent(nn::ConvLstmCell(
        {.dims = dims, .in = kIn, .hidden = kHidden, .edges = {EdgeRule::kCircular}}, mesh,
        DType::kFloat64));
  };
  auto model = make(Mesh::self());
  nn::initialize(model, 5);
  const DenseArray w = value_of(model, "cell.gates.weight");
  const DenseArray b = value_of(model, "cell.gates.bias");
  const DenseArray x = random_array(shape, 2);
  Shape state = shape;
  state.erase(1);
  state.back() = kHidden;
  DenseArray h(state), c(state);
  Shape result = shape;
  result.back() = kHidden;
  DenseArray y(result);
  const Shape kernel = Shape::filled(dims, 3);
  for (int t = 0; t < 3; ++t) {
    const DenseArray before = h;
    for_each(state, [&](const Index& i) {
      const std::int64_t k = i.back();
      double gate[4];
      for (int g = 0; g < 4; ++g) {
        gate[g] = b(g * kHidden + k);
        for_each(kernel, [&](const Index& tap) {
          Index at = i;
          Index weight = {g * kHidden + k};
          for (int d = 0; d < dims; ++d) {
            at[d + 1] = (i[d + 1] + tap[d] - 1 + domain[d]) % domain[d];
            weight.push_back(tap[d]);
          }
          weight.push_back(0);
          Index from = at;
          from.insert(1, t);
          for (int channel = 0; channel < kIn + kHidden; ++channel) {
            weight.back() = channel;
            from.back() = channel;
            at.back() = channel - kIn;
            gate[g] += w[weight] * (channel < kIn ? x[from] : before[at]);
          }
        });
      }
      c[i] = sigmoid_of(gate[1]) * c[i] + sigmoid_of(gate[0]) * std::tanh(gate[2]);
      h[i] = sigmoid_of(gate[3]) * std::tanh(c[i]);
      Index to = i;
      to.insert(1, t);
      y[to] = h[i];
    });
  }
  check_cuts(make, shape, y);
}

TEST_CASE("a recurrence goes on from a state") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  nn::LstmCell cell({.in = kIn, .hidden = kHidden}, mesh, DType::kFloat64);
  nn::initialize(cell, 5);
  const DenseArray x = random_array({4, 11, kIn}, 2);
  const Tensor whole = to_tensor(x, Placement(mesh).shard(0, {"x"}).resolve(x.shape));
  const nn::Unrolled all = nn::unroll(cell, whole);
  const nn::Unrolled first = nn::unroll(cell, slice(whole, 1, 0, 5));
  const nn::Unrolled rest = nn::unroll(cell, slice(whole, 1, 5, 11), first.state);
  CHECK(all.output.shape() == Shape{4, 11, kHidden});
  CHECK(compare("output", concat({first.output, rest.output}, 1), to_dense(all.output), 1e-14) ==
        "");
  CHECK(compare("cell", rest.state.cell, to_dense(all.state.cell), 1e-14) == "");
  nn::Recurrent last(nn::LstmCell({.in = kIn, .hidden = kHidden}, mesh, DType::kFloat64), true);
  nn::initialize(last, 5);
  CHECK(last(whole).shape() == Shape{4, kHidden});
  CHECK(last.parameters()[0].path() == "cell.weight_ih");
}

TEST_CASE("bf16 in the cells, and what they refuse") {
  const Mesh mesh = Mesh::world({{"x", process().count}});
  nn::Recurrent layer(nn::GruCell({.in = kIn, .hidden = kHidden}, mesh));
  nn::initialize(layer, 5);
  const Tensor x = to_tensor(random_array({2, 3, kIn}, 2), Layout::replicated(mesh, {2, 3, kIn}),
                             DType::kFloat32);
  const DenseArray exact = to_dense(layer(x));
  nn::compute_in(layer, DType::kBFloat16);
  const Tensor y = layer(x);
  CHECK(y.dtype() == DType::kBFloat16);
  CHECK(compare("bf16", y, exact, 2e-2) == "");
  CHECK_THROWS_AS(nn::LstmCell({.in = 0, .hidden = 3}, mesh), UsageError);
  CHECK_THROWS_AS(nn::ConvLstmCell({.dims = 2, .in = 2}, mesh), UsageError);
  CHECK_THROWS_AS(layer(Tensor::zeros(Layout::replicated(mesh, {2, 0, kIn}))), ShapeError);
  if (mesh.size() > 1) {
    const Layout in_time = Placement(mesh).shard(1, {"x"}).resolve({2, 8, kIn});
    CHECK_THROWS_AS(layer(Tensor::zeros(in_time)), LayoutError);
  }
}

}  // namespace tessera::test
