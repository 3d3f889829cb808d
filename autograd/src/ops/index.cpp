// Indexing in terms of lookup(): lines along the dimension become tables of one channel.

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/index.hpp>
#include <tessera/autograd/ops/logical.hpp>
#include <tessera/autograd/ops/lookup.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/scan.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera {

namespace {

/// Dimension `dim` moved to the end, or back from there.
Dims moved(int dim, int dims, bool back) {
  Dims order;
  for (int d = 0; d < dims; ++d)
    if (d != (back ? dims - 1 : dim)) order.push_back(d);
  order.insert(back ? dim : dims - 1, back ? dims - 1 : dim);
  return order;
}

Tensor with_channel(const Tensor& x) {
  Shape shape = x.shape();
  shape.push_back(1);
  return reshape(x, shape);
}

/// [..., n along dim, ...] -> [others..., n, 1]
Tensor to_lines(const Tensor& x, int dim) {
  return with_channel(permute(x, moved(dim, x.dims(), false)));
}
Tensor from_lines(const Tensor& y, int dim) {
  Shape shape = y.shape();
  shape.resize(y.dims() - 1);
  return permute(reshape(y, shape), moved(dim, shape.size(), true));
}

int check_lines(const char* op, const Tensor& x, const Tensor& index, int dim) {
  const int d = wrap_dim(op, dim, x.dims());
  bool fits = index.dims() == x.dims();
  for (int e = 0; fits && e < x.dims(); ++e) fits = e == d || index.shape()[e] == x.shape()[e];
  if (!fits) {
    throw ShapeError(str(op, ": index ", index.shape(), " does not go with ", x.shape(),
                         " (only dimension ", d, " may differ). Use expand() or slice()."));
  }
  if (index.dtype() != DType::kInt32 && index.dtype() != DType::kInt64)
    throw DTypeError(
        str(op, ": indices are ", name(index.dtype()), ", not i32 or i64. Use cast()."));
  return d;
}

int check_scatter(
    const char* op, const Tensor& x, const Tensor& index, const Tensor& values, int dim) {
  const int d = check_lines(op, x, index, dim);
  if (!(values.shape() == index.shape())) {
    throw ShapeError(str(op, ": values ", values.shape(), " are not one for each index ",
                         index.shape(), ". Use expand() or slice()."));
  }
  if (values.dtype() != x.dtype())
    throw DTypeError(str(op, ": values are ", name(values.dtype()), " and x is ", name(x.dtype()),
                         ". Use cast()."));
  return d;
}

void check_mask(const char* op, const Tensor& x, const Tensor& mask) {
  if (mask.dtype() != DType::kBool)
    throw DTypeError(
        str(op, ": the mask is ", name(mask.dtype()), ", not bool. Compare it with something."));
  if (!(broadcast_shape(op, x.shape(), mask.shape()) == x.shape()))
    throw ShapeError(str(op, ": the mask ", mask.shape(), " does not stretch to ", x.shape(),
                         ". Use expand() on x first."));
}

/// How many `flags` (0 or 1) come before each element in row-major order.
Tensor count_before(const Tensor& flags) {
  const int last = flags.dims() - 1;
  const Tensor here = cumsum(flags, last) - flags;
  if (last == 0) return here;
  const Tensor rows = count_before(reduced(sum(flags, {last})));
  return here + with_channel(rows);
}

/// The axes that split x, outermost dimension first, and those of its outermost split dimension.
struct SplitAxes {
  int dim = -1;
  std::vector<int> all;

  explicit SplitAxes(const Layout& layout) {
    for (int d = 0; d < layout.dims(); ++d) {
      if (!layout.is_split(d)) continue;
      if (dim < 0) dim = d;
      all.insert(all.end(), layout.split(d).axes.begin(), layout.split(d).axes.end());
    }
  }
};

/// Selected elements in each part of dimension `dim` of the mask.
std::vector<std::int64_t> counts_by_part(const Tensor& mask, int dim) {
  std::int64_t mine = 0;
  const View view = mask.local();
  for_each_index(Box::whole(view.shape), [&](const Index& i) {
    std::int64_t offset = 0;
    for (int d = 0; d < i.size(); ++d) offset += i[d] * view.strides[d];
    mine += view.as<const bool>()[offset] ? 1 : 0;
  });
  const Layout& layout = mask.layout();
  const Mesh& mesh = layout.mesh();
  if (dim < 0) return {mine};
  const AxisMask axes = layout.split_axes();
  const auto counts = parallel::all_gather_counts(parallel::Group::of(mesh, axes), mine,
                                                  {"masked_select", layout, {}});
  std::vector<std::int64_t> parts(static_cast<std::size_t>(layout.parts(dim)), 0);
  const std::vector<int> members = mesh.group(mesh.rank(), axes);
  for (std::size_t r = 0; r < members.size(); ++r)
    parts[static_cast<std::size_t>(layout.part_of(dim, members[r]))] += counts[r];
  return parts;
}

}  // namespace

Tensor take_along(const Tensor& x, const Tensor& index, int dim) {
  const int d = check_lines("take_along", x, index, dim);
  return from_lines(lookup(to_lines(x, d), to_lines(index, d), {}, x.dims() - 1), d);
}

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  const int d = wrap_dim("index_select", dim, x.dims());
  if (index.dims() != 1)
    throw ShapeError(str("index_select: index ", index.shape(),
                         " is not [m]. Reshape it, or use take_along()."));
  if (d == 0) return gather(x, index);
  Dims order{d};
  Dims back;
  for (int e = 0; e < x.dims(); ++e) {
    if (e != d) order.push_back(e);
    back.push_back(e < d ? e + 1 : e == d ? 0 : e);
  }
  return permute(gather(permute(x, order), index), back);
}

Tensor scatter_add_along(const Tensor& x, const Tensor& index, const Tensor& values, int dim) {
  const int d = check_scatter("scatter_add_along", x, index, values, dim);
  const Layout like = to_lines(x.detach(), d).layout().dual();
  return x +
         from_lines(lookup_add(to_lines(values, d), to_lines(index, d), {}, like, x.dims() - 1), d);
}

Tensor scatter_along(const Tensor& x, const Tensor& index, const Tensor& values, int dim) {
  const int d = check_scatter("scatter_along", x, index, values, dim);
  const Tensor whole = reduced(x);
  const Layout like = to_lines(whole.detach(), d).layout();
  const Tensor lines = to_lines(index, d);
  const Layout& l = lines.layout();
  Shape last_shape = Shape::filled(lines.dims(), 1);
  last_shape[lines.dims() - 2] = l.shape()[lines.dims() - 2];
  const Tensor number = Tensor::from_function(
      Layout::replicated(l.mesh(), last_shape),
      [at = lines.dims() - 2](const Index& i) { return static_cast<double>(i[at] + 1); },
      DType::kInt64);
  // For each place of x one more than the last of the values that name it, else 0.
  const Tensor last =
      from_lines(reduced(lookup_max(expand(number, l), lines, like, x.dims() - 1)), d);
  return where(greater(last, 0.0), take_along(values, affine(last, 1.0, -1.0), d), whole);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_mask("masked_fill", x, mask);
  return where(mask, Tensor::scalar(x.mesh(), value, x.dtype()), x);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_mask("masked_select", x, mask);
  if (dry_run()) {
    throw NotSupported(
        "masked_select: the number of elements has no plan without data (the mask decides it). "
        "Measure a real step.");
  }
  Tensor from = reduced(x);
  const bool whole = from.layout().split_axes() == 0 && mask.shape() == x.shape();
  const Tensor flags = whole ? mask : redistribute(expand(mask, from.layout()), from.layout());
  if (whole) from = redistribute(from, flags.layout());
  if (from.dims() == 0) return masked_select(reshape(from, {1}), reshape(flags, {1}));

  const SplitAxes axes(from.layout());
  const std::vector<std::int64_t> counts = counts_by_part(flags, axes.dim);
  Bounds bounds{0};
  for (const std::int64_t c : counts) bounds.push_back(bounds.back() + c);
  const Shape shape{bounds.back(), 1};

  const Tensor chosen = cast(flags, DType::kInt64);
  const Tensor position =
      where(flags, count_before(chosen), Tensor::scalar(x.mesh(), -1.0, DType::kInt64));
  if (axes.dim < 0) {
    return reshape(lookup_add(with_channel(from), with_channel(position), {},
                              Layout::replicated(x.mesh(), shape), 0),
                   {bounds.back()});
  }
  // Parts of the outermost split dimension own their elements, other axes a share of these.
  const DimSplit by_part{from.layout().split(axes.dim).axes, bounds};
  Bounds shared{0};
  const int shares = from.mesh().parts(from.layout().split_axes()) / from.layout().parts(axes.dim);
  for (std::size_t p = 0; p < counts.size(); ++p) {
    const Bounds inner = balanced_bounds(counts[p], shares);
    for (int s = 1; s <= shares; ++s)
      shared.push_back(bounds[p] + inner[static_cast<std::size_t>(s)]);
  }
  const Tensor y = lookup_add(with_channel(from), with_channel(position), {},
                              Layout::make(x.mesh(), shape, {by_part, {}}), 0);
  return reshape(redistribute(y, Layout::make(x.mesh(), shape, {{axes.all, shared}, {}})),
                 {bounds.back()});
}

}  // namespace tessera
