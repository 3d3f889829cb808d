#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/equivariant.hpp>
#include <tessera/kernels/gemm.hpp>
#include <tessera/kernels/index.hpp>
#include <vector>

namespace tessera::kernels {

namespace {

/// Nodes of one element that are brought together at a time.
constexpr std::int64_t kGathered = 512;

View rows_of(const View& x, std::int64_t first, std::int64_t count) {
  Box box = Box::whole(x.shape);
  box.set(1, {first, first + count});
  return x.slice(box);
}

/// [N, K]: one row of every node.
View row_of(const View& x, std::int64_t row) {
  View slice = rows_of(x, row, 1);
  return View{slice.data, slice.dtype, {x.shape[0], x.shape[2]}, {x.strides[0], x.strides[2]}};
}

View matrix_of(const View& w, std::int64_t weight, std::int64_t element) {
  Box box = Box::whole(w.shape);
  box.set(0, {weight, weight + 1});
  box.set(1, {element, element + 1});
  const View slice = w.slice(box);
  return View{slice.data, slice.dtype, {w.shape[2], w.shape[3]}, {w.strides[2], w.strides[3]}};
}

/// Products of all nodes at hand with the matrices of one element; nothing is read of `out` rows
/// before they are set. `accumulate`: add to weights.
void mix(std::span<const MixBlock> blocks,
         MixSlot slot,
         const View& g,
         const View& x,
         const View& w,
         std::int64_t element,
         bool accumulate) {
  if (slot == MixSlot::kW) {
    std::vector<bool> seen(static_cast<std::size_t>(w.shape[0]), accumulate);
    for (const MixBlock& b : blocks) {
      const auto at = static_cast<std::size_t>(b.weight);
      outer_sum(1.0, rows_of(x, b.x_row, b.rows), rows_of(g, b.g_row, b.rows), seen[at] ? 1.0 : 0.0,
                matrix_of(w, b.weight, element));
      seen[at] = true;
    }
    return;
  }
  const View& out = slot == MixSlot::kG ? g : x;
  std::vector<bool> seen(static_cast<std::size_t>(out.shape[1]));
  for (const MixBlock& b : blocks) {
    const View m = matrix_of(w, b.weight, element);
    for (std::int64_t r = 0; r < b.rows; ++r) {
      const std::int64_t to = (slot == MixSlot::kG ? b.g_row : b.x_row) + r;
      const double beta = seen[static_cast<std::size_t>(to)] ? 1.0 : 0.0;
      if (slot == MixSlot::kG) {
        gemm(1.0, row_of(x, b.x_row + r), m, beta, row_of(g, to));
      } else {
        gemm(1.0, row_of(g, b.g_row + r), transposed(m), beta, row_of(x, to));
      }
      seen[static_cast<std::size_t>(to)] = true;
    }
  }
  for (std::int64_t r = 0; r < out.shape[1]; ++r)
    if (!seen[static_cast<std::size_t>(r)]) fill(row_of(out, r), 0.0);
}

std::vector<std::vector<std::int64_t>> nodes_by_element(const View& species,
                                                        std::int64_t elements) {
  std::vector<std::vector<std::int64_t>> nodes(static_cast<std::size_t>(elements));
  for (std::int64_t i = 0; i < species.shape[0]; ++i) {
    const std::int64_t at = i * species.strides[0];
    const std::int64_t z = species.dtype == DType::kInt64 ? species.as<std::int64_t>()[at]
                                                          : species.as<std::int32_t>()[at];
    if (z < 0 || z >= elements) {
      throw ShapeError(str("irreps_linear: species ", z, " of node ", i,
                           " of this rank is outside the ", elements, " elements of the weights."));
    }
    nodes[static_cast<std::size_t>(z)].push_back(i);
  }
  return nodes;
}

/// Room for rows of some nodes.
class Gathered {
 public:
  Gathered(const View& like, std::int64_t nodes)
      : shape_(like.shape),
        dtype_(like.dtype),
        buffer_(MemoryPool::of(Device{}).allocate(
            static_cast<std::size_t>(nodes * like.shape[1] * like.shape[2] *
                                     static_cast<std::int64_t>(size_of(like.dtype))))) {}
  View view(std::int64_t nodes) const {
    return View::dense(buffer_->data(), dtype_, {nodes, shape_[1], shape_[2]});
  }

 private:
  Shape shape_;
  DType dtype_;
  Ref<Buffer> buffer_;
};

}  // namespace

void channel_mix(std::span<const MixBlock> blocks,
                 MixSlot slot,
                 const View& g,
                 const View& x,
                 const View& w,
                 const View& species,
                 const View& out) {
  const View& side_g = slot == MixSlot::kG ? out : g;
  const View& side_x = slot == MixSlot::kX ? out : x;
  const View& side_w = slot == MixSlot::kW ? out : w;
  if (dry_run() || out.empty()) return;
  if (side_g.empty() || side_x.empty()) return fill(out, 0.0);
  if (species.data == nullptr) {
    mix(blocks, slot, side_g, side_x, side_w, 0, false);
    return;
  }
  const auto nodes = nodes_by_element(species, side_w.shape[1]);
  if (slot == MixSlot::kW) fill(out, 0.0);
  const Gathered part_g(side_g, kGathered), part_x(side_x, kGathered);
  for (std::size_t z = 0; z < nodes.size(); ++z) {
    const auto count = static_cast<std::int64_t>(nodes[z].size());
    for (std::int64_t first = 0; first < count; first += kGathered) {
      const std::int64_t n = std::min(kGathered, count - first);
      const View index =
          View::dense(const_cast<std::int64_t*>(nodes[z].data()) + first, DType::kInt64, {n});
      if (slot != MixSlot::kG) take_rows(side_g, index, 0, part_g.view(n));
      if (slot != MixSlot::kX) take_rows(side_x, index, 0, part_x.view(n));
      mix(blocks, slot, part_g.view(n), part_x.view(n), side_w, static_cast<std::int64_t>(z), true);
      // Each node occurs once: rows are set.
      const auto put = [&](const View& from, const View& to) {
        for (std::int64_t i = 0; i < n; ++i) {
          Box source = Box::whole(from.shape), target = Box::whole(to.shape);
          source.set(0, {i, i + 1});
          const std::int64_t node = nodes[z][static_cast<std::size_t>(first + i)];
          target.set(0, {node, node + 1});
          copy(from.slice(source), to.slice(target));
        }
      };
      if (slot == MixSlot::kG) put(part_g.view(n), out);
      if (slot == MixSlot::kX) put(part_x.view(n), out);
    }
  }
}

}  // namespace tessera::kernels
