#include <algorithm>
#include <bit>
#include <cmath>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/order.hpp>
#include <vector>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

template <class U>
U rising_bits(U bits) {
  constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

template <class T>
std::uint64_t key_of(T value) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(value)) return ~std::uint64_t{0};
    return rising_bits(std::bit_cast<std::uint64_t>(value == 0 ? 0.0 : value));
  } else if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(value)) return 0xffffffffu;
    return rising_bits(std::bit_cast<std::uint32_t>(value == 0 ? 0.0f : value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return key_of(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    return static_cast<std::uint64_t>(value) ^ (std::uint64_t{1} << 63);
  } else {
    return static_cast<std::uint32_t>(value) ^ 0x80000000u;
  }
}

constexpr int kDigit = 11;
/// Below this many a comparison sort is faster.
constexpr std::int64_t kRadix = 1024;

void radix_sort(Ranked* items, Ranked* other, std::int64_t n, int bits) {
  constexpr std::size_t kValues = std::size_t{1} << kDigit;
  Ranked* from = items;
  Ranked* to = other;
  std::vector<std::int64_t> place(kValues);
  for (int shift = 0; shift < bits; shift += kDigit) {
    const auto digit = [shift](const Ranked& r) {
      return static_cast<std::size_t>(r.key >> shift) & (kValues - 1);
    };
    std::fill(place.begin(), place.end(), 0);
    for (std::int64_t i = 0; i < n; ++i) ++place[digit(from[i])];
    if (place[digit(from[0])] == n) continue;
    std::int64_t next = 0;
    for (std::int64_t& p : place) next += std::exchange(p, next);
    for (std::int64_t i = 0; i < n; ++i) to[place[digit(from[i])]++] = from[i];
    std::swap(from, to);
  }
  if (from != items) std::copy_n(from, n, items);
}

/// The first `count` of n items in order, at their beginning; items come in the order of indices.
void order(std::vector<Ranked>& items, std::vector<Ranked>& other, std::int64_t count, int bits) {
  const auto n = static_cast<std::int64_t>(items.size());
  if (count == 1) {
    std::iter_swap(items.begin(), std::min_element(items.begin(), items.end()));
  } else if (count < n) {
    std::nth_element(items.begin(), items.begin() + count, items.end());
    std::sort(items.begin(), items.begin() + count);
  } else if (n < kRadix) {
    std::sort(items.begin(), items.end());
  } else {
    other.resize(items.size());
    radix_sort(items.data(), other.data(), n, bits);
  }
}

/// Calls f(line, items) with the first `count` of each line in order at the beginning of `items`.
template <class F>
void each_line(
    const View& x, int dim, bool falling, std::int64_t first, std::int64_t count, const F& f) {
  View lines = x;
  lines.shape.erase(dim);
  lines.strides.erase(dim);
  // Indexed in the order of the shape, not merged: line numbers are row-major.
  const std::int64_t n = x.shape[dim];
  const std::int64_t step = x.strides[dim];
  const int bits = key_bits(x.dtype);
  const std::uint64_t flip = !falling ? 0 : bits == 64 ? ~std::uint64_t{0} : 0xffffffffu;
  visit_dtype(x.dtype, [&]<class T>() {
    parallel_chunks(lines.size(), n, [&](std::int64_t begin, std::int64_t end) {
      std::vector<Ranked> items;
      std::vector<Ranked> other;
      for (std::int64_t line = begin; line < end; ++line) {
        std::int64_t offset = 0;
        std::int64_t rest = line;
        for (int d = lines.dims() - 1; d >= 0; --d) {
          offset += rest % lines.shape[d] * lines.strides[d];
          rest /= lines.shape[d];
        }
        const T* const from = x.as<const T>() + offset;
        if (count == 1) {
          Ranked best{key_of(from[0]) ^ flip, first};
          for (std::int64_t i = 1; i < n; ++i) {
            const std::uint64_t key = key_of(from[i * step]) ^ flip;
            if (key < best.key) best = {key, first + i};
          }
          items.assign(1, best);
        } else {
          items.resize(static_cast<std::size_t>(n));
          for (std::int64_t i = 0; i < n; ++i)
            items[static_cast<std::size_t>(i)] = {key_of(from[i * step]) ^ flip, first + i};
          order(items, other, count, bits);
        }
        f(line, items.data());
      }
    });
  });
}

void check(const View& x, int dim, std::int64_t count) {
  if (dim < 0 || dim >= x.dims() || count < 0 || count > x.shape[dim]) {
    throw ShapeError(str("order: lines of ", x.shape, " along dimension ", dim, " have no first ",
                         count, " elements."));
  }
}

}  // namespace

int key_bits(DType dtype) { return dtype == DType::kFloat64 || dtype == DType::kInt64 ? 64 : 32; }

void rank_lines(
    const View& x, int dim, bool falling, std::int64_t first, std::int64_t count, Ranked* out) {
  check(x, dim, count);
  if (dry_run() || count == 0 || x.empty()) return;
  each_line(x, dim, falling, first, count, [&](std::int64_t line, const Ranked* items) {
    std::copy_n(items, count, out + line * count);
  });
}

void order_lines(const View& x, int dim, bool falling, const View& index) {
  const std::int64_t count = index.shape[dim];
  check(x, dim, count);
  if (index.dtype != DType::kInt64)
    throw DTypeError(str("order: indices are ", name(index.dtype), ", not i64."));
  if (dry_run() || index.empty()) return;
  View lines = index;
  lines.shape.erase(dim);
  lines.strides.erase(dim);
  each_line(x, dim, falling, 0, count, [&](std::int64_t line, const Ranked* items) {
    std::int64_t offset = 0;
    for (int d = lines.dims() - 1; d >= 0; --d) {
      offset += line % lines.shape[d] * lines.strides[d];
      line /= lines.shape[d];
    }
    std::int64_t* const to = index.as<std::int64_t>() + offset;
    for (std::int64_t i = 0; i < count; ++i) to[i * index.strides[dim]] = items[i].index;
  });
}

void sort_by_key(Ranked* items, std::int64_t n, int bits) {
  if (n < kRadix) {
    std::stable_sort(items, items + n,
                     [](const Ranked& a, const Ranked& b) { return a.key < b.key; });
    return;
  }
  std::vector<Ranked> other(static_cast<std::size_t>(n));
  radix_sort(items, other.data(), n, bits);
}

}  // namespace tessera::kernels
