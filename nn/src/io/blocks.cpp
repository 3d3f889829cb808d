#include "io/blocks.hpp"

#include <algorithm>
#include <tessera/core/tensor.hpp>

namespace tessera::io {

void for_each_block(const Box& box, std::int64_t volume, const std::function<void(const Box&)>& f) {
  if (box.empty()) return;
  // The outermost dimensions go one by one until what is inside fits.
  int d = 0;
  std::int64_t inside = box.volume();
  while (d < box.dims() && inside > volume) inside /= box[d++].size();
  if (d == 0) {
    f(box);
    return;
  }
  const int cut = d - 1;
  const std::int64_t rows = std::max<std::int64_t>(1, volume / inside);
  Box block = box;
  for (int k = 0; k < cut; ++k) block.hi[k] = block.lo[k] + 1;
  for (;;) {
    for (std::int64_t lo = box.lo[cut]; lo < box.hi[cut]; lo += rows) {
      block.set(cut, {lo, std::min(lo + rows, box.hi[cut])});
      f(block);
    }
    int k = cut - 1;
    while (k >= 0 && block.hi[k] == box.hi[k]) {
      block.set(k, {box.lo[k], box.lo[k] + 1});
      --k;
    }
    if (k < 0) return;
    block.set(k, {block.lo[k] + 1, block.hi[k] + 1});
  }
}

void for_each_chunk_block(const Box& box,
                          const Shape& chunk,
                          std::int64_t volume,
                          const std::function<void(const Box&)>& f) {
  if (box.empty()) return;
  const int dims = box.dims();
  const Box chunks = chunks_of(box, chunk);
  Dims together = Dims::filled(dims, 1);
  double inside = 1.0;
  for (int d = 0; d < dims; ++d) {
    inside *= static_cast<double>(std::min(chunk[d], box[d].size()));
  }
  for (int d = dims - 1; d >= 0 && inside > 0; --d) {
    const double room = static_cast<double>(volume) / inside;
    together[d] = std::clamp(static_cast<std::int64_t>(std::min(room, 1e15)), std::int64_t{1},
                             chunks[d].size());
    inside *= static_cast<double>(together[d]);
  }
  Box groups = chunks;
  for (int d = 0; d < dims; ++d)
    groups.set(d, {0, (chunks[d].size() + together[d] - 1) / together[d]});
  for_each_index(groups, [&](const Index& g) {
    Box part = box;
    for (int d = 0; d < dims; ++d) {
      const std::int64_t first = chunks.lo[d] + g[d] * together[d];
      const std::int64_t end = std::min(first + together[d], chunks.hi[d]);
      // The last chunk may reach beyond what 64 bits count.
      const std::int64_t hi = end == chunks.hi[d] ? box.hi[d] : end * chunk[d];
      part.set(d, {std::max(box.lo[d], first * chunk[d]), hi});
    }
    f(part);
  });
}

Box chunks_of(const Box& box, const Shape& chunk) {
  Box chunks = box;
  for (int d = 0; d < box.dims(); ++d)
    chunks.set(d, {box.lo[d] / chunk[d], (box.hi[d] - 1) / chunk[d] + 1});
  return chunks;
}

Box reversed(const Box& box) {
  Box result = box;
  const int dims = box.dims();
  for (int d = 0; d < dims; ++d) result.set(d, box[dims - 1 - d]);
  return result;
}

}  // namespace tessera::io
