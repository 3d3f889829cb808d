#include <algorithm>
#include <mutex>
#include <ostream>
#include <tessera/core/hash.hpp>
#include <tessera/core/layout.hpp>
#include <unordered_map>

namespace tessera {

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

Bounds balanced_bounds(std::int64_t n, int parts, std::int64_t multiple) {
  const std::int64_t blocks = (n + multiple - 1) / multiple;
  Bounds bounds;
  for (int p = 0; p <= parts; ++p) bounds.push_back(std::min(n, blocks * p / parts * multiple));
  return bounds;
}

bool Layout::Data::equals(const Data& other) const {
  return mesh == other.mesh && shape == other.shape && partial == other.partial && op == other.op &&
         splits == other.splits;
}

namespace {

/// Layouts alive now, by content hash. Weak: a layout leaves when its last owner does.
struct Interned {
  std::mutex mutex;
  std::unordered_multimap<std::uint64_t, const void*> table;
  std::uint64_t next_id = 1;
};

Interned& interned() {
  static auto* instance = new Interned;  // outlives static tensors
  return *instance;
}

}  // namespace

void Layout::Data::dispose() const {
  {
    const std::lock_guard lock(interned().mutex);
    if (use_count() != 0) return;  // found again by make() before we got the lock
    auto [it, end] = interned().table.equal_range(hash);
    for (; it != end; ++it) {
      if (it->second == this) {
        interned().table.erase(it);
        break;
      }
    }
  }
  delete this;
}

Layout::Layout(Ref<const Data> data) : data_(std::move(data)) {}

Layout Layout::make(const Mesh& mesh,
                    const Shape& shape,
                    std::vector<DimSplit> splits,
                    AxisMask partial,
                    ReduceOp partial_op) {
  if (!mesh.defined())
    throw LayoutError("layout: the mesh is undefined. Create one, e.g. with Runtime::mesh().");
  splits.resize(static_cast<std::size_t>(shape.size()));
  AxisMask used = 0;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0)
      throw ShapeError(
          tessera::str("layout: negative size in ", shape, ". Use sizes of 0 or more."));
    DimSplit& split = splits[static_cast<std::size_t>(d)];
    AxisMask own = 0;
    for (const int a : split.axes) {
      if (a < 0 || a >= mesh.axis_count()) {
        throw LayoutError(
            tessera::str("layout: axis ", a, " is not in the mesh (", mesh.str(), ")."));
      }
      if ((used | own) >> a & 1u) {
        throw LayoutError(tessera::str("layout: axis '", mesh.axis_name(a),
                                       "' splits two dimensions of ", shape,
                                       " (an axis can split one). Use another axis."));
      }
      own |= AxisMask{1} << a;
    }
    used |= own;
    std::erase_if(split.axes, [&](int a) { return mesh.axis_size(a) == 1; });
    if (split.axes.empty()) {
      split.bounds.clear();
      continue;
    }
    if (split.bounds.empty()) split.bounds = balanced_bounds(shape[d], mesh.parts(own));
    const Bounds& b = split.bounds;
    if (static_cast<int>(b.size()) != mesh.parts(own) + 1 || b.front() != 0 ||
        b.back() != shape[d] || !std::is_sorted(b.begin(), b.end())) {
      throw LayoutError(tessera::str("layout: boundaries of dimension ", d, " do not cut 0..",
                                     shape[d], " into ", mesh.parts(own),
                                     " parts. They must rise from 0 to the size."));
    }
  }
  if (partial & used) {
    throw LayoutError(
        tessera::str("layout: an axis both splits and is Partial (mesh ", mesh.str(), ")."));
  }
  // Axes of one rank neither split nor sum: one canonical form, equal pointers.
  for (int a = 0; a < mesh.axis_count(); ++a) {
    if (mesh.axis_size(a) > 1) continue;
    partial &= ~(AxisMask{1} << a);
    used &= ~(AxisMask{1} << a);
  }
  if (partial == 0) partial_op = ReduceOp::kSum;

  Ref<Data> data(new Data);
  data->mesh = mesh;
  data->shape = shape;
  data->splits = std::move(splits);
  data->split_axes = used;
  data->partial = partial;
  data->op = partial_op;
  Hasher hasher;
  hasher.add(mesh.hash());
  for (const std::int64_t n : shape) hasher.add(static_cast<std::uint64_t>(n));
  for (const DimSplit& s : data->splits) {
    hasher.add(s.axes.size());
    for (const int a : s.axes) hasher.add(static_cast<std::uint64_t>(a));
    for (const std::int64_t b : s.bounds) hasher.add(static_cast<std::uint64_t>(b));
  }
  hasher.add(partial);
  hasher.add(static_cast<std::uint64_t>(partial_op));
  data->hash = hasher.value();

  const std::lock_guard lock(interned().mutex);
  auto [it, end] = interned().table.equal_range(data->hash);
  for (; it != end; ++it) {
    const auto* other = static_cast<const Data*>(it->second);
    if (other->equals(*data)) return Layout(Ref<const Data>(other));
  }
  data->id = interned().next_id++;
  const int rank = mesh.rank();
  Layout layout{Ref<const Data>(data.get())};
  data->local_box = rank < 0 ? Box(Dims::filled(shape.size(), 0), Dims::filled(shape.size(), 0))
                             : layout.owned(rank);
  data->local_shape = data->local_box.shape();
  interned().table.emplace(data->hash, data.get());
  return layout;
}

Layout Layout::replicated(const Mesh& mesh, const Shape& shape) { return make(mesh, shape, {}); }

int Layout::parts(int dim) const {
  return is_split(dim) ? static_cast<int>(split(dim).bounds.size()) - 1 : 1;
}

AxisMask Layout::axes_of(int dim) const {
  AxisMask mask = 0;
  for (const int a : split(dim).axes) mask |= AxisMask{1} << a;
  return mask;
}

int Layout::part_of(int dim, int rank) const {
  int part = 0;
  for (const int a : split(dim).axes)
    part = part * mesh().axis_size(a) + mesh().coordinate(rank, a);
  return part;
}

Interval Layout::owned(int dim, int rank) const {
  if (!is_split(dim)) return {0, shape()[dim]};
  const auto part = static_cast<std::size_t>(part_of(dim, rank));
  return {split(dim).bounds[part], split(dim).bounds[part + 1]};
}

Box Layout::owned(int rank) const {
  Box box = Box::whole(shape());
  for (int d = 0; d < dims(); ++d) box.set(d, owned(d, rank));
  return box;
}

Layout Layout::dual() const { return partial_axes() ? with_partial(0) : *this; }

Layout Layout::with_partial(AxisMask partial, ReduceOp op) const {
  return make(mesh(), shape(), data_->splits, partial, op);
}

Layout Layout::with_dim(int dim, std::int64_t size, const DimSplit& split) const {
  Shape shape = this->shape();
  shape[dim] = size;
  std::vector<DimSplit> splits = data_->splits;
  splits[static_cast<std::size_t>(dim)] = split;
  return make(mesh(), shape, std::move(splits), partial_axes(), partial_op());
}

Layout Layout::without_dim(int dim) const {
  if (is_split(dim)) {
    throw LayoutError(
        tessera::str("layout: dimension ", dim, " of ", *this, " is split and cannot be dropped."));
  }
  Shape shape = this->shape();
  shape.erase(dim);
  std::vector<DimSplit> splits = data_->splits;
  splits.erase(splits.begin() + dim);
  return make(mesh(), shape, std::move(splits), partial_axes(), partial_op());
}

Layout Layout::with_inserted_dim(int dim, std::int64_t size) const {
  Shape shape = this->shape();
  shape.insert(dim, size);
  std::vector<DimSplit> splits = data_->splits;
  splits.insert(splits.begin() + dim, DimSplit{});
  return make(mesh(), shape, std::move(splits), partial_axes(), partial_op());
}

std::string Layout::str() const {
  if (!defined()) return "(undefined)";
  std::string text = "[";
  for (int d = 0; d < dims(); ++d) {
    text += tessera::str(d ? ", " : "", shape()[d]);
    if (!is_split(d)) continue;
    text += "/";
    for (std::size_t i = 0; i < split(d).axes.size(); ++i)
      text += (i ? "*" : "") + mesh().axis_name(split(d).axes[i]);
    if (split(d).bounds != balanced_bounds(shape()[d], parts(d))) {
      text += "(";
      const Bounds& b = split(d).bounds;
      for (std::size_t i = 0; i < b.size() && i < 12; ++i) text += tessera::str(i ? " " : "", b[i]);
      text += b.size() > 12 ? " ...)" : ")";
    }
  }
  text += "]";
  if (partial_axes()) {
    text += partial_op() == ReduceOp::kSum ? " partial("
                                           : tessera::str(" partial-", name(partial_op()), "(");
    bool first = true;
    for (int a = 0; a < mesh().axis_count(); ++a) {
      if (!(partial_axes() >> a & 1u)) continue;
      text += (first ? "" : ",") + mesh().axis_name(a);
      first = false;
    }
    text += ")";
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.str(); }

Placement Placement::batch(std::string_view axis) const { return shard(0, {axis}); }

Placement Placement::shard(int dim, std::vector<std::string_view> axes, bool domain) const {
  if (!mesh_.defined()) throw LayoutError("placement: no mesh. Construct it as Placement(mesh).");
  Placement result = *this;
  Entry entry{dim, {}, domain};
  for (const std::string_view a : axes) entry.axes.push_back(mesh_.axis(a));
  for (Entry& other : result.entries_) {
    if (other.dim == dim) {
      throw LayoutError(tessera::str("placement: dimension ", dim,
                                     " is placed twice. Name all its axes in one shard()."));
    }
  }
  result.entries_.push_back(std::move(entry));
  return result;
}

Placement Placement::batch_only() const {
  Placement result(mesh_);
  for (const Entry& entry : entries_)
    if (entry.dim == 0) result.entries_.push_back(entry);
  return result;
}

Layout Placement::resolve(const Shape& shape, const ResolveOptions& options) const {
  if (!mesh_.defined()) throw LayoutError("placement: no mesh. Construct it as Placement(mesh).");
  if (options.multiple < 1) throw LayoutError("placement: multiple must be at least 1.");
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  for (const Entry& entry : entries_) {
    if (entry.dim < 0 || entry.dim >= shape.size()) {
      throw LayoutError(tessera::str(
          "placement: splits dimension ", entry.dim, " but the tensor ", shape, " has ",
          shape.size(), ". Use batch_only() for per-sample values, or another placement."));
    }
    AxisMask mask = 0;
    for (const int a : entry.axes) mask |= AxisMask{1} << a;
    const int parts = mesh_.parts(mask);
    const std::int64_t n = shape[entry.dim];
    splits[static_cast<std::size_t>(entry.dim)] = {
        entry.axes, balanced_bounds(n, parts, entry.domain ? options.multiple : 1)};
  }
  return Layout::make(mesh_, shape, std::move(splits));
}

std::string Placement::str() const {
  std::string text;
  for (const Entry& entry : entries_) {
    text += tessera::str(text.empty() ? "" : " ", "dim ", entry.dim, " over ");
    for (std::size_t i = 0; i < entry.axes.size(); ++i)
      text += (i ? "*" : "") + mesh_.axis_name(entry.axes[i]);
  }
  return text.empty() ? "replicated" : text;
}

}  // namespace tessera
