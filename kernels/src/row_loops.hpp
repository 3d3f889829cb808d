#pragma once

#include <initializer_list>

#include "launch.hpp"

namespace tessera::kernels {

/// Loops over the rows of views of one shape [..., C].
struct RowLoops {
  LoopNest nest;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  std::int64_t step[3] = {};  // between channels

  RowLoops(const char* op, std::initializer_list<const View*> views) {
    View lead[3];
    const View* pointers[3];
    std::size_t k = 0;
    for (const View* v : views) {
      const int last = v->dims() - 1;
      if (last < 0 || !(v->shape == (*views.begin())->shape) || !is_floating(v->dtype)) {
        throw ShapeError(str(op, ": ", v->shape, " ", name(v->dtype), " where ",
                             (*views.begin())->shape,
                             " is needed (rows [..., C] of a floating type)."));
      }
      lead[k] = *v;
      lead[k].shape.resize(last);
      lead[k].strides.resize(last);
      step[k] = v->strides[last];
      pointers[k] = &lead[k];
      ++k;
    }
    channels = (*views.begin())->shape.back();
    nest = make_loop_nest(op, {pointers, k}, false);
    rows = channels > 0 ? nest.total : 0;
  }
};

inline char* row_at(const RowLoops& loops, const View& v, int k, std::int64_t row) {
  return v.as<char>() +
         nest_offset(loops.nest, k, row) * static_cast<std::int64_t>(size_of(v.dtype));
}

/// The row in place when it is dense and of type T, else a copy.
template <class T>
const T* read_row(const RowLoops& loops, const View& v, int k, std::int64_t row, T* buffer) {
  const char* const at = row_at(loops, v, k, row);
  if (v.dtype == dtype_of<T> && loops.step[k] == 1) return reinterpret_cast<const T*>(at);
  load(at, v.dtype, loops.step[k], loops.channels, buffer);
  return buffer;
}

}  // namespace tessera::kernels
