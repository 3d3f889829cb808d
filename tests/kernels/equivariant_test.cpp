// ranks: 1

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <tessera/core/error.hpp>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/equivariant.hpp>
#include <vector>

#include "support/dense.hpp"

using namespace tessera;
using namespace tessera::kernels;
using tessera::test::Rng;

namespace {

/// Values that own their memory.
template <class T>
struct Values {
  std::vector<T> values;
  View view;

  Values() = default;
  explicit Values(const Shape& shape, Rng* rng = nullptr)
      : values(static_cast<std::size_t>(shape.product())) {
    if (rng != nullptr)
      for (T& x : values) x = static_cast<T>(rng->real(-1.0, 1.0));
    view = View::dense(values.data(), dtype_of<T>, shape);
  }
  Values(const Values& other) : values(other.values), view(other.view) {
    view.data = values.data();
  }
  Values& operator=(const Values&) = delete;
};
using Doubles = Values<double>;

View integers(std::vector<std::int64_t>& values) {
  return View::dense(values.data(), DType::kInt64, {static_cast<std::int64_t>(values.size())});
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.values.size(); ++i) sum += a.values[i] * b.values[i];
  return sum;
}

Doubles moved(const Doubles& x, double step, const Doubles& direction) {
  Doubles y = x;
  for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] += step * direction.values[i];
  return y;
}

/// Largest difference of (plus - minus) / 2h to `exact`, relative to its largest element.
double error(const Doubles& plus, const Doubles& minus, double step, const Doubles& exact) {
  double worst = 0.0;
  double largest = 1e-3;
  for (std::size_t i = 0; i < exact.values.size(); ++i) {
    worst = std::max(worst,
                     std::abs((plus.values[i] - minus.values[i]) / (2 * step) - exact.values[i]));
    largest = std::max(largest, std::abs(exact.values[i]));
  }
  return worst / largest;
}

constexpr double kStep = 1e-4;

}  // namespace

TEST_CASE("harmonics at one direction, and their normalisation for any l") {
  Doubles v({1, 3});
  v.values = {1.0, 2.0, 3.0};
  Doubles y({1, 16});
  spherical_harmonics(3, {}, v.view, {}, y.view);
  const double expected[16] = {1,
                               .462910049886,
                               .925820099773,
                               1.388730149659,
                               .829925002759,
                               .553283335172,
                               -.15971914125,
                               1.659850005517,
                               1.106566670345,
                               1.038174418125,
                               1.173691194654,
                               .18557687224,
                               -1.111167799007,
                               .556730616719,
                               1.564921592872,
                               .718736135625};
  for (std::size_t i = 0; i < 16; ++i) CHECK(y.values[i] == Approx(expected[i]).epsilon(1e-11));
  Doubles all({1, irreps_rows(10)});
  spherical_harmonics(10, {}, v.view, {}, all.view);
  for (int l = 0; l <= 10; ++l) {
    double sum = 0.0;
    for (int m = -l; m <= l; ++m) {
      const double x = all.values[static_cast<std::size_t>(l * l + l + m)];
      sum += x * x;
    }
    CHECK(sum == Approx(2 * l + 1).epsilon(1e-13));
  }
  // The product of Y_1 and Y_{l-1} couples to a positive multiple of Y_l.
  for (int l = 2; l <= 10; ++l) {
    const auto& c = wigner_3j(1, l - 1, l);
    double along = 0.0, square = 0.0;
    for (int k = 0; k <= 2 * l; ++k) {
      double product = 0.0;
      for (int a = 0; a < 3; ++a)
        for (int b = 0; b < 2 * l - 1; ++b)
          product += c[static_cast<std::size_t>((a * (2 * l - 1) + b) * (2 * l + 1) + k)] *
                     all.values[static_cast<std::size_t>(1 + a)] *
                     all.values[static_cast<std::size_t>((l - 1) * (l - 1) + b)];
      along += product * all.values[static_cast<std::size_t>(l * l + k)];
      square += product * product;
    }
    CHECK(along == Approx(std::sqrt(square * (2 * l + 1))).epsilon(1e-12));
  }
}

TEST_CASE("derivatives of harmonics along directions") {
  Rng rng(3);
  const Doubles v({5, 3}, &rng);
  const Doubles a({5, 3}, &rng), b({5, 3}, &rng), c({5, 3}, &rng), g({5, 25}, &rng);
  std::vector<View> directions{b.view, c.view, a.view};
  for (std::size_t order = 0; order < 3; ++order) {
    const std::span<const View> given(directions.data(), order);
    std::vector<View> more(given.begin(), given.end());
    more.push_back(a.view);
    const Doubles up = moved(v, kStep, a), down = moved(v, -kStep, a);
    Doubles plus({5, 25}), minus({5, 25}), exact({5, 25});
    spherical_harmonics(4, {}, up.view, given, plus.view);
    spherical_harmonics(4, {}, down.view, given, minus.view);
    spherical_harmonics(4, {}, v.view, more, exact.view);
    CHECK(error(plus, minus, kStep, exact) < 1e-5);
    // The gradient by v is the same along each axis.
    Doubles gradient({5, 3});
    spherical_harmonics(4, g.view, v.view, given, gradient.view);
    CHECK(dot(gradient, a) == Approx(dot(g, exact)).epsilon(1e-12));
  }
  directions.push_back(a.view);
  Doubles y({5, 25});
  CHECK_THROWS_AS(spherical_harmonics(4, {}, v.view, directions, y.view), NotSupported);
}

TEST_CASE("symmetric contraction: derivatives along directions are consistent") {
  Rng rng(4);
  const std::int64_t nodes = 6, channels = 11;
  const std::int64_t weights = contraction_weights(2, 1, 3, CouplingBasis::kFull);
  const Doubles a({nodes, 9, channels}, &rng), w({2, weights, channels}, &rng),
      g({nodes, 4, channels}, &rng), p({nodes, 9, channels}, &rng), q({nodes, 9, channels}, &rng),
      r({nodes, 9, channels}, &rng);
  std::vector<std::int64_t> species{0, 1, 1, 0, 1, 0};
  std::vector<View> directions{p.view, q.view, r.view};
  SymmetricContraction c;
  c.lmax = 2;
  c.l_out = 1;
  c.g = g.view;
  c.w = w.view;
  c.species = integers(species);
  const auto outputs = [&](const Doubles& at, std::span<const View> along) {
    Doubles b({nodes, 4, channels});
    c.a = at.view;
    c.directions = along;
    symmetric_contraction(c, ContractionSlot::kG, b.view);
    return b;
  };
  for (std::size_t order = 0; order <= 3; ++order) {
    const std::span<const View> given(directions.data(), order);
    const Doubles b = outputs(a, given);
    Doubles by_w({2, weights, channels});
    symmetric_contraction(c, ContractionSlot::kW, by_w.view);
    CHECK(dot(by_w, w) == Approx(dot(b, g)).epsilon(1e-12));
    Doubles by_a({nodes, 9, channels});
    symmetric_contraction(c, ContractionSlot::kA, by_a.view);
    if (order == 3) {
      CHECK(dot(by_a, by_a) == 0.0);
      continue;
    }
    std::vector<View> more(given.begin(), given.end());
    more.push_back(directions[order]);
    const Doubles& along = order == 0 ? p : order == 1 ? q : r;
    const Doubles exact = outputs(a, more);
    CHECK(dot(by_a, along) == Approx(dot(exact, g)).epsilon(1e-12));
    CHECK(error(outputs(moved(a, kStep, along), given), outputs(moved(a, -kStep, along), given),
                kStep, exact) < 1e-6);
  }
  species[2] = 2;
  CHECK_THROWS_AS(outputs(a, {}), ShapeError);
}

namespace {

template <class T>
struct ConvolutionData {
  static constexpr std::int64_t kChannels = 32, kHidden = 20, kNodes = 9, kRows = 11;
  const TensorPaths& paths = tensor_paths(1, 3, 2);
  std::vector<std::int64_t> receivers, senders;  // made together, in this order
  Values<T> g, u, y, h, w;
  EdgeConvolution c;

  explicit ConvolutionData(Rng& rng)
      : senders(edges(rng)),
        g({kNodes, paths.rows, kChannels}, &rng),
        u({kRows, 4, kChannels}, &rng),
        y({count(), 16}, &rng),
        h({count(), kHidden}, &rng),
        w({kHidden, paths.count() * kChannels}, &rng) {
    c.paths = &paths;
    c.g = g.view;
    c.u = u.view;
    c.y = y.view;
    c.h = h.view;
    c.w = w.view;
    c.senders = integers(senders);
    c.receivers = integers(receivers);
    c.row_count = kRows;
    c.node_count = kNodes;
    c.channels = kChannels;
  }
  /// One node has more edges than several blocks.
  std::vector<std::int64_t> edges(Rng& rng) {
    std::vector<std::int64_t> from;
    for (std::int64_t i = 0; i < kNodes; ++i)
      for (std::int64_t e = 0; e < (i == 4 ? 300 : i == 6 ? 0 : 13 + i); ++e) {
        receivers.push_back(i);
        from.push_back(rng.integer(0, kRows - 1));
      }
    return from;
  }
  std::int64_t count() const { return static_cast<std::int64_t>(senders.size()); }
};

template <class T>
struct Gradients {
  Values<T> g, u, y, h, w;
  explicit Gradients(const ConvolutionData<T>& d)
      : g(d.g.view.shape),
        u(d.u.view.shape),
        y(d.y.view.shape),
        h(d.h.view.shape),
        w(d.w.view.shape) {}
  EdgeConvolutionGradients wanted(int mask) const {
    const auto view = [&](int bit, const View& v) { return (mask >> bit & 1) != 0 ? v : View{}; };
    return {view(0, g.view), view(1, u.view), view(2, y.view), view(3, h.view), view(4, w.view)};
  }
};

}  // namespace

TEST_CASE("convolution: all subsets of gradients and any number of threads give the same bits") {
  Rng rng(8);
  const ConvolutionData<double> data(rng);
  const int threads = thread_count();
  set_thread_count(1);
  const Gradients<double> all(data);
  edge_convolution(data.c, all.wanted(31));
  // The form is linear in each argument.
  const double value = dot(all.g, data.g);
  REQUIRE(std::abs(value) > 1.0);
  CHECK(dot(all.u, data.u) == Approx(value).epsilon(1e-11));
  CHECK(dot(all.y, data.y) == Approx(value).epsilon(1e-11));
  CHECK(dot(all.h, data.h) == Approx(value).epsilon(1e-11));
  CHECK(dot(all.w, data.w) == Approx(value).epsilon(1e-11));
  for (const int count : {1, 2, 3})
    for (int mask = 1; mask < 32; ++mask) {
      set_thread_count(count);
      const Gradients<double> some(data);
      edge_convolution(data.c, some.wanted(mask));
      CHECK(((mask & 1) == 0 || some.g.values == all.g.values));
      CHECK(((mask & 2) == 0 || some.u.values == all.u.values));
      CHECK(((mask & 4) == 0 || some.y.values == all.y.values));
      CHECK(((mask & 8) == 0 || some.h.values == all.h.values));
      CHECK(((mask & 16) == 0 || some.w.values == all.w.values));
    }
  set_thread_count(threads);
}

TEST_CASE("convolution: receivers without ghosts are done when the ghosts are asked for") {
  Rng rng(10);
  ConvolutionData<double> data(rng);
  constexpr std::int64_t kOwn = 9;
  const auto early = [](std::int64_t node) { return node < 3 || node == 5; };
  for (std::size_t e = 0; e < data.senders.size(); ++e)
    if (early(data.receivers[e])) data.senders[e] %= kOwn;
  const Gradients<double> expected(data);
  edge_convolution(data.c, expected.wanted(31));
  const std::vector<double> u = data.u.values;
  const auto ghosts = data.u.values.begin() + kOwn * 4 * data.kChannels;
  const std::int64_t row = data.paths.rows * data.kChannels;
  const int threads = thread_count();
  for (const int count : {1, 2}) {
    set_thread_count(count);
    for (const int mask : {1, 29}) {  // also with other gradients, which need all rows at once
      std::fill(ghosts, data.u.values.end(), NAN);
      const Gradients<double> actual(data);
      int calls = 0;
      EdgeConvolution c = data.c;
      c.own_rows = kOwn;
      c.arrived = [&] {
        ++calls;
        for (std::int64_t i = 0; mask == 1 && i < data.kNodes * row; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (early(i / row)) REQUIRE(actual.g.values[at] == expected.g.values[at]);
        }
        data.u.values = u;
      };
      edge_convolution(c, actual.wanted(mask));
      CHECK(calls == 1);
      CHECK(actual.g.values == expected.g.values);
      CHECK(((mask & 16) == 0 || actual.w.values == expected.w.values));
    }
  }
  set_thread_count(threads);
}

TEST_CASE("convolution: f32, strided views, and refusals") {
  Rng rng(9), again(9);
  const ConvolutionData<double> data(rng);
  const ConvolutionData<float> single(again);
  const Gradients<double> wide(data);
  const Gradients<float> narrow(single);
  edge_convolution(data.c, wide.wanted(31));
  edge_convolution(single.c, narrow.wanted(31));
  const auto close = [](const Values<double>& a, const Values<float>& b) {
    double worst = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < a.values.size(); ++i) {
      worst = std::max(worst, std::abs(a.values[i] - static_cast<double>(b.values[i])));
      largest = std::max(largest, std::abs(a.values[i]));
    }
    return worst < 3e-6 * largest;
  };
  CHECK(close(wide.g, narrow.g));
  CHECK(close(wide.u, narrow.u));
  CHECK(close(wide.y, narrow.y));
  CHECK(close(wide.h, narrow.h));
  CHECK(close(wide.w, narrow.w));

  // Channels in reverse order of memory.
  const auto reversed = [](Values<double>& x) {
    View v = x.view;
    const int last = v.dims() - 1;
    v.data = x.values.data() + (v.shape[last] - 1) * v.strides[last];
    v.strides[last] = -v.strides[last];
    return v;
  };
  Gradients<double> strided(data);
  EdgeConvolution c = data.c;
  Values<double> u = data.u;
  for (std::int64_t row = 0; row < u.view.shape[0] * u.view.shape[1]; ++row)
    std::reverse(u.values.begin() + row * u.view.shape[2],
                 u.values.begin() + (row + 1) * u.view.shape[2]);
  c.u = reversed(u);
  EdgeConvolutionGradients out = strided.wanted(31);
  out.u = reversed(strided.u);
  edge_convolution(c, out);
  CHECK(strided.g.values == wide.g.values);
  CHECK(strided.w.values == wide.w.values);
  for (std::int64_t row = 0; row < u.view.shape[0] * u.view.shape[1]; ++row)
    std::reverse(strided.u.values.begin() + row * u.view.shape[2],
                 strided.u.values.begin() + (row + 1) * u.view.shape[2]);
  CHECK(strided.u.values == wide.u.values);

  const auto refused = [&](auto change) {
    EdgeConvolution call = data.c;
    std::vector<std::int64_t> senders = data.senders, receivers = data.receivers;
    change(senders, receivers);
    call.senders = integers(senders);
    call.receivers = integers(receivers);
    CHECK_THROWS_AS(edge_convolution(call, Gradients<double>(data).wanted(1)), ShapeError);
  };
  refused([](auto& s, auto&) { s[3] = ConvolutionData<double>::kRows; });
  refused([](auto& s, auto&) { s[3] = -1; });
  refused([](auto&, auto& r) { r.back() = ConvolutionData<double>::kNodes; });
  refused([](auto&, auto& r) { std::swap(r.front(), r.back()); });
  EdgeConvolution large = data.c;
  large.paths = &tensor_paths(5, 5, 5);
  CHECK_THROWS_AS(edge_convolution(large, Gradients<double>(data).wanted(1)), NotSupported);
  EdgeConvolution half = data.c;
  half.h.dtype = DType::kBFloat16;
  CHECK_THROWS_AS(edge_convolution(half, Gradients<double>(data).wanted(1)), DTypeError);
}
