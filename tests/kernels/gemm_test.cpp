// ranks: 1

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/threads.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/gemm.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const auto kRandom = [] { return uniform(-1, 1); };

/// |got - expected| is within the rounding of the sum of absolute terms.
void check_gemm(double alpha,
                const View& av,
                const View& bv,
                double beta,
                const OwnedView& before,
                const OwnedView& c) {
  const int d = c.view.dims();
  const auto read = [](const View& v, const Index& i) {
    std::int64_t offset = 0;
    for (int e = 0; e < i.size(); ++e) offset += i[e] * v.strides[e];
    return load_as_double(v.data, v.dtype, offset);
  };
  for_each_index(Box::whole(c.view.shape), [&](const Index& i) {
    double sum = beta == 0 ? 0 : beta * before.at(i);
    double terms = std::fabs(sum);
    Index ia = i, ib = i;
    for (std::int64_t k = 0; k < av.shape[d - 1]; ++k) {
      ia[d - 1] = k;
      ib[d - 2] = k;
      const double term = alpha * read(av, ia) * read(bv, ib);
      sum += term;
      terms += std::fabs(term);
    }
    const double got = c.at(i);
    if (!(std::fabs(got - sum) <= 4 * epsilon(c.view.dtype) * (terms + 1e-30) * 4))
      FAIL("got " << got << " expected " << sum << " at " << i);
  });
}

}  // namespace

TEST_CASE("matrix products of every size, stride and batch") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (int trial = 0; trial < 120; ++trial) {
      const std::int64_t m = uniform_int(0, 40), n = uniform_int(0, 40), k = uniform_int(0, 40);
      Shape batch;
      for (std::int64_t i = uniform_int(0, 3); i > 0; --i) batch.push_back(uniform_int(0, 3));
      if (trial % 3 != 0) batch = {};
      const auto with = [&](std::int64_t r, std::int64_t c) {
        Shape s = batch;
        s.push_back(r);
        s.push_back(c);
        return s;
      };
      const auto lie = [] { return kAllLies[uniform_int(0, 3)]; };
      const OwnedView a = filled_view(with(m, k), dtype, kRandom, lie());
      const bool repeat = uniform_int(0, 1) == 1;
      const OwnedView b = filled_view(repeat ? Shape{k, n} : with(k, n), dtype, kRandom, lie());
      const View bv = kernels::broadcast_to(b.view, with(k, n));
      const double beta = uniform_int(0, 1) == 1 ? 0.0 : 0.7;
      const Lie c_lie = lie();
      OwnedView c = filled_view(with(m, n), dtype, kRandom, c_lie);
      OwnedView before = make_view(with(m, n), dtype);
      kernels::copy(c.view, before.view);
      if (beta == 0) kernels::fill(c.view, std::numeric_limits<double>::quiet_NaN());
      kernels::gemm(1.3, a.view, bv, beta, c.view);
      check_gemm(1.3, a.view, bv, beta, before, c);
    }
  }
}

TEST_CASE("blocks, slices of k, and any number of threads") {
  struct Case {
    std::int64_t batch, m, n, k;
  };
  for (const Case& s : {Case{1, 530, 70, 33},
                        {1, 9, 1100, 20},
                        {1, 20, 17, 5000},
                        {2, 3, 5, 3000},
                        {20, 30, 20, 40}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const OwnedView a = filled_view({s.batch, s.k, s.m}, dtype, kRandom);
      const OwnedView b = filled_view({s.batch, s.k, s.n}, dtype, kRandom);
      const View at = kernels::transposed(a.view);
      OwnedView c = filled_view({s.batch, s.m, s.n}, dtype, kRandom);
      OwnedView before = make_view(c.view.shape, dtype);
      OwnedView again = make_view(c.view.shape, dtype);
      kernels::copy(c.view, before.view);
      kernels::copy(c.view, again.view);
      const int threads = thread_count();
      set_thread_count(1);
      kernels::gemm(0.5, at, b.view, 2, c.view);
      set_thread_count(3);
      kernels::gemm(0.5, at, b.view, 2, again.view);
      set_thread_count(threads);
      check_gemm(0.5, at, b.view, 2, before, c);
      REQUIRE(std::memcmp(c.view.data, again.view.data,
                          static_cast<std::size_t>(c.view.size()) * size_of(dtype)) == 0);
    }
  }
}

TEST_CASE("large products: any stride, bias, slices of k, any number of threads and rows") {
  struct Case {
    std::int64_t m, n, k;
  };
  for (const Case& s : {Case{300, 100, 80},
                        {18, 80, 1100},
                        {301, 33, 130},
                        {40, 3100, 33},
                        {36, 40, 2100},
                        {2300, 33, 1400}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (int trial = 0; trial < (s.m > 2000 ? 1 : 4); ++trial) {
        const auto lie = [&] { return trial == 0 ? Lie::kDense : kAllLies[uniform_int(0, 3)]; };
        const bool turned_a = uniform_int(0, 1) == 1, turned_b = uniform_int(0, 1) == 1;
        const OwnedView a =
            filled_view(turned_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, dtype, kRandom, lie());
        const OwnedView b =
            filled_view(turned_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, dtype, kRandom, lie());
        const View av = turned_a ? kernels::transposed(a.view) : a.view;
        const View bv = turned_b ? kernels::transposed(b.view) : b.view;
        const Lie c_lie = lie();
        const bool biased = trial % 2 == 1;
        const double beta = !biased && trial % 3 == 0 ? 1.0 : 0.0;
        const OwnedView bias = filled_view({s.n}, dtype, kRandom);
        OwnedView c = filled_view({s.m, s.n}, dtype, kRandom, c_lie);
        OwnedView again = filled_view({s.m, s.n}, dtype, kRandom, c_lie);
        OwnedView before = make_view({s.m, s.n}, dtype);
        kernels::copy(c.view, before.view);
        kernels::copy(c.view, again.view);
        if (beta == 0) kernels::fill(c.view, std::numeric_limits<double>::quiet_NaN());
        const View start = biased ? bias.view : View{};
        const int threads = thread_count();
        set_thread_count(1);
        kernels::gemm(1, av, bv, beta, c.view, start);
        set_thread_count(3);
        kernels::gemm(1, av, bv, beta, again.view, start);
        set_thread_count(threads);
        if (biased) kernels::copy(kernels::broadcast_to(bias.view, before.view.shape), before.view);
        check_gemm(1, av, bv, biased ? 1.0 : beta, before, c);
        for_each_index(Box::whole(c.view.shape), [&](const Index& i) {
          if (c.at(i) != again.at(i)) FAIL("threads change " << i);
        });
        if (c_lie == Lie::kPermuted || s.m < 64 || s.m / 2 * s.n * s.k < (1 << 20)) continue;
        // Half of the rows, alone.
        const auto top = [](View v) {
          v.shape[0] /= 2;
          return v;
        };
        OwnedView half = make_view({s.m / 2, s.n}, dtype);
        kernels::copy(top(before.view), half.view);
        kernels::gemm(1, top(av), bv, beta, half.view, start);
        for_each_index(Box::whole(half.view.shape), [&](const Index& i) {
          if (half.at(i) != c.at(i)) FAIL("the number of rows changes " << i);
        });
      }
    }
  }
  const OwnedView a = filled_view({40, 40}, DType::kFloat32, kRandom);
  const OwnedView bias = filled_view({40}, DType::kFloat32, kRandom);
  const OwnedView c = filled_view({40, 40}, DType::kFloat32, kRandom);
  REQUIRE_THROWS_AS(kernels::gemm(1, a.view, a.view, 1, c.view, bias.view), ShapeError);
  REQUIRE_THROWS_AS(kernels::gemm(1, a.view, a.view, 0, c.view, a.view), ShapeError);
}

TEST_CASE("the place of the matrices in memory does not change the bits") {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{2, 3, 4},
                                {1, 1, 300},
                                {1, 40, 33},
                                {40, 1, 33},
                                {13, 11, 29}}) {
    const auto run = [&, m = m, n = n, k = k]<class T>(T) {
      std::vector<T> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(k * n)), first;
      for (T& v : a) v = static_cast<T>(uniform(-1, 1));
      for (T& v : b) v = static_cast<T>(uniform(-1, 1));
      for (std::size_t shift = 0; shift < 17; ++shift) {
        std::vector<T> moved_a(shift), moved_b(shift), c(static_cast<std::size_t>(m * n) + shift);
        moved_a.insert(moved_a.end(), a.begin(), a.end());
        moved_b.insert(moved_b.end(), b.begin(), b.end());
        kernels::gemm(1, View::dense(moved_a.data() + shift, dtype_of<T>, {m, k}),
                      View::dense(moved_b.data() + shift, dtype_of<T>, {k, n}), 0,
                      View::dense(c.data() + shift, dtype_of<T>, {m, n}));
        c.erase(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(shift));
        if (shift == 0) first = c;
        REQUIRE(std::memcmp(first.data(), c.data(), c.size() * sizeof(T)) == 0);
      }
    };
    run(float{});
    run(double{});
  }
}

TEST_CASE("sums of outer products over leading dimensions") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const Shape& lead : {Shape{}, Shape{5}, Shape{2, 3}, Shape{2, 1, 4}, Shape{3, 0}}) {
      for (const Lie lie : kAllLies) {
        Shape sa = lead, sb = lead;
        sa.push_back(6);
        sb.push_back(4);
        const OwnedView a = filled_view(sa, dtype, kRandom, lie);
        const OwnedView b =
            filled_view(sb, dtype, kRandom, lie == Lie::kPadded ? Lie::kDense : lie);
        OwnedView c = filled_view({6, 4}, dtype, kRandom);
        OwnedView before = make_view({6, 4}, dtype);
        kernels::copy(c.view, before.view);
        kernels::outer_sum(1.5, a.view, b.view, 0.5, c.view);
        for (std::int64_t i = 0; i < 6; ++i)
          for (std::int64_t j = 0; j < 4; ++j) {
            double sum = 0.5 * before.at({i, j});
            for_each_index(Box::whole(lead), [&](const Index& l) {
              Index ia = l, ib = l;
              ia.push_back(i);
              ib.push_back(j);
              sum += 1.5 * a.at(ia) * b.at(ib);
            });
            REQUIRE(c.at({i, j}) == Approx(sum).margin(60 * epsilon(dtype)));
          }
      }
    }
  }
  OwnedView a = make_view({2, 3}, DType::kFloat32), b = make_view({4, 2}, DType::kFloat32);
  OwnedView i = make_view({2, 3}, DType::kInt32);
  REQUIRE_THROWS_AS(kernels::gemm(1, a.view, b.view, 0, a.view), ShapeError);
  REQUIRE_THROWS_AS(kernels::gemm(1, i.view, i.view, 0, i.view), DTypeError);
}

TEST_CASE("products take denormal factors as zeros and leave the caller's arithmetic alone") {
  static bool seen = false;  // a denormal, by what runs between tiles
  static volatile float tiny = 1e-40f;
  for (const std::int64_t n : {8, 300}) {  // block by block, and by panels
    const auto matrix = [&](double x) {
      return filled_view({n, n}, DType::kFloat32, [&] { return x; });
    };
    const OwnedView a = matrix(1e-40), b = matrix(1.0), c = matrix(3.0);
    seen = false;
    set_progress_function([] { seen = seen || tiny * 1.0f != 0.0f; });
    kernels::gemm(1, a.view, b.view, 0, c.view);
    set_progress_function(nullptr);
    CHECK(c.at({0, 0}) == 0.0);
    CHECK(c.at({n - 1, n - 1}) == 0.0);
    CHECK(tiny * 1.0f != 0.0f);
    if (n == 300) CHECK(seen);
  }
}
