#include "io/stored_type.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

namespace tessera::io {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Half {
  std::uint16_t bits;
  explicit operator double() const {
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    double value = exponent == 0    ? std::ldexp(fraction, -24)
                   : exponent == 31 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                                    : std::ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
  }
};

/// f<T>() with the type in which a number lies in memory.
template <class F>
void visit(StoredType type, F&& f) {
  switch (type) {
    case StoredType::kBool:
      return f.template operator()<bool>();
    case StoredType::kInt8:
      return f.template operator()<std::int8_t>();
    case StoredType::kUInt8:
      return f.template operator()<std::uint8_t>();
    case StoredType::kInt16:
      return f.template operator()<std::int16_t>();
    case StoredType::kUInt16:
      return f.template operator()<std::uint16_t>();
    case StoredType::kInt32:
      return f.template operator()<std::int32_t>();
    case StoredType::kUInt32:
      return f.template operator()<std::uint32_t>();
    case StoredType::kInt64:
      return f.template operator()<std::int64_t>();
    case StoredType::kUInt64:
      return f.template operator()<std::uint64_t>();
    case StoredType::kFloat16:
      return f.template operator()<Half>();
    case StoredType::kBFloat16:
      return f.template operator()<BFloat16>();
    case StoredType::kFloat32:
      return f.template operator()<float>();
    case StoredType::kFloat64:
      return f.template operator()<double>();
  }
}

constexpr std::pair<std::string_view, StoredType> kNumpyTypes[] = {
    {"b1", StoredType::kBool},    {"i1", StoredType::kInt8},    {"u1", StoredType::kUInt8},
    {"i2", StoredType::kInt16},   {"u2", StoredType::kUInt16},  {"i4", StoredType::kInt32},
    {"u4", StoredType::kUInt32},  {"i8", StoredType::kInt64},   {"u8", StoredType::kUInt64},
    {"f2", StoredType::kFloat16}, {"f4", StoredType::kFloat32}, {"f8", StoredType::kFloat64}};

template <std::size_t N>
void reverse_each(std::byte* at, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i, at += N) std::reverse(at, at + N);
}

template <class T>
T load(const std::byte* from) {
  // Any byte but 0 is true: reading one that is neither 0 nor 1 as bool is undefined.
  if constexpr (std::is_same_v<T, bool>) {
    return *from != std::byte{0};
  } else {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
}

}  // namespace

std::int64_t size_of(StoredType type) {
  std::int64_t size = 0;
  visit(type, [&]<class T>() { size = sizeof(T); });
  return size;
}

bool is_floating(StoredType type) { return type >= StoredType::kFloat16; }

const char* name(StoredType type) {
  static constexpr const char* kNames[] = {"bool",     "int8",    "uint8",  "int16",  "uint16",
                                           "int32",    "uint32",  "int64",  "uint64", "float16",
                                           "bfloat16", "float32", "float64"};
  return kNames[static_cast<std::size_t>(type)];
}

void load_doubles(
    StoredType type, const void* from, std::int64_t stride, std::int64_t count, double* to) {
  visit(type, [&]<class T>() {
    const auto* source = static_cast<const std::byte*>(from);
    for (std::int64_t i = 0; i < count; ++i) {
      const T value = load<T>(source + i * stride * static_cast<std::int64_t>(sizeof(T)));
      if constexpr (std::is_same_v<T, BFloat16>) {
        to[i] = static_cast<double>(static_cast<float>(value));
      } else {
        to[i] = static_cast<double>(value);
      }
    }
  });
}

void load_integers(
    StoredType type, const void* from, std::int64_t stride, std::int64_t count, std::int64_t* to) {
  visit(type, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      const auto* source = static_cast<const std::byte*>(from);
      for (std::int64_t i = 0; i < count; ++i) {
        const T value = load<T>(source + i * stride * static_cast<std::int64_t>(sizeof(T)));
        if constexpr (std::is_same_v<T, std::uint64_t>) {
          if (!std::in_range<std::int64_t>(value))
            throw DataError(str("read: ", value, " does not fit into i64. Read it as f64."));
        }
        to[i] = static_cast<std::int64_t>(value);
      }
    }
  });
}

void swap_bytes(void* values, std::int64_t size, std::int64_t count) {
  auto* const at = static_cast<std::byte*>(values);
  if (size == 2) reverse_each<2>(at, count);
  if (size == 4) reverse_each<4>(at, count);
  if (size == 8) reverse_each<8>(at, count);
}

StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return StoredType::kFloat64;
    case DType::kBFloat16:
      return StoredType::kBFloat16;
    case DType::kInt32:
      return StoredType::kInt32;
    case DType::kInt64:
      return StoredType::kInt64;
    case DType::kUInt8:
      return StoredType::kUInt8;
    case DType::kBool:
      return StoredType::kBool;
    default:
      return StoredType::kFloat32;
  }
}

std::optional<NumpyType> parse_type_name(std::string_view text) {
  for (int k = 0; k <= static_cast<int>(StoredType::kFloat64); ++k) {
    const auto type = static_cast<StoredType>(k);
    if (text == name(type)) return NumpyType{type};
  }
  if (text == "complex64") return NumpyType{StoredType::kFloat32, false, true};
  if (text == "complex128") return NumpyType{StoredType::kFloat64, false, true};
  return std::nullopt;
}

std::string numpy_type(StoredType type) {
  for (const auto& [kind, known] : kNumpyTypes)
    if (known == type) return str(size_of(type) > 1 ? "<" : "|", kind);
  throw DTypeError(str("numpy: ", name(type), " has no name in NumPy. Store another type."));
}

std::optional<NumpyType> parse_numpy_type(std::string_view text) {
  if (text.size() != 3 && text.size() != 4) return std::nullopt;
  const char order = text[0];
  if (order != '<' && order != '>' && order != '|' && order != '=') return std::nullopt;
  const std::string_view kind = text.substr(1);
  for (const auto& [known, type] : kNumpyTypes) {
    if (kind != known) continue;
    if (order == '|' && size_of(type) > 1) return std::nullopt;
    return NumpyType{type, order == '>' && size_of(type) > 1};
  }
  if (order == '|') return std::nullopt;
  if (kind == "c8") return NumpyType{StoredType::kFloat32, order == '>', true};
  if (kind == "c16") return NumpyType{StoredType::kFloat64, order == '>', true};
  return std::nullopt;
}

}  // namespace tessera::io
