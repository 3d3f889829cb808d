#include "reduce.hpp"

#include <algorithm>
#include <array>
#include <type_traits>

namespace tessera::parallel {

namespace {

// Element type in memory -> type of the sum. Integers are summed unsigned: overflow wraps instead
// of being undefined.
template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};
template <>
struct Accumulator<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct Accumulator<std::int64_t> {
  using type = std::uint64_t;
};
template <>
struct Accumulator<std::uint8_t> {
  using type = std::uint32_t;
};

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    return static_cast<A>(a + b);
  }
};
// A NaN on either side stays.
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return a < b || a != a ? a : b;
  }
};

// In blocks that stay in the first-level cache, so that every input is read once and `out` written
// once.
template <class T, class A, class Op>
void reduce(std::span<const void* const> inputs, void* out, std::int64_t count) {
  constexpr std::int64_t kBlock = 1024;
  std::array<A, kBlock> sums;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i)
      sums[static_cast<std::size_t>(i)] = static_cast<A>(first[i]);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      const T* next = static_cast<const T*>(inputs[k]) + begin;
      for (std::int64_t i = 0; i < n; ++i) {
        A& sum = sums[static_cast<std::size_t>(i)];
        sum = Op::apply(sum, static_cast<A>(next[i]));
      }
    }
    T* target = static_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < n; ++i)
      target[i] = static_cast<T>(sums[static_cast<std::size_t>(i)]);
  }
}

void reduce_bool(ReduceOp op, std::span<const void* const> inputs, void* out, std::int64_t count) {
  auto* target = static_cast<std::uint8_t*>(out);
  for (std::int64_t i = 0; i < count; ++i) {
    bool any = false;
    bool all = true;
    for (const void* input : inputs) {
      const bool value = static_cast<const std::uint8_t*>(input)[i] != 0;
      any = any || value;
      all = all && value;
    }
    target[i] = (op == ReduceOp::kMin ? all : any) ? 1 : 0;
  }
}

}  // namespace

void reduce_in_order(
    DType dtype, ReduceOp op, std::span<const void* const> inputs, void* out, std::int64_t count) {
  if (dtype == DType::kBool) return reduce_bool(op, inputs, out, count);
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) {
      switch (op) {
        case ReduceOp::kSum:
          return reduce<T, typename Accumulator<T>::type, Sum>(inputs, out, count);
        case ReduceOp::kMax:
        case ReduceOp::kMin: {
          using A = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
          return op == ReduceOp::kMax ? reduce<T, A, Max>(inputs, out, count)
                                      : reduce<T, A, Min>(inputs, out, count);
        }
      }
    }
  });
}

}  // namespace tessera::parallel
