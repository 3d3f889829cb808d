// ranks: 1
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <tessera/core/dtype.hpp>
#include <tessera/core/tensor.hpp>

#include "support/dense.hpp"

namespace tessera {
namespace {

float back(float value) { return static_cast<float>(BFloat16(value)); }

TEST_CASE("bf16 holds every one of its own values") {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    const BFloat16 b(value);
    if (std::isnan(value)) {
      CHECK(std::isnan(static_cast<float>(b)));
    } else if (b.bits != bits) {
      FAIL("bits " << bits << " became " << b.bits);
    }
  }
}

TEST_CASE("bf16 rounds to nearest, ties to even") {
  test::Rng rng(3);
  for (int draw = 0; draw < 20000; ++draw) {
    const auto bits = static_cast<std::uint32_t>(rng.bits());
    const float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    const float down = std::bit_cast<float>(bits & 0xffff0000u);
    const float up = std::bit_cast<float>((bits & 0xffff0000u) + 0x10000u);
    const double below = std::abs(static_cast<double>(value) - static_cast<double>(down));
    const double above = std::abs(static_cast<double>(up) - static_cast<double>(value));
    if (!std::isfinite(up)) continue;
    const bool even_below = (bits >> 16 & 1u) == 0;
    const bool to_below = below < above || (below == above && even_below);
    if (back(value) != (to_below ? down : up)) FAIL("value " << value << " became " << back(value));
  }
  CHECK(back(1.0f + 1.0f / 256.0f) == 1.0f);
  CHECK(back(1.0f + 3.0f / 256.0f) == 1.0f + 1.0f / 64.0f);
}

TEST_CASE("bf16 at the ends of its range") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(back(infinity) == infinity);
  CHECK(back(-infinity) == -infinity);
  CHECK(back(std::numeric_limits<float>::max()) == infinity);
  // A NaN whose payload lies in the bits that are cut stays a NaN.
  CHECK(std::isnan(back(std::bit_cast<float>(0x7f800001u))));
  CHECK(std::isnan(back(std::bit_cast<float>(0xff80ffffu))));
  CHECK(std::signbit(back(-0.0f)));
}

TEST_CASE("element types: names, sizes, visits") {
  for (const DType t : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                        DType::kInt64, DType::kUInt8, DType::kBool}) {
    visit_dtype(t, [&]<class T>() {
      CHECK(sizeof(T) == size_of(t));
      CHECK(dtype_of<T> == t);
      CHECK(name(t)[0] != '?');
    });
    if (is_floating(t)) {
      visit_floating("op", t, [&]<class T>() { CHECK(dtype_of<T> == t); });
    } else {
      CHECK_THROWS_WITH(visit_floating("op", t, []<class T>() {}),
                        Catch::Contains(str("op: element type ", name(t))));
    }
  }
}

TEST_CASE("elements read and written as double") {
  std::int64_t slots[2] = {};
  for (const DType t : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                        DType::kInt64, DType::kUInt8}) {
    store_double(slots, t, 1, 113.0);
    CHECK(load_as_double(slots, t, 1) == 113.0);
  }
  store_double(slots, DType::kBool, 0, -0.5);
  CHECK(load_as_double(slots, DType::kBool, 0) == 1.0);
}

}  // namespace
}  // namespace tessera
