#include "sort_split.hpp"

#include <algorithm>
#include <numeric>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/order.hpp>
#include <tessera/parallel/communicator.hpp>
#include <vector>

#include "row_memory.hpp"

namespace tessera {

namespace {

using kernels::Ranked;

/// Elements on their way, in memory that counts.
class Items {
 public:
  explicit Items(std::int64_t count)
      : buffer_(
            MemoryPool::of(Device{}).allocate(static_cast<std::size_t>(count) * sizeof(Ranked))) {}
  Ranked* data() const { return static_cast<Ranked*>(static_cast<void*>(buffer_->data())); }

 private:
  Ref<Buffer> buffer_;
};

constexpr std::int64_t kBytes = sizeof(Ranked);

/// The members of a group by the parts of one dimension that they own.
struct Parts {
  parallel::Group group;
  std::vector<std::size_t> member_of;  // by part
  Bounds bounds;
  std::size_t mine;
  std::int64_t lines;

  Parts(const Tensor& x, int dim, AxisMask axes)
      : group(parallel::Group::of(x.mesh(), axes)), bounds(x.layout().split(dim).bounds) {
    const Mesh& mesh = x.mesh();
    const std::vector<int> members = mesh.group(mesh.rank(), axes);
    member_of.resize(members.size());
    for (std::size_t r = 0; r < members.size(); ++r)
      member_of[static_cast<std::size_t>(x.layout().part_of(dim, members[r]))] = r;
    mine = static_cast<std::size_t>(x.layout().part_of(dim, mesh.rank()));
    Shape others = x.local_shape();
    others.erase(dim);
    lines = others.product();
  }
  std::size_t count() const { return member_of.size(); }
  std::int64_t size(std::size_t part) const { return bounds[part + 1] - bounds[part]; }
};

/// Writes the indices of `items` ([lines, count]) along `dim` of the local part of `index`.
void write(const Ranked* items, const View& index, int dim) {
  View lines = index;
  lines.shape.erase(dim);
  lines.strides.erase(dim);
  const std::int64_t count = index.shape[dim];
  std::int64_t line = 0;
  for_each_index(Box::whole(lines.shape), [&](const Index& at) {
    std::int64_t offset = 0;
    for (int d = 0; d < at.size(); ++d) offset += at[d] * lines.strides[d];
    std::int64_t* const to = index.as<std::int64_t>() + offset;
    for (std::int64_t i = 0; i < count; ++i)
      to[i * index.strides[dim]] = items[line * count + i].index;
    ++line;
  });
}

std::int64_t keys_below(const Ranked* line, std::int64_t from, std::int64_t to, std::uint64_t key) {
  const auto below = [](const Ranked& r, std::uint64_t k) { return r.key < k; };
  return std::lower_bound(line + from, line + to, key, below) - line;
}

/// For each line and each part, how many of the `n` sorted own elements come before the boundary of
/// that part: cuts[line * (parts + 1) + part].
std::vector<std::int64_t> find_cuts(const Parts& parts,
                                    const Ranked* sorted,
                                    int bits,
                                    const Layout& layout) {
  constexpr int kDigit = 4;
  constexpr std::int64_t kValues = 1 << kDigit;
  const std::int64_t n = parts.size(parts.mine);
  const auto inner = static_cast<std::int64_t>(parts.count()) - 1;  // boundaries in each line
  const std::int64_t searches = parts.lines * inner;

  struct Search {
    std::uint64_t key = 0;  // what is known of the key that stands there
    std::int64_t lo = 0;    // own keys below it, whatever the digits to come
    std::int64_t hi = 0;    // own keys that are not above it
  };
  std::vector<Search> search(static_cast<std::size_t>(searches));
  for (Search& s : search) s.hi = n;
  std::vector<std::int64_t> below(static_cast<std::size_t>(searches * kValues));
  std::vector<std::int64_t> mine(below.size());
  for (int shift = bits - kDigit; shift >= 0; shift -= kDigit) {
    for (std::int64_t i = 0; i < searches; ++i) {
      const Ranked* const line = sorted + i / inner * n;
      const Search& s = search[static_cast<std::size_t>(i)];
      std::int64_t at = s.lo;
      for (std::int64_t v = 0; v < kValues; ++v) {
        at = keys_below(line, at, s.hi, s.key + (static_cast<std::uint64_t>(v) << shift));
        mine[static_cast<std::size_t>(i * kValues + v)] = at;
      }
    }
    below = mine;
    parallel::all_reduce(parts.group, below.data(), static_cast<std::int64_t>(below.size()),
                         DType::kInt64, ReduceOp::kSum, {"sort", layout, {}})
        .wait();
    for (std::int64_t i = 0; i < searches; ++i) {
      const std::int64_t wanted = parts.bounds[static_cast<std::size_t>(i % inner) + 1];
      std::int64_t v = kValues - 1;
      while (v > 0 && below[static_cast<std::size_t>(i * kValues + v)] > wanted) --v;
      Search& s = search[static_cast<std::size_t>(i)];
      s.key += static_cast<std::uint64_t>(v) << shift;
      s.lo = mine[static_cast<std::size_t>(i * kValues + v)];
      if (v + 1 < kValues) s.hi = mine[static_cast<std::size_t>(i * kValues + v + 1)];
    }
  }

  // [lo, hi) are now the own elements that are equal to the key: given out in the order of parts.
  std::vector<std::int64_t> counts(static_cast<std::size_t>(2 * searches));
  for (std::size_t i = 0; i < search.size(); ++i) {
    counts[2 * i] = search[i].lo;
    counts[2 * i + 1] = search[i].hi - search[i].lo;
  }
  std::vector<std::int64_t> all(counts.size() * parts.count());
  parallel::all_gather(parts.group, counts.data(), all.data(),
                       static_cast<std::int64_t>(counts.size() * sizeof(std::int64_t)),
                       {"sort", layout, {}})
      .wait();
  std::vector<std::int64_t> cuts(static_cast<std::size_t>(parts.lines * (inner + 2)), 0);
  for (std::int64_t i = 0; i < searches; ++i) {
    std::int64_t missing = parts.bounds[static_cast<std::size_t>(i % inner) + 1];
    std::int64_t before = 0;
    for (std::size_t p = 0; p < parts.count(); ++p) {
      const std::size_t at = parts.member_of[p] * counts.size() + 2 * static_cast<std::size_t>(i);
      missing -= all[at];
      if (p < parts.mine) before += all[at + 1];
    }
    const Search& s = search[static_cast<std::size_t>(i)];
    cuts[static_cast<std::size_t>(i / inner * (inner + 2) + i % inner + 1)] =
        s.lo + std::clamp<std::int64_t>(missing - before, 0, s.hi - s.lo);
  }
  for (std::int64_t line = 0; line < parts.lines; ++line)
    cuts[static_cast<std::size_t>(line * (inner + 2) + inner + 1)] = n;
  return cuts;
}

void refuse_dry_run(const char* op, const Layout& layout) {
  if (!dry_run()) return;
  throw NotSupported(str(op, ": ", layout,
                         " along a split dimension has no plan without data (they decide what is "
                         "sent). Measure a real step."));
}

}  // namespace

void order_split_lines(const Tensor& x, const Tensor& index, int dim, bool falling, AxisMask axes) {
  refuse_dry_run("sort", x.layout());
  const Parts parts(x, dim, axes);
  const std::size_t count = parts.count();
  const std::int64_t n = parts.size(parts.mine);
  const int bits = kernels::key_bits(x.dtype());
  const Items sorted(parts.lines * n);
  kernels::rank_lines(x.local(), dim, falling, x.local_box().lo[dim], n, sorted.data());
  const std::vector<std::int64_t> cuts = find_cuts(parts, sorted.data(), bits, x.layout());

  // How much of each line goes to each member, then the elements: line by line for each member.
  const auto lines = static_cast<std::size_t>(parts.lines);
  std::vector<std::int64_t> give(count * lines);
  std::vector<std::int64_t> get(count * lines);
  const Items sent(parts.lines * n);
  Ranked* next_sent = sent.data();
  std::vector<std::size_t> part_of(count);
  for (std::size_t p = 0; p < count; ++p) part_of[parts.member_of[p]] = p;
  std::vector<std::int64_t> give_counts(count, 0);
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t line = 0; line < lines; ++line) {
      const std::int64_t* const cut = cuts.data() + line * (count + 1) + part_of[r];
      const Ranked* const from = sorted.data() + static_cast<std::int64_t>(line) * n;
      next_sent = std::copy(from + cut[0], from + cut[1], next_sent);
      give_counts[r] += give[r * lines + line] = cut[1] - cut[0];
    }
  }
  const std::vector<std::int64_t> each(count, parts.lines * 8);
  parallel::all_to_all(parts.group, give.data(), each, get.data(), each, {"sort", x.layout(), {}})
      .wait();
  std::vector<std::int64_t> get_counts(count, 0);
  for (std::size_t i = 0; i < get.size(); ++i) get_counts[i / lines] += get[i];
  const Items arrived(std::accumulate(get_counts.begin(), get_counts.end(), std::int64_t{0}));
  parallel::all_to_all(parts.group, sent.data(), times(give_counts, kBytes), arrived.data(),
                       times(get_counts, kBytes), {"sort", x.layout(), {}})
      .wait();

  // Runs in the order of parts, so that equal keys keep the order of their indices.
  std::vector<std::int64_t> next(count, 0);
  for (std::size_t r = 1; r < count; ++r) next[r] = next[r - 1] + get_counts[r - 1];
  Ranked* to = sorted.data();
  for (std::size_t line = 0; line < lines; ++line) {
    Ranked* const begin = to;
    for (std::size_t p = 0; p < count; ++p) {
      const std::size_t r = parts.member_of[p];
      const std::int64_t length = get[r * lines + line];
      to = std::copy_n(arrived.data() + next[r], length, to);
      next[r] += length;
    }
    kernels::sort_by_key(begin, to - begin, bits);
  }
  write(sorted.data(), index.mutable_local(), dim);
}

void top_of_split_lines(
    const Tensor& x, const Tensor& index, int dim, bool falling, AxisMask axes) {
  const Parts parts(x, dim, axes);
  const std::int64_t wanted = index.local_shape()[dim];
  const auto given = [&](std::size_t part) { return std::min(wanted, parts.size(part)); };
  std::vector<std::int64_t> bytes(parts.count());
  std::vector<std::int64_t> start(parts.count());
  std::int64_t total = 0;
  for (std::size_t p = 0; p < parts.count(); ++p)
    bytes[parts.member_of[p]] = parts.lines * given(p);
  for (std::size_t r = 0; r < parts.count(); ++r) {
    start[r] = total;
    total += bytes[r];
  }
  const Items mine(parts.lines * given(parts.mine));
  const Items all(total);
  kernels::rank_lines(x.local(), dim, falling, x.local_box().lo[dim], given(parts.mine),
                      mine.data());
  parallel::all_gather(parts.group, mine.data(), all.data(), times(bytes, kBytes),
                       {"topk", x.layout(), {}})
      .wait();
  if (dry_run()) return;
  const Items chosen(parts.lines * wanted);
  std::vector<Ranked> line;
  for (std::int64_t l = 0; l < parts.lines; ++l) {
    line.clear();
    for (std::size_t p = 0; p < parts.count(); ++p) {
      const Ranked* const from = all.data() + start[parts.member_of[p]] + l * given(p);
      line.insert(line.end(), from, from + given(p));
    }
    std::partial_sort(line.begin(), line.begin() + wanted, line.end());
    std::copy_n(line.begin(), wanted, chosen.data() + l * wanted);
  }
  write(chosen.data(), index.mutable_local(), dim);
}

}  // namespace tessera
