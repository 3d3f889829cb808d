#include <algorithm>
#include <deque>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/parallel/communicator.hpp>
#include <vector>

#include "tape.hpp"

namespace tessera {

namespace {

/// A bucket is sent off when it has grown to this: large enough that latency does not count, small
/// enough that the first leaves early in backward.
constexpr std::int64_t kBucketBytes = 1 << 20;

/// Unreduced gradients of split leaves that may be on their way at once; a larger one travels
/// alone.
constexpr std::int64_t kScatterBytes = 4 * kBucketBytes;

/// Gradients that share Partial axes, mesh and dtype, reduced together in one flat buffer. Those of
/// leaves that some of these axes split are scattered over them: each rank gets the sum of its
/// part.
struct Bucket {
  Mesh mesh;
  AxisMask axes = 0;
  AxisMask scatter = 0;
  DType dtype = DType::kFloat32;
  std::int64_t elements = 0;
  std::vector<Ref<Node>> leaves;

  bool fits(const Bucket& other) const {
    return mesh == other.mesh && axes == other.axes && scatter == other.scatter &&
           dtype == other.dtype;
  }
  std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
};

struct InFlight {
  Bucket bucket;
  Tensor flat;  // all of it, summed in place; or what is scattered, until it has been
  Tensor out;   // this rank's part of what is scattered
  parallel::Request request;

  bool scattering() const { return flat.defined() && out.defined(); }
};

/// The gradients of all leaves on their way. Buckets fill in the order in which backward completes
/// leaves, which is that of the tape and so the same on every rank.
struct Reducer {
  std::vector<Ref<Node>> listed;  // leaves with a pending gradient that nobody has asked to reduce
  std::vector<Bucket> open;
  std::deque<InFlight> in_flight;
};

Reducer& reducer() {
  static auto* instance = new Reducer;  // outlives static tensors
  return *instance;
}

void add_ready(Node& leaf, Tensor gradient) {
  leaf.gradient = leaf.gradient.defined() ? add(leaf.gradient, gradient) : std::move(gradient);
}

/// The pending gradient of a bucket's only leaf, if nobody else sees its memory; else undefined.
Tensor in_place(const Bucket& bucket, const Layout& flat) {
  if (bucket.leaves.size() != 1) return {};
  const Tensor& pending = bucket.leaves[0]->pending;
  const View all = pending.local();
  if (!pending.is_unshared() || !all.is_dense()) return {};
  return Tensor::alias(pending, flat, View::dense(all.data, all.dtype, flat.local_shape()));
}

/// Copies `part` densely to `to`, and moves that behind it.
void append(const View& part, std::byte*& to) {
  if (part.size() > 0) kernels::copy(part, View::dense(to, part.dtype, part.shape));
  to += part.size() * static_cast<std::int64_t>(size_of(part.dtype));
}

/// The sum of this rank's part has arrived where it was scattered; starts the sum over the axes
/// that do not split.
void end_scatter(InFlight& flight) {
  flight.request.wait();
  flight.flat = Tensor();
  const AxisMask rest = flight.bucket.axes & ~flight.bucket.scatter;
  if (rest == 0) return;
  const View all = flight.out.mutable_local();
  flight.request =
      parallel::all_reduce(parallel::Group::of(flight.bucket.mesh, rest), all.data, all.size(),
                           all.dtype, ReduceOp::kSum, {"gradient reduction", {}, {}});
}

/// Waits until `bytes` more may be on their way.
void make_room(std::int64_t bytes) {
  std::int64_t under_way = 0;
  for (const InFlight& f : reducer().in_flight) under_way += f.scattering() ? f.bucket.bytes() : 0;
  for (InFlight& f : reducer().in_flight) {
    if (under_way == 0 || under_way + bytes <= kScatterBytes) return;
    if (!f.scattering()) continue;
    under_way -= f.bucket.bytes();
    end_scatter(f);
  }
}

/// Copies the pending gradients into one buffer, the part of each member of the group in a row
/// (a single one that lies so stays where it is), gives up theirs, and starts the sums.
void launch_scatter(Bucket bucket) {
  const LayerScope layer("gradient buckets");
  make_room(bucket.bytes());
  const Mesh& mesh = bucket.mesh;
  const std::vector<int> members = mesh.group(mesh.rank(), bucket.scatter);
  std::vector<std::int64_t> counts(members.size(), 0);
  std::vector<View> parts;
  bool in_a_row = bucket.leaves.size() == 1;
  const std::byte* next = nullptr;
  for (std::size_t m = 0; m < members.size(); ++m) {
    for (const Ref<Node>& leaf : bucket.leaves) {
      const Tensor& pending = leaf->pending;
      const Piece held{pending.local(), pending.layout().local_box(), pending.shape()};
      const View part = held.slice(leaf->outputs[0].layout.owned(members[m])).view;
      counts[m] += part.size();
      if (part.size() > 0) {
        in_a_row = in_a_row && part.is_dense() && (next == nullptr || part.data == next);
        next = part.as<std::byte>() + part.size() * static_cast<std::int64_t>(size_of(part.dtype));
      }
      parts.push_back(part);
    }
  }
  const Layout whole = Layout::replicated(mesh, {bucket.elements});
  InFlight flight;
  if (in_a_row) {
    flight.flat = bucket.leaves[0]->pending;
  } else {
    const AllocationScope scope("gradient bucket");
    flight.flat = Tensor::empty(whole, bucket.dtype);
    auto* to = flight.flat.mutable_local().as<std::byte>();
    for (const View& part : parts) append(part, to);
  }
  Bounds bounds = {0};
  DimSplit split;
  for (const std::int64_t n : counts) bounds.push_back(bounds.back() + n);
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (bucket.scatter >> a & 1u) split.axes.push_back(a);
  split.bounds = std::move(bounds);
  {
    const AllocationScope scope("gradients");
    flight.out = Tensor::empty(Layout::make(mesh, {bucket.elements}, {split}), bucket.dtype);
  }
  for (const Ref<Node>& leaf : bucket.leaves) leaf->pending = Tensor();
  const void* const in = flight.flat.local().data;
  flight.request = parallel::reduce_scatter(parallel::Group::of(mesh, bucket.scatter), in,
                                            flight.out.mutable_local().data, counts, bucket.dtype,
                                            ReduceOp::kSum, {"gradient reduction", whole, {}});
  flight.bucket = std::move(bucket);
  reducer().in_flight.push_back(std::move(flight));
}

/// Copies the pending gradients into one buffer (a single one stays where it is), gives up theirs,
/// and starts the sum.
void launch(Bucket bucket) {
  if (bucket.scatter != 0) return launch_scatter(std::move(bucket));
  const LayerScope layer("gradient buckets");
  InFlight flight;
  const Layout flat = Layout::replicated(bucket.mesh, {bucket.elements});
  flight.flat = in_place(bucket, flat);
  const bool copies = !flight.flat.defined();
  if (copies) {
    const AllocationScope scope("gradient bucket");
    flight.flat = Tensor::empty(flat, bucket.dtype);
  }
  const View all = flight.flat.mutable_local();
  auto* to = all.as<std::byte>();
  for (const Ref<Node>& leaf : bucket.leaves) {
    if (copies) append(leaf->pending.local(), to);
    leaf->pending = Tensor();
  }
  const parallel::Group group = parallel::Group::of(bucket.mesh, bucket.axes);
  flight.request = parallel::all_reduce(group, all.data, bucket.elements, bucket.dtype,
                                        ReduceOp::kSum, {"gradient reduction", flat, {}});
  flight.bucket = std::move(bucket);
  reducer().in_flight.push_back(std::move(flight));
}

/// Views into the reduced buffer become the gradients: no copy back.
void land(InFlight& flight) {
  flight.request.wait();
  const Tensor& sums = flight.out.defined() ? flight.out : flight.flat;
  const View all = sums.local();
  std::int64_t offset = 0;
  for (const Ref<Node>& leaf : flight.bucket.leaves) {
    const Layout layout = leaf->outputs[0].layout.dual();
    const View part = View::dense(all.as<std::byte>() + offset, all.dtype, layout.local_shape());
    add_ready(*leaf, Tensor::alias(sums, layout, part));
    offset += part.size() * static_cast<std::int64_t>(size_of(all.dtype));
  }
}

/// Whether `target` splits what `layout` splits, alike, and perhaps more dimensions.
bool splits_further(const Layout& layout, const Layout& target) {
  for (int d = 0; d < layout.dims(); ++d)
    if (layout.is_split(d) && !(layout.split(d) == target.split(d))) return false;
  return true;
}

/// Moves a leaf's pending gradient towards its reduction.
void schedule(const Ref<Node>& leaf) {
  const Layout target = leaf->outputs[0].layout.dual();
  const Layout layout = leaf->pending.layout();
  if (layout == target) {
    add_ready(*leaf, std::move(leaf->pending));
    leaf->pending = Tensor();
    return;
  }
  const AxisMask added = target.split_axes() & ~layout.split_axes();
  if (!splits_further(layout, target) || (added & ~layout.partial_axes()) != 0 ||
      layout.partial_op() != ReduceOp::kSum) {
    Tensor moved = redistribute(leaf->pending, target);
    leaf->pending = Tensor();
    add_ready(*leaf, std::move(moved));
    return;
  }
  Bucket alone{layout.mesh(),          layout.partial_axes(),          added,
               leaf->outputs[0].dtype, layout.local_shape().product(), {leaf}};
  if (alone.bytes() >= kBucketBytes) return launch(std::move(alone));
  std::vector<Bucket>& open = reducer().open;
  auto it = std::find_if(open.begin(), open.end(), [&](const Bucket& b) { return b.fits(alone); });
  if (it == open.end()) {
    open.push_back(std::move(alone));
    it = std::prev(open.end());
  } else {
    it->leaves.push_back(leaf);
    it->elements += alone.elements;
  }
  if (it->bytes() >= kBucketBytes) {
    Bucket full = std::move(*it);
    open.erase(it);
    launch(std::move(full));
  }
}

const Node& leaf_of(const char* op, const Tensor& x) {
  const GradSlot slot = slot_of(x);
  if (!slot || !slot.node->is_leaf()) {
    throw UsageError(
        str(op, ": ", x.str(),
            " is not a leaf (gradients are kept for leaves only). Call require_grad on it before "
            "use, or use grad()."));
  }
  return *slot.node;
}

}  // namespace

void accumulate_leaf(const Ref<Node>& leaf, Tensor contribution, bool reduce) {
  leaf->pending =
      leaf->pending.defined() ? add(leaf->pending, contribution) : std::move(contribution);
  if (reduce) {
    std::erase(reducer().listed, leaf);
    leaf->listed = false;
    schedule(leaf);
  } else if (!leaf->listed) {
    leaf->listed = true;
    reducer().listed.push_back(leaf);
  }
}

void start_reductions() {
  const NoGrad guard;
  std::vector<Ref<Node>> leaves = std::move(reducer().listed);
  reducer().listed.clear();
  for (const Ref<Node>& leaf : leaves) {
    leaf->listed = false;
    schedule(leaf);
  }
  launch_buckets();
}

void launch_buckets() {
  std::vector<Bucket> open = std::move(reducer().open);
  reducer().open.clear();
  for (Bucket& bucket : open) launch(std::move(bucket));
}

void finish_gradients() {
  start_reductions();
  const NoGrad guard;
  for (InFlight& flight : reducer().in_flight)
    if (flight.scattering()) end_scatter(flight);
  while (!reducer().in_flight.empty()) {
    InFlight flight = std::move(reducer().in_flight.front());
    reducer().in_flight.pop_front();
    land(flight);
  }
}

Tensor gradient(const Tensor& leaf) {
  leaf_of("gradient", leaf);
  finish_gradients();
  return slot_of(leaf).node->gradient;
}

void set_gradient(const Tensor& leaf, const Tensor& value) {
  leaf_of("set_gradient", leaf);
  finish_gradients();
  if (!(value.shape() == leaf.shape()) || value.dtype() != leaf.dtype()) {
    throw ShapeError(
        str("set_gradient: ", value.str(), " does not fit the leaf ", leaf.str(), "."));
  }
  const NoGrad guard;
  slot_of(leaf).node->gradient = redistribute(value, leaf.layout().dual());
}

void clear_gradient(const Tensor& leaf) {
  leaf_of("clear_gradient", leaf);
  finish_gradients();
  slot_of(leaf).node->gradient = Tensor();
}

}  // namespace tessera
