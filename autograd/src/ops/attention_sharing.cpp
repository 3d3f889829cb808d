#include "attention_sharing.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace tessera {

namespace {

/// Of one rank of a CPU node; only their ratios matter.
constexpr double kFlopsPerSecond = 1e11;
constexpr double kBytesPerSecond = 5e9;
constexpr double kSecondsPerMessage = 1e-5;
constexpr double kBackwardWork = 2.5;  // beside forward: five matrix products against two

bool has(AxisMask axes, int axis) { return (axes >> axis & 1u) != 0; }

/// How many of the axes that split dimension `dim` innermost are in `axes`; -1 when others of them
/// lie further out.
int innermost(const Layout& layout, int dim, AxisMask axes) {
  const std::vector<int>& list = layout.split(dim).axes;
  int count = 0;
  for (auto a = list.rbegin(); a != list.rend() && has(axes, *a); ++a) ++count;
  for (std::size_t i = 0; i + static_cast<std::size_t>(count) < list.size(); ++i)
    if (has(axes, list[i])) return -1;
  return count;
}

bool can_exchange(const Layout& q, const Layout& k, AxisMask exchange) {
  for (const Layout& layout : {q, k})
    for (int d = 1; d + 2 < layout.dims(); ++d)
      if (innermost(layout, d, exchange) < 0) return false;
  return true;
}

/// The dimension whose chunks balance causal work; -1: none. It has to be the outermost one of the
/// order of positions, split alike in queries and keys, and the ring runs along it alone.
int zigzag_dim(const AttentionArgs& args, const Layout& q, const Layout& k, AxisMask ring) {
  if (args.causal == 0 || ring == 0 || q.dims() != k.dims()) return -1;
  const AttentionDims dims(args, q.dims() - 3);
  int outermost = -1;
  for (int i = dims.attended.size() - 1; i >= 0; --i) {
    const int d = static_cast<int>(dims.attended[i]);
    if (q.shape()[d] != k.shape()[d]) return -1;
    if (q.shape()[d] > 1) outermost = d;
  }
  if (outermost < 0) return -1;
  const AxisMask both = q.axes_of(outermost) & k.axes_of(outermost);
  return (both & ring) == ring ? outermost : -1;
}

/// Query heads [lo, hi) and the key heads that they read, for part `part` of `parts` of the query
/// heads `all`.
struct HeadParts {
  Interval queries, keys;

  HeadParts(Interval all, std::int64_t ratio, int part, int parts) {
    const auto i = static_cast<std::size_t>(part);
    const Interval groups{all.lo / ratio, (all.hi + ratio - 1) / ratio};
    const Bounds by_query = balanced_bounds(all.size(), parts);
    const Bounds by_key = balanced_bounds(groups.size(), parts);
    // Whole groups travel once; they are cut only where that makes the largest part smaller.
    if (largest(by_key) * ratio <= largest(by_query)) {
      queries = {std::max(all.lo, (groups.lo + by_key[i]) * ratio),
                 std::min(all.hi, (groups.lo + by_key[i + 1]) * ratio)};
    } else {
      queries = {all.lo + by_query[i], all.lo + by_query[i + 1]};
    }
    keys = queries.empty() ? Interval{groups.lo, groups.lo}
                           : Interval{queries.lo / ratio, (queries.hi + ratio - 1) / ratio};
  }

 private:
  static std::int64_t largest(const Bounds& bounds) {
    std::int64_t most = 0;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
      most = std::max(most, bounds[i + 1] - bounds[i]);
    return most;
  }
};

double bytes_per_rank(const Layout& layout, double element) {
  return element * static_cast<double>(layout.shape().product()) /
         layout.mesh().parts(layout.split_axes());
}

/// Seconds of forward and backward on the busiest rank, for what differs between sharings.
double seconds(const AttentionArgs& args,
               std::span<const Layout> in,
               const AttentionSharing& sharing) {
  const Layout &q = in[0], &k = in[1], &v = in[2];
  const Mesh& mesh = q.mesh();
  const int head_dim = q.dims() - 2;
  constexpr double kElement = 4.0;
  const int parts = mesh.parts(sharing.exchange);
  const int ring = mesh.parts(sharing.ring);

  const std::int64_t ratio = q.shape()[head_dim] / k.shape()[k.dims() - 2];
  const std::int64_t heads = q.shape()[head_dim] / mesh.parts(q.axes_of(head_dim));
  std::int64_t most = 0, key_heads = 0;
  for (int i = 0; i < parts; ++i) {
    const HeadParts p({0, heads}, ratio, i, parts);
    most = std::max(most, p.queries.size());
    key_heads += p.keys.size();
  }
  const double uneven = static_cast<double>(most * parts) / static_cast<double>(heads);
  const double copies =
      static_cast<double>(key_heads * ratio) / static_cast<double>(std::max(heads, ratio));

  const AttentionDims dims(args, q.dims() - 3);
  double keys = 1.0;
  for (int d = 1; d + 2 < k.dims(); ++d)
    if (args.attended == 0 || dims.attended.contains(d)) keys *= static_cast<double>(k.shape()[d]);
  const double q_bytes = bytes_per_rank(q, kElement);
  const double kv_bytes = (bytes_per_rank(k, kElement) + bytes_per_rank(v, kElement)) * copies;
  // Without balance the last rank sees all keys but half of its own.
  const bool causal = args.causal != 0;
  const double seen = !causal ? 1.0 : sharing.zigzag ? 0.5 : 1.0 - 0.5 / ring;
  const double forward = 4.0 * q_bytes / kElement * keys * uneven * seen / kFlopsPerSecond;

  const auto exposed = [&](double blocks, double work) {
    return std::max(0.0, blocks * kv_bytes / kBytesPerSecond + kSecondsPerMessage - work / ring);
  };
  double total = (1.0 + kBackwardWork) * forward;
  if (ring > 1)
    total += (ring - 1) * exposed(1.0, forward) + ring * exposed(2.0, kBackwardWork * forward);
  const int movers = parts * (sharing.zigzag ? ring : 1);
  if (movers > 1) {
    // q, k, v there and out back; in backward q, k, v, out, dout there and dq, dk, dv back.
    double moved = 6.0 * q_bytes + 3.0 * kv_bytes;
    for (const std::size_t i : {std::size_t{3}, std::size_t{4}}) {
      if (in[i].defined() && (in[i].split_axes() & (sharing.exchange | sharing.ring)) != 0)
        moved += 2.0 * bytes_per_rank(in[i], kElement);
    }
    total += moved * (movers - 1) / movers / kBytesPerSecond + 5.0 * movers * kSecondsPerMessage;
  }
  return total;
}

/// What TESSERA_ATTENTION asks for where the call does not.
std::optional<AxisMask> asked_by_environment() {
  static const std::string_view text = [] {
    const char* value = std::getenv("TESSERA_ATTENTION");
    return value == nullptr ? std::string_view() : std::string_view(value);
  }();
  if (text.empty() || text == "auto") return {};
  if (text == "ring") return AxisMask{0};
  if (text == "heads") return ~AxisMask{0};
  throw UsageError(
      str("attention: TESSERA_ATTENTION is ", std::string(text), ". Use ring, heads or auto."));
}

std::string axes_text(const Mesh& mesh, AxisMask axes) {
  std::string text;
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (has(axes, a)) text += (text.empty() ? "" : "*") + mesh.axis_name(a);
  return text;
}

}  // namespace

std::string AttentionSharing::str(const Mesh& mesh) const {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
  if (exchange != 0) add("heads(" + axes_text(mesh, exchange) + ")");
  if (ring != 0) add("ring(" + axes_text(mesh, ring) + ")");
  if (zigzag) add("zigzag");
  return text;
}

AttentionSharing share_attention(const AttentionArgs& args,
                                 std::span<const Layout> in,
                                 AxisMask axes) {
  const Layout &q = in[0], &k = in[1];
  std::optional<AxisMask> asked = asked_by_environment();
  if (args.exchange != AttentionArgs::kAutomatic) asked = static_cast<AxisMask>(args.exchange);
  std::optional<AttentionSharing> best;
  double least = 0.0;
  const auto consider = [&](AxisMask exchange) {
    const AxisMask ring = axes & ~exchange;
    const bool can_balance = zigzag_dim(args, q, k, ring) >= 0;
    for (const bool zigzag : {false, true}) {
      if (zigzag && !can_balance) continue;
      if (can_balance && args.balance != AttentionArgs::kAutomatic &&
          zigzag != (args.balance == 1)) {
        continue;
      }
      const AttentionSharing sharing{exchange, ring, zigzag};
      const double cost = seconds(args, in, sharing);
      if (best && cost >= least) continue;
      best = sharing;
      least = cost;
    }
  };
  if (asked) {
    if (!can_exchange(q, k, *asked & axes)) {
      throw LayoutError(str("attention: the axes ", axes_text(q.mesh(), *asked & axes),
                            " cannot exchange heads (others split the tokens of ", q, " or ", k,
                            " further in). Choose the innermost axes of each dimension."));
    }
    consider(*asked & axes);
    return *best;
  }
  // All subsets, the empty one first: of equals the ring is taken.
  for (AxisMask exchange = 0;; exchange = (exchange - axes) & axes) {
    if (can_exchange(q, k, exchange)) consider(exchange);
    if (exchange == axes) return *best;
  }
}

// ---- boxes ----

namespace {

/// The place of `rank` among the ranks of its group of these axes.
int place_in(const Mesh& mesh, int rank, AxisMask axes) {
  int place = 0;
  for (int a = 0; a < mesh.axis_count(); ++a)
    if (has(axes, a)) place = place * mesh.axis_size(a) + mesh.coordinate(rank, a);
  return place;
}

Dims without(Dims dims, int d) {
  dims.erase(d);
  return dims;
}

}  // namespace

AttentionBoxes::AttentionBoxes(const AttentionArgs& args,
                               const AttentionSharing& sharing,
                               const Layout& q,
                               const Layout& k)
    : dims_(args, q.dims() - 3),
      sharing_(sharing),
      zigzag_dim_(sharing.zigzag ? zigzag_dim(args, q, k, sharing.ring) : -1),
      q_(q),
      k_(k) {}

Interval AttentionBoxes::heads(int rank, bool of_keys) const {
  const Mesh& mesh = q_.mesh();
  const int dim = q_.dims() - 2;
  const HeadParts parts(q_.owned(dim, rank), q_.shape()[dim] / k_.shape()[k_.dims() - 2],
                        place_in(mesh, rank, sharing_.exchange), mesh.parts(sharing_.exchange));
  return of_keys ? parts.keys : parts.queries;
}

std::vector<Box> AttentionBoxes::tokens(const Layout& layout,
                                        int rank,
                                        bool of_keys,
                                        const Shape& shape) const {
  const Mesh& mesh = layout.mesh();
  Box box = layout.owned(rank);
  for (int d = 1; d + 2 < layout.dims(); ++d) {
    const DimSplit& split = layout.split(d);
    int together = 1;
    for (const int a : split.axes)
      if (has(sharing_.exchange, a)) together *= mesh.axis_size(a);
    const auto first = static_cast<std::size_t>(layout.part_of(d, rank) / together * together);
    if (together > 1)
      box.set(d, {split.bounds[first], split.bounds[first + static_cast<std::size_t>(together)]});
  }
  const int channels = layout.dims() - 1;
  if (sharing_.exchange != 0) box.set(channels - 1, heads(rank, of_keys));
  if (shape.size() > channels) {
    box.set(channels, {0, shape[channels]});
  } else {
    box = Box(without(box.lo, channels), without(box.hi, channels));
  }
  if (!sharing_.zigzag) return {box};

  const auto place = static_cast<std::size_t>(place_in(mesh, rank, sharing_.ring));
  const auto chunks = 2 * static_cast<std::size_t>(mesh.parts(sharing_.ring));
  const Bounds bounds = balanced_bounds(shape[zigzag_dim_], static_cast<int>(chunks));
  std::vector<Box> both;
  for (const std::size_t chunk : {place, chunks - 1 - place}) {
    box.set(zigzag_dim_, {bounds[chunk], bounds[chunk + 1]});
    both.push_back(box);
  }
  return both;
}

std::vector<Box> AttentionBoxes::queries(int rank, const Shape& shape) const {
  return tokens(q_, rank, false, shape);
}

std::vector<Box> AttentionBoxes::keys(int rank, const Shape& shape, int pieces) const {
  std::vector<Box> result;
  for (const Box& box : tokens(k_, rank, true, shape)) {
    int longest = -1;
    for (int d = 1; d + 2 < k_.dims(); ++d) {
      if (dims_.samples.contains(d)) continue;
      if (longest < 0 || box[d].size() > box[longest].size()) longest = d;
    }
    const Bounds bounds = balanced_bounds(box[longest].size(), pieces);
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      Box piece = box;
      piece.set(longest, {box.lo[longest] + bounds[i], box.lo[longest] + bounds[i + 1]});
      result.push_back(piece);
    }
  }
  return result;
}

std::vector<Box> AttentionBoxes::pairs(int rank, const Layout& pairs) const {
  std::vector<Box> result;
  for (const Box& query : tokens(q_, rank, false, q_.shape())) {
    Box box = pairs.owned(rank);
    const auto take = [&](int d, Interval part) {
      if (pairs.shape()[d] > 1) box.set(d, part);
    };
    for (int d = 0; d + 2 < q_.dims(); ++d) take(dims_.in_pairs(d), query[d]);
    take(dims_.heads_in_pairs(), query[q_.dims() - 2]);
    result.push_back(box);
  }
  return result;
}

}  // namespace tessera
