#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <tessera/core/error.hpp>

namespace tessera {

/// Element types.
enum class DType : std::uint8_t { kFloat32, kFloat64, kBFloat16, kInt32, kInt64, kUInt8, kBool };

/// 16-bit float with the exponent range of fp32; arithmetic is done in fp32, rounding is to nearest
/// even.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((u >> 16) |
                                        0x40u);  // a NaN must stay one when its low bits are cut
    } else {
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

/// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
      return 2;
    case DType::kUInt8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

/// Short name: f32, f64, bf16, i32, i64, u8, bool.
constexpr const char* name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "f32";
    case DType::kFloat64:
      return "f64";
    case DType::kBFloat16:
      return "bf16";
    case DType::kInt32:
      return "i32";
    case DType::kInt64:
      return "i64";
    case DType::kUInt8:
      return "u8";
    case DType::kBool:
      return "bool";
  }
  return "?";
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kBFloat16;
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};

/// The DType of a C++ element type.
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

/// Calls `f.template operator()<T>()` with the C++ type of `dtype`.
template <class F>
decltype(auto) visit_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16>();
    case DType::kInt32:
      return f.template operator()<std::int32_t>();
    case DType::kInt64:
      return f.template operator()<std::int64_t>();
    case DType::kUInt8:
      return f.template operator()<std::uint8_t>();
    case DType::kBool:
      return f.template operator()<bool>();
  }
  throw DTypeError("visit_dtype: unknown element type");
}

/// Same for the floating types only; throws DTypeError naming `op` otherwise.
template <class F>
decltype(auto) visit_floating(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f.template operator()<float>();
    case DType::kFloat64:
      return f.template operator()<double>();
    case DType::kBFloat16:
      return f.template operator()<BFloat16>();
    default:
      throw DTypeError(
          str(op, ": element type ", name(dtype), " is not a floating type. Cast it first."));
  }
}

}  // namespace tessera
