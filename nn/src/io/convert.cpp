#include "io/convert.hpp"

#include <type_traits>
#include <utility>

namespace tessera::io {
namespace {

template <class From, class To>
To convert_one(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return convert_one<float, To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, bool> || std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_integral_v<From> && std::is_integral_v<To>) {
    if constexpr (std::is_same_v<To, bool>) {
      if (value == From{0} || value == From{1}) return value == From{1};
    } else {
      if (std::in_range<To>(value)) return static_cast<To>(value);
    }
    throw IoError(str("convert: ", static_cast<std::int64_t>(value), " does not fit into ",
                      name(dtype_of<To>), ". Use a wider element type."));
  } else {
    throw DTypeError(
        str("convert: ", name(dtype_of<From>), " does not convert to ", name(dtype_of<To>), "."));
  }
}

}  // namespace

void check_convertible(const char* op, DType from, DType to) {
  if (is_floating(from) && !is_floating(to))
    throw DTypeError(str(op, ": ", name(from), " does not convert to ", name(to),
                         " (fractions would be lost). Use a floating element type."));
}

void convert(const void* from,
             DType from_type,
             std::int64_t from_stride,
             void* to,
             DType to_type,
             std::int64_t to_stride,
             std::int64_t count) {
  visit_dtype(from_type, [&]<class From>() {
    visit_dtype(to_type, [&]<class To>() {
      // A bool in a file may be any byte; reading one that is neither 0 nor 1 as bool is undefined.
      using Stored = std::conditional_t<std::is_same_v<From, bool>, std::uint8_t, From>;
      const auto* source = static_cast<const Stored*>(from);
      auto* target = static_cast<To*>(to);
      for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<From, bool>) {
          target[i * to_stride] = convert_one<bool, To>(source[i * from_stride] != 0);
        } else {
          target[i * to_stride] = convert_one<From, To>(source[i * from_stride]);
        }
      }
    });
  });
}

void check_view(const char* op, const View& view, const Shape& shape) {
  if (view.device.kind != Device::kCpu)
    throw DeviceError(str(op, ": values lie on ", tessera::str(view.device),
                          " (files are read and written from host memory). Copy them first."));
  if (view.shape != shape)
    throw ShapeError(str(op, ": a view of shape ", view.shape, " where ", shape, " is needed."));
}

void store_row(
    const View& view, const Index& start, const void* from, DType from_type, std::int64_t count) {
  std::int64_t offset = 0;
  for (int d = 0; d < view.dims(); ++d) offset += start[d] * view.strides[d];
  convert(from, from_type, 1,
          view.as<std::byte>() + offset * static_cast<std::int64_t>(size_of(view.dtype)),
          view.dtype, view.dims() > 0 ? view.strides[view.dims() - 1] : 1, count);
}

BoxRows::BoxRows(const char* op, const Shape& shape, const Box& box, const View& view) {
  if (box.dims() != shape.size() || !Box::whole(shape).contains(box))
    throw ShapeError(str(op, ": box ", box.str(), " does not lie in shape ", shape.str(), "."));
  check_view(op, view, box.shape());
  const Strides array = row_major(shape);
  int last = shape.size() - 1;
  if (last >= 0) {
    length_ = box[last].size();
    stride_ = view.strides[last];
    array_start_ = box.lo[last];
    // Dimension d joins the rows when the row so far covers its dimension in the array and runs on
    // in the view.
    while (last > 0 && length_ == array[last - 1] &&
           (view.strides[last - 1] == stride_ * length_ || box[last - 1].size() == 1 ||
            length_ == 1)) {
      if (length_ == 1 && box[last - 1].size() > 1) stride_ = view.strides[last - 1];
      --last;
      length_ *= box[last].size();
      array_start_ += box.lo[last] * array[last];
    }
  }
  for (int d = 0; d < last; ++d) {
    outer_.push_back(box[d].size());
    array_strides_.push_back(array[d]);
    view_strides_.push_back(view.strides[d]);
    array_start_ += box.lo[d] * array[d];
    if (box[d].empty()) length_ = 0;
  }
}

}  // namespace tessera::io
