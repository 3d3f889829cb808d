// ranks: 1

#include <Random123/philox.h>

#include <catch2/catch.hpp>
#include <tessera/kernels/random.hpp>

#include "kernels/random_view.hpp"

using namespace tessera;
using namespace tessera::testing;
using kernels::PhiloxKey;

namespace {

/// Words of the whole tensor by the reference implementation.
std::vector<std::uint32_t> words_of(PhiloxKey key, std::int64_t count) {
  std::vector<std::uint32_t> words;
  for (std::uint64_t block = 0; static_cast<std::int64_t>(words.size()) < count; ++block) {
    const r123::Philox4x32::ctr_type counter = {
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
         static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)}};
    const r123::Philox4x32::key_type k = {
        {static_cast<std::uint32_t>(key.key), static_cast<std::uint32_t>(key.key >> 32)}};
    for (const std::uint32_t w : r123::Philox4x32()(counter, k)) words.push_back(w);
  }
  return words;
}

constexpr PhiloxKey kKey{0x0123456789abcdefull, 0xfedcba9876543210ull};

Piece whole(const OwnedView& y) { return {y.view, Box::whole(y.view.shape), y.view.shape}; }

}  // namespace

TEST_CASE("known answers of Philox 4x32-10") {
  // kat_vectors of Random123: counter and key all ones and all zeros.
  OwnedView y = make_view({8}, DType::kInt64);
  kernels::random_bits({0, 0}, whole(y));
  const std::uint32_t zeros[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int i = 0; i < 4; ++i) REQUIRE(y.at({i}) == zeros[i]);

  // The vector of the digits of pi, whose counter lies beyond any tensor, fixes the reference.
  const std::uint32_t digits[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  const r123::Philox4x32::ctr_type counter = {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
  const r123::Philox4x32::key_type key = {{0xa4093822, 0x299f31d0}};
  const auto reference = r123::Philox4x32()(counter, key);
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(reference[i] == digits[i]);
}

TEST_CASE("draws follow the global index whatever the cut") {
  const Shape shapes[] = {{1}, {7}, {5, 3}, {3, 9, 5}, {2, 3, 4, 1}, {2, 50, 37}};
  for (const Shape& shape : shapes) {
    const std::vector<std::uint32_t> words = words_of(kKey, shape.product());
    for (int trial = 0; trial < 20; ++trial) {
      Box box = Box::whole(shape);
      for (int d = 0; d < shape.size() && trial > 0; ++d) {
        const std::int64_t lo = uniform_int(0, shape[d]);
        box.set(d, {lo, uniform_int(lo, shape[d])});
      }
      OwnedView y = make_view(box.shape(), DType::kInt64, kAllLies[trial % 4]);
      kernels::random_bits(kKey, {y.view, box, shape});
      OwnedView u = make_view(box.shape(), DType::kFloat32, kAllLies[trial % 4]);
      kernels::random_uniform(kKey, -1, 3, {u.view, box, shape});
      const OwnedView x = filled_view(
          box.shape(), DType::kFloat64, [] { return uniform(1, 2); }, kAllLies[(trial + 1) % 4]);
      OwnedView d = make_view(box.shape(), DType::kFloat64);
      kernels::dropout(kKey, 0.3, x.view, {d.view, box, shape});
      for_each_index(Box::whole(box.shape()), [&](const Index& i) {
        std::int64_t linear = 0;
        for (int e = 0; e < shape.size(); ++e) linear = linear * shape[e] + box.lo[e] + i[e];
        const double word = words[static_cast<std::size_t>(linear)];
        REQUIRE(y.at(i) == word);
        REQUIRE(u.at(i) == Approx(-1 + 4 * word / 4294967296.0).margin(1e-6));
        REQUIRE(d.at(i) == (word < 0.3 * 4294967296.0 ? 0.0 : x.at(i) * (1 / 0.7)));
      });
    }
  }
}

TEST_CASE("moments, range and independence of the element type") {
  const Shape shape{40000};
  OwnedView z = make_view(shape, DType::kFloat64);
  OwnedView f = make_view(shape, DType::kFloat32);
  kernels::random_normal(kKey, 2, 3, whole(z));
  kernels::random_normal(kKey, 2, 3, whole(f));
  double sum = 0, squares = 0, fourth = 0, lag = 0;
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    const double v = (z.at({i}) - 2) / 3;
    REQUIRE(f.at({i}) == static_cast<float>(z.at({i})));
    sum += v;
    squares += v * v;
    fourth += v * v * v * v;
    if (i > 0) lag += v * (z.at({i - 1}) - 2) / 3;
  }
  const double n = static_cast<double>(shape[0]);
  REQUIRE(std::fabs(sum / n) < 4 / std::sqrt(n));
  REQUIRE(squares / n == Approx(1).margin(4 * std::sqrt(2 / n)));
  REQUIRE(fourth / n == Approx(3).margin(4 * std::sqrt(96 / n)));
  REQUIRE(std::fabs(lag / n) < 4 / std::sqrt(n));
  kernels::random_uniform(kKey, 0, 1, whole(f));
  double least = 1, most = 0;
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    least = std::min(least, f.at({i}));
    most = std::max(most, f.at({i}));
  }
  REQUIRE(least >= 0);
  REQUIRE(most < 1);
  REQUIRE(most - least > 0.999);
}

TEST_CASE("edges of dropout") {
  const OwnedView x = filled_view({100}, DType::kFloat32, [] { return 1.0; });
  OwnedView y = make_view({100}, DType::kFloat32);
  kernels::dropout(kKey, 0.0, x.view, whole(y));
  for (std::int64_t i = 0; i < 100; ++i) REQUIRE(y.at({i}) == 1.0);
  kernels::dropout(kKey, 1.0, x.view, whole(y));
  for (std::int64_t i = 0; i < 100; ++i) REQUIRE(y.at({i}) == 0.0);
  REQUIRE_THROWS_AS(kernels::dropout(kKey, 1.5, x.view, whole(y)), UsageError);
  OwnedView n = make_view({100}, DType::kInt32);
  REQUIRE_THROWS_AS(kernels::random_normal(kKey, 0, 1, whole(n)), DTypeError);
}
