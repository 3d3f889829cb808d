// Legal placements of attention and of its gradient: samples split alike; heads split with their
// key heads, or with whole keys; queries split with whole keys; and queries and keys both split,
// which takes the algorithms of attention_ring.

#include <optional>

#include "attention_record.hpp"

namespace tessera {

namespace {

enum class Side { kQueries, kKeys, kPairs };
constexpr Side kSides[] = {Side::kQueries, Side::kKeys,    Side::kKeys,    Side::kPairs,
                           Side::kPairs,   Side::kQueries, Side::kQueries, Side::kQueries};
constexpr Side kForwardOut[] = {Side::kQueries, Side::kQueries};
constexpr Side kGradOut[] = {Side::kQueries, Side::kKeys, Side::kKeys, Side::kPairs};

/// The dimensions in which one group splits the tensors of each side; -1: none.
struct Cut {
  int queries = -1;
  int keys = -1;
  int pairs = -1;

  int dim(Side side) const {
    return side == Side::kQueries ? queries : side == Side::kKeys ? keys : pairs;
  }
};

/// Collects the placements on one group, of forward and gradient alike.
class Placements {
 public:
  Placements(const Problem& problem,
             const AxisGroup& group,
             bool gradient,
             std::vector<Signature>& legal)
      : problem_(problem),
        group_(group),
        out_sides_(gradient ? std::span<const Side>(kGradOut) : std::span<const Side>(kForwardOut)),
        run_(gradient ? run_attention_grad : run_attention),
        dims_(problem.as<AttentionArgs>(), problem.shape(0).size() - 3),
        legal_(legal) {}

  void add_all() {
    const int q_heads = problem_.shape(0).size() - 2;
    const int k_heads = problem_.shape(1).size() - 2;
    const std::int64_t ratio = problem_.shape(0)[q_heads] / problem_.shape(1)[k_heads];
    for (const std::int64_t d : dims_.samples) {
      const auto dim = static_cast<int>(d);
      const Cut samples{dim, dim, dims_.in_pairs(dim)};
      if (const int driver = source(samples); driver >= 0) {
        const Bounds b = bounds_of(driver, samples);
        add(samples, driver, b, b, nullptr);
      }
    }
    const int heads = dims_.heads_in_pairs();
    add_heads({q_heads, k_heads, heads}, ratio);
    const Cut query_heads{q_heads, -1, heads};
    if (const int driver = source(query_heads); driver >= 0)
      add(query_heads, driver, bounds_of(driver, query_heads), {}, nullptr);
    for (int d = 1; d < q_heads; ++d) {
      if (dims_.samples.contains(d)) continue;
      const Cut queries{d, -1, dims_.in_pairs(d)};
      if (const int driver = source(queries); driver >= 0)
        add(queries, driver, bounds_of(driver, queries), {}, nullptr);
    }
    add_ring(q_heads, k_heads);
  }

 private:
  bool has(int input, int dim) const {
    const Layout& layout = problem_.in[static_cast<std::size_t>(input)];
    return dim >= 0 && layout.defined() && group_.splits(layout, dim);
  }
  /// The first input (of one side, if given) that is split as the cut says.
  int source(const Cut& cut, std::optional<Side> side = {}) const {
    for (std::size_t i = 0; i < problem_.in.size(); ++i) {
      const bool wanted = !side || kSides[i] == *side;
      if (wanted && has(static_cast<int>(i), cut.dim(kSides[i]))) return static_cast<int>(i);
    }
    return -1;
  }
  const Bounds& bounds_of(int input, const Cut& cut) const {
    const auto i = static_cast<std::size_t>(input);
    return problem_.in[i].split(cut.dim(kSides[i])).bounds;
  }

  /// Each group of query heads with its key head.
  void add_heads(const Cut& cut, std::int64_t ratio) {
    const int driver = source(cut);
    if (driver < 0) return;
    Bounds queries = bounds_of(driver, cut);
    Bounds keys = queries;
    const bool by_keys = kSides[driver] == Side::kKeys;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      if (by_keys) {
        queries[i] *= ratio;
      } else if (queries[i] % ratio != 0) {
        return;
      } else {
        keys[i] /= ratio;
      }
    }
    add(cut, driver, queries, keys, nullptr);
  }

  void add_ring(int q_heads, int k_heads) {
    Cut cut;
    for (int d = k_heads - 1; d >= 1; --d)
      if (!dims_.samples.contains(d) && (has(1, d) || has(2, d))) cut.keys = d;
    const int key_source = source(cut, Side::kKeys);
    if (key_source < 0) return;
    const Bounds keys = bounds_of(key_source, cut);
    int spare = -1;
    for (int d = q_heads - 1; d >= 1; --d) {
      if (dims_.samples.contains(d)) continue;
      Cut with = cut;
      with.queries = d;
      with.pairs = dims_.in_pairs(d);
      int driver = source(with, Side::kQueries);
      if (driver < 0) driver = source(with, Side::kPairs);
      if (driver >= 0) return add(with, driver, bounds_of(driver, with), keys, run_);
      if (problem_.in[0].axes_of(d) == 0) spare = d;
    }
    // Queries that are whole are cut: each rank needs rows of its own.
    if (spare < 0) return;
    cut.queries = spare;
    cut.pairs = dims_.in_pairs(spare);
    const std::int64_t n = problem_.shape(0)[spare];
    add(cut, key_source, keys.back() == n ? keys : balanced_bounds(n, group_.parts), keys, run_);
  }

  Role role(Side side, const Shape& shape, const Cut& cut, bool output) const {
    const int d = cut.dim(side);
    if (d >= 0 && (side != Side::kPairs || shape[d] > 1)) return shard_role(d);
    return output ? partial_role() : replicate_role();
  }

  void add(const Cut& cut,
           int driver,
           const Bounds& queries,
           const Bounds& keys,
           void (*run)(RunContext&)) {
    Signature s;
    const std::size_t inputs = problem_.in.size();
    for (std::size_t i = 0; i < inputs; ++i) {
      const bool defined = problem_.in[i].defined();
      s.in.push_back(defined ? role(kSides[i], problem_.in[i].shape(), cut, false)
                             : replicate_role());
    }
    for (std::size_t j = 0; j < problem_.out.size(); ++j)
      s.out.push_back(role(out_sides_[j], problem_.out[j].shape, cut, true));
    s.driver = driver;
    s.run = run;
    s.bounds = [=, sides = out_sides_](int t, const Bounds&) {
      const auto i = static_cast<std::size_t>(t);
      const Side side = i < inputs ? kSides[i] : sides[i - inputs];
      return side == Side::kKeys ? keys : queries;
    };
    legal_.push_back(std::move(s));
  }

  const Problem& problem_;
  const AxisGroup& group_;
  std::span<const Side> out_sides_;
  void (*run_)(RunContext&);
  AttentionDims dims_;
  std::vector<Signature>& legal_;
};

}  // namespace

void attention_signatures(const Problem& problem,
                          const AxisGroup& group,
                          std::vector<Signature>& legal) {
  Placements(problem, group, false, legal).add_all();
}

void attention_grad_signatures(const Problem& problem,
                               const AxisGroup& group,
                               std::vector<Signature>& legal) {
  Placements(problem, group, true, legal).add_all();
}

}  // namespace tessera
