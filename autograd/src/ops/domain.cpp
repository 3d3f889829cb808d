#include "domain.hpp"

namespace tessera {

int domain_dims(const char* op, const Shape& shape) {
  if (shape.size() < 3 || shape.size() > 5) {
    throw ShapeError(str(op, ": input ", shape,
                         " is not [N, domain..., C] with 1 to 3 domain dimensions. Reshape it."));
  }
  return shape.size() - 2;
}

Dims per_dim(const char* op,
             const char* option,
             const Dims& values,
             int dims,
             std::int64_t standard,
             std::int64_t least) {
  Dims result = values;
  if (values.empty()) result = Dims::filled(dims, standard);
  if (values.size() == 1) result = Dims::filled(dims, values[0]);
  if (result.size() != dims) {
    throw ShapeError(str(op, ": ", option, " ", values, " has ", values.size(), " values for ",
                         dims, " domain dimensions. Give one, or one for each."));
  }
  for (const std::int64_t v : result) {
    if (v < least) throw ShapeError(str(op, ": ", option, " ", v, " is below ", least, "."));
  }
  return result;
}

}  // namespace tessera
