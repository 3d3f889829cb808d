#include <tessera/core/edge.hpp>
#include <tessera/core/view.hpp>

namespace tessera {

bool View::is_dense() const {
  std::int64_t expected = 1;
  for (int d = dims() - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

View View::slice(const Box& box) const {
  View part = *this;
  part.shape = box.shape();
  if (part.empty()) return part;  // an offset of an empty part could point outside the buffer
  std::int64_t offset = 0;
  for (int d = 0; d < dims(); ++d) offset += box.lo[d] * strides[d];
  part.data = static_cast<char*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
  return part;
}

Piece Piece::slice(const Box& region) const {
  const Box part = intersect(region, box);
  Box local = part;
  for (int d = 0; d < part.dims(); ++d)
    local.set(d, {part.lo[d] - box.lo[d], part.hi[d] - box.lo[d]});
  return {view.slice(local), part, global};
}

const char* name(EdgeRule rule) {
  switch (rule) {
    case EdgeRule::kZero:
      return "zero";
    case EdgeRule::kCircular:
      return "circular";
    case EdgeRule::kReflect:
      return "reflect";
    case EdgeRule::kReplicate:
      return "replicate";
  }
  return "?";
}

std::int64_t map_edge(EdgeRule rule, std::int64_t i, std::int64_t n) {
  if (i >= 0 && i < n) return i;
  if (n <= 0) return -1;
  switch (rule) {
    case EdgeRule::kZero:
      return -1;
    case EdgeRule::kCircular:
      return ((i % n) + n) % n;
    case EdgeRule::kReflect: {
      if (n == 1) return 0;
      const std::int64_t period = 2 * (n - 1);
      const std::int64_t m = ((i % period) + period) % period;
      return m < n ? m : period - m;
    }
    case EdgeRule::kReplicate:
      return i < 0 ? 0 : n - 1;
  }
  return -1;
}

}  // namespace tessera
