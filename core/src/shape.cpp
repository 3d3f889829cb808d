#include <ostream>
#include <tessera/core/box.hpp>
#include <tessera/core/shape.hpp>

namespace tessera {

std::string Dims::str() const {
  std::string text = "[";
  for (int i = 0; i < size(); ++i) text += (i ? ", " : "") + std::to_string((*this)[i]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) { return out << dims.str(); }

Strides row_major(const Shape& shape) {
  Strides strides = Dims::filled(shape.size(), 1);
  for (int d = shape.size() - 2; d >= 0; --d) strides[d] = strides[d + 1] * shape[d + 1];
  return strides;
}

int wrap_dim(const char* op, std::int64_t dim, int dims) {
  const std::int64_t wrapped = dim < 0 ? dim + dims : dim;
  if (wrapped < 0 || wrapped >= dims) {
    throw ShapeError(tessera::str(op, ": dimension ", dim, " does not exist (the tensor has ", dims,
                                  "). Use ", -dims, "..", dims - 1, "."));
  }
  return static_cast<int>(wrapped);
}

Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  const int dims = std::max(a.size(), b.size());
  Shape result = Dims::filled(dims, 1);
  for (int d = 0; d < dims; ++d) {
    const int da = d - (dims - a.size());
    const int db = d - (dims - b.size());
    const std::int64_t na = da < 0 ? 1 : a[da];
    const std::int64_t nb = db < 0 ? 1 : b[db];
    if (na != nb && na != 1 && nb != 1) {
      throw ShapeError(tessera::str(op, ": shapes ", a, " and ", b, " do not broadcast (", na,
                                    " against ", nb, "). Trailing dimensions must be equal or 1."));
    }
    result[d] = na == 1 ? nb : na;
  }
  return result;
}

std::string Box::str() const {
  std::string text;
  for (int d = 0; d < dims(); ++d) {
    text += tessera::str(d ? " x [" : "[", lo[d], ", ", hi[d], ")");
  }
  return dims() == 0 ? "[]" : text;
}

std::ostream& operator<<(std::ostream& out, const Box& box) { return out << box.str(); }

Box intersect(const Box& a, const Box& b) {
  Box c = a;
  for (int d = 0; d < a.dims(); ++d) c.set(d, intersect(a[d], b[d]));
  return c;
}

std::vector<Box> difference(const Box& outer, const Box& inner) {
  std::vector<Box> rest;
  if (outer.empty()) return rest;
  const Box core = intersect(outer, inner);
  if (core.empty()) return {outer};
  Box left = outer;
  for (int d = 0; d < outer.dims(); ++d) {
    Box side = left;
    side.set(d, {left.lo[d], core.lo[d]});
    if (!side.empty()) rest.push_back(side);
    side.set(d, {core.hi[d], left.hi[d]});
    if (!side.empty()) rest.push_back(side);
    left.set(d, core[d]);
  }
  return rest;
}

}  // namespace tessera
