// Attention whose queries and keys are both split. What a rank works on (attention_sharing) is
// brought to it (attention_parts) where it is not what it owns; then keys and values walk through
// the ranks of a ring, the next block travelling while one is worked on.

#include <array>
#include <tessera/kernels/elementwise.hpp>

#include "attention_parts.hpp"
#include "attention_sharing.hpp"
#include "piece_of.hpp"

namespace tessera {

namespace {

using Parts = std::vector<Part>;
constexpr char kName[] = "attention";

/// The ranks of some axes as a ring, seen from this one.
class Ring {
 public:
  Ring(const Layout& layout, AxisMask axes)
      : layout_(layout), members_(layout.mesh().group(layout.mesh().rank(), axes)) {
    while (members_[static_cast<std::size_t>(place_)] != layout.mesh().rank()) ++place_;
  }
  int size() const { return static_cast<int>(members_.size()); }
  /// The rank whose block is here at `step`; its own one again after size() steps.
  int owner(int step) const { return at(place_ - step); }
  parallel::Request send(const Part& part, int tag) const {
    return parallel::isend(part.piece.view.data, part.bytes(), process(1), tag, info());
  }
  parallel::Request receive(const Part& part, int tag) const {
    return parallel::irecv(part.piece.view.data, part.bytes(), process(-1), tag, info());
  }

 private:
  parallel::CallInfo info() const { return {kName, layout_, {}}; }
  int process(int ahead) const { return layout_.mesh().process_of(at(place_ + ahead)); }
  int at(int place) const {
    const int n = size();
    return members_[static_cast<std::size_t>((place % n + n) % n)];
  }
  Layout layout_;
  std::vector<int> members_;
  int place_ = 0;
};

/// Parts on their way to the next rank, or from the one before. Messages of one kind keep their
/// order; blocks and gradients are in flight together.
class Passage {
 public:
  enum Kind { kBlock, kGradient };
  Passage() = default;
  static Passage out(const Ring& ring, Kind kind, Parts parts) {
    return {ring, kind, std::move(parts), true};
  }
  static Passage in(const Ring& ring, Kind kind, Parts parts) {
    return {ring, kind, std::move(parts), false};
  }

  Parts wait() {
    for (parallel::Request& r : requests_) r.wait();
    requests_.clear();
    return std::move(parts_);
  }

 private:
  Passage(const Ring& ring, Kind kind, Parts parts, bool out) : parts_(std::move(parts)) {
    for (const Part& p : parts_)
      if (p.bytes() > 0) requests_.push_back(out ? ring.send(p, kind) : ring.receive(p, kind));
  }
  Parts parts_;
  std::vector<parallel::Request> requests_;  // last: they end before their memory
};

/// One call: what it is asked for, and who works on what.
struct Shared {
  explicit Shared(const RunContext& call)
      : context(call),
        args(call.as<AttentionArgs>()),
        in(layouts(call)),
        sharing(share_attention(args, in, call.axes)),
        boxes(args, sharing, in[0], in[1]),
        dims(args, in[0].dims() - 3),
        options(attention_options(call.args, call.dynamic, dims)),
        ring(in[1], sharing.ring) {}

  /// The axes over which ranks work on other parts than they own.
  AxisMask movers() const {
    return sharing.exchange | (sharing.zigzag ? sharing.ring : AxisMask{0});
  }
  bool moves_pairs(const Tensor& x) const {
    return x.defined() && (x.layout().split_axes() & movers()) != 0;
  }

  Rearranged queries(const Tensor& x) const {
    return {x, [this, shape = x.shape()](int rank) { return boxes.queries(rank, shape); }};
  }
  Rearranged keys(const Tensor& x, int pieces = 1) const {
    return {x, [this, s = x.shape(), pieces](int rank) { return boxes.keys(rank, s, pieces); }};
  }
  Rearranged pairs(const Tensor& x) const {
    return {x, [this, layout = x.layout()](int rank) { return boxes.pairs(rank, layout); }};
  }
  /// Uninitialised parts for the results of these.
  static Parts empty_parts(const Rearranged& r, int rank) {
    Parts parts;
    for (const Box& box : r.boxes(rank))
      parts.push_back(empty_part(box, r.tensor.shape(), r.tensor.dtype()));
    return parts;
  }
  /// Where query results go: in place, or memory from which give_back() brings them.
  Parts result_parts(const Tensor& x) const {
    if (movers() != 0) return empty_parts(queries(x), x.mesh().rank());
    return {{x.buffer(), {x.mutable_local(), x.local_box(), x.shape()}}};
  }

  const RunContext& context;
  const AttentionArgs& args;
  const std::vector<Layout> in;
  const AttentionSharing sharing;
  const AttentionBoxes boxes;
  const AttentionDims dims;
  const kernels::AttentionOptions options;
  const Ring ring;

 private:
  static std::vector<Layout> layouts(const RunContext& call) {
    std::vector<Layout> list;
    for (const Tensor& x : call.in) list.push_back(x.defined() ? x.layout() : Layout());
    return list;
  }
};

/// What this rank works on: an entry per box of queries, one per box of keys.
struct Operands {
  Parts q, out, lse, dout, k, v;
  std::vector<Piece> mask, bias;

  Operands(const Shared& call, bool backward) {
    const std::span<const Tensor> x = call.context.in;
    std::vector<std::pair<Parts*, Rearranged>> wanted = {
        {&q, call.queries(x[0])}, {&k, call.keys(x[1])}, {&v, call.keys(x[2])}};
    if (backward) {
      wanted.push_back({&out, call.queries(x[5])});
      wanted.push_back({&lse, call.queries(x[6])});
      wanted.push_back({&dout, call.queries(x[7])});
    }
    if (call.movers() == 0) {
      for (auto& [parts, from] : wanted) *parts = {own_part(from.tensor)};
      for (Parts* const block : {&k, &v}) block->front() = dense(block->front());
      mask = {piece_of(x[3])};
      bias = {piece_of(x[4])};
      return;
    }
    Parts mask_parts, bias_parts;
    if (call.moves_pairs(x[3])) wanted.push_back({&mask_parts, call.pairs(x[3])});
    if (call.moves_pairs(x[4])) wanted.push_back({&bias_parts, call.pairs(x[4])});
    std::vector<Rearranged> list;
    for (auto& [parts, from] : wanted) list.push_back(from);
    bring(list, call.movers(), kName);
    for (std::size_t i = 0; i < list.size(); ++i) *wanted[i].first = std::move(list[i].parts);
    held_ = mask_parts;
    held_.insert(held_.end(), bias_parts.begin(), bias_parts.end());
    for (std::size_t i = 0; i < q.size(); ++i) {
      mask.push_back(mask_parts.empty() ? piece_of(x[3]) : mask_parts[i].piece);
      bias.push_back(bias_parts.empty() ? piece_of(x[4]) : bias_parts[i].piece);
    }
  }

  /// The kernel's view of one box of queries and some keys.
  kernels::AttentionOperands at(const Shared& call,
                                std::size_t i,
                                const Piece& keys,
                                const Piece& values) const {
    return {call.dims.arranged(q[i].piece), call.dims.arranged(keys), call.dims.arranged(values),
            mask[i], bias[i]};
  }

 private:
  Parts held_;
};

/// Whether some query of a box may see some key of the other, by their positions.
bool sees(const Shared& call, const Piece& q, const Piece& k) {
  if (q.view.empty() || k.view.empty()) return false;
  if (!call.options.causal) return true;
  std::int64_t last_query = 0, first_key = 0;
  for (const std::int64_t dim : call.dims.attended) {
    const auto d = static_cast<int>(dim);
    last_query = last_query * q.global[d] + q.box.hi[d] - 1;
    first_key = first_key * k.global[d] + k.box.lo[d];
  }
  return first_key <= last_query;
}

/// Keys and values on their way: `k` and `v` are worked on while the next block comes.
class Walk {
 public:
  Walk(const Shared& call, Parts keys, Parts values)
      : k(std::move(keys)), v(std::move(values)), call_(call) {}

  void start(int step) {
    if (step + 1 == call_.ring.size()) return;
    Parts here = k, coming;
    here.insert(here.end(), v.begin(), v.end());
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      const Parts parts =
          Shared::empty_parts(call_.keys(call_.context.in[i]), call_.ring.owner(step + 1));
      coming.insert(coming.end(), parts.begin(), parts.end());
    }
    coming_ = Passage::in(call_.ring, Passage::kBlock, std::move(coming));
    leaving_ = Passage::out(call_.ring, Passage::kBlock, std::move(here));
  }
  void finish(int step) {
    if (step + 1 == call_.ring.size()) return;
    leaving_.wait();
    const Parts parts = coming_.wait();
    const auto half = static_cast<std::ptrdiff_t>(parts.size() / 2);
    k.assign(parts.begin(), parts.begin() + half);
    v.assign(parts.begin() + half, parts.end());
  }

  Parts k, v;

 private:
  const Shared& call_;
  Passage coming_, leaving_;
};

}  // namespace

void run_attention(RunContext& context) {
  const Shared call(context);
  Operands x(call, false);
  const Tensor& out = context.out[0];
  const Tensor& lse = context.out[1];
  const Parts outs = call.result_parts(out), lses = call.result_parts(lse);
  const auto view = [&](const Part& part) { return call.dims.arranged(part.piece.view); };

  const int steps = call.ring.size();
  const std::size_t blocks = x.k.size();
  const bool carried = static_cast<std::size_t>(steps) * blocks > 1;
  Parts sums, totals;
  std::vector<kernels::AttentionState> states(x.q.size());
  for (std::size_t i = 0; carried && i < states.size(); ++i) {
    const auto like = [&](const Part& part) {
      return empty_part(part.piece.box, part.piece.global, lse.dtype());
    };
    sums.push_back(out.dtype() == lse.dtype() ? outs[i] : like(outs[i]));
    totals.push_back(like(lses[i]));
    states[i].sum = view(sums[i]);
    states[i].largest = view(lses[i]);
    states[i].total = view(totals[i]);
  }
  Walk walk(call, std::move(x.k), std::move(x.v));
  for (int step = 0; step < steps; ++step) {
    walk.start(step);
    for (std::size_t i = 0; i < x.q.size(); ++i) {
      for (std::size_t j = 0; j < blocks; ++j) {
        kernels::AttentionState& state = states[i];
        state.first = step == 0 && j == 0;
        state.last = step + 1 == steps && j + 1 == blocks;
        const Piece &k = walk.k[j].piece, &v = walk.v[j].piece;
        if (!state.first && !state.last && !sees(call, x.q[i].piece, k)) continue;
        kernels::attention_forward(x.at(call, i, k, v), call.options, state, view(outs[i]),
                                   view(lses[i]));
      }
    }
    walk.finish(step);
  }
  if (call.movers() == 0) return;
  std::array results{call.queries(out), call.queries(lse)};
  results[0].parts = outs;
  results[1].parts = lses;
  give_back(results, call.movers(), kName);
}

namespace {

/// Gradients of the blocks of keys and values, which walk with them: cut into units, so that one is
/// worked on, one arrives and one leaves.
class GradientWalk {
 public:
  /// `dk`, `dv`: where they end.
  GradientWalk(const Shared& call, const Tensor& dk, const Tensor& dv)
      : call_(call),
        dk_(call.keys(dk, pieces(call))),
        dv_(call.keys(dv, pieces(call))),
        units_(dk_.boxes(dk.mesh().rank()).size()) {}

  std::size_t units() const { return units_; }

  /// dk and dv of unit `u` of the block that is here at `step`, with all that the ranks before
  /// added.
  const Parts& take(int step, std::size_t u) {
    if (step == 0) {
      here_ = empty(step, u);
      for (const Part& part : here_) kernels::fill(part.piece.view, 0.0);
    } else {
      here_ = arriving_.wait();
    }
    expect(u + 1 < units_ ? step : step + 1, (u + 1) % units_);
    return here_;
  }
  /// The unit at hand goes on.
  void pass_on() {
    leaving_.wait();
    if (call_.ring.size() == 1) {
      keep(std::move(here_));
    } else {
      leaving_ = Passage::out(call_.ring, Passage::kGradient, std::move(here_));
    }
  }
  /// This rank's own block comes home.
  void finish() {
    if (call_.ring.size() > 1) {
      for (std::size_t u = 0; u < units_; ++u) {
        keep(arriving_.wait());
        if (u + 1 < units_) expect(call_.ring.size(), u + 1);
      }
      leaving_.wait();
    }
    std::array results{std::move(dk_), std::move(dv_)};
    if (call_.movers() != 0) return give_back(results, call_.movers(), kName);
    for (const Rearranged& r : results) {
      const Piece whole{r.tensor.mutable_local(), r.tensor.local_box(), r.tensor.shape()};
      for (const Part& part : r.parts)
        kernels::copy(part.piece.view, whole.slice(part.piece.box).view);
    }
  }

 private:
  /// Two units per block.
  static int pieces(const Shared& call) {
    return call.sharing.zigzag || call.ring.size() == 1 ? 1 : 2;
  }
  Parts empty(int step, std::size_t u) const {
    Parts parts;
    for (const Rearranged* r : {&dk_, &dv_}) {
      const Box box = r->boxes(call_.ring.owner(step))[u];
      parts.push_back(empty_part(box, r->tensor.shape(), r->tensor.dtype()));
    }
    return parts;
  }
  /// Gradients arrive from the second step on, in the order of the units, and at last one's own.
  void expect(int step, std::size_t u) {
    const int steps = call_.ring.size();
    if (steps > 1 && step >= 1 && step <= steps)
      arriving_ = Passage::in(call_.ring, Passage::kGradient, empty(step, u));
  }
  void keep(Parts unit) {
    dk_.parts.push_back(unit[0]);
    dv_.parts.push_back(unit[1]);
  }

  const Shared& call_;
  Rearranged dk_, dv_;
  std::size_t units_;
  Parts here_;
  Passage arriving_, leaving_;
};

}  // namespace

void run_attention_grad(RunContext& context) {
  const Shared call(context);
  Operands x(call, true);
  const Tensor& dq = context.out[0];
  const Parts dqs = call.result_parts(dq);
  for (const Part& part : dqs) kernels::fill(part.piece.view, 0.0);
  const auto view = [&](const Part& part) { return call.dims.arranged(part.piece.view); };
  std::vector<kernels::AttentionSaved> saved;
  for (std::size_t i = 0; i < x.q.size(); ++i)
    saved.push_back({view(x.out[i]), view(x.lse[i]), view(x.dout[i])});

  const bool want_bias = call.args.bias_grad != 0;
  const bool moved_bias = want_bias && call.moves_pairs(context.in[4]);
  Parts dbias;
  for (std::size_t i = 0; want_bias && i < x.q.size(); ++i) {
    const Tensor& t = context.out[3];
    if (i == 0 || moved_bias) {
      dbias.push_back(moved_bias ? empty_part(x.bias[i].box, t.shape(), t.dtype())
                                 : Part{t.buffer(), {t.mutable_local(), t.local_box(), t.shape()}});
      kernels::fill(dbias[i].piece.view, 0.0);
    } else {
      dbias.push_back(dbias[0]);
    }
  }

  GradientWalk gradients(call, context.out[1], context.out[2]);
  Walk walk(call, std::move(x.k), std::move(x.v));
  const int steps = call.ring.size();
  for (int step = 0; step < steps; ++step) {
    walk.start(step);
    for (std::size_t u = 0; u < gradients.units(); ++u) {
      const Parts& unit = gradients.take(step, u);
      const std::size_t block = u * walk.k.size() / gradients.units();
      const Piece k = walk.k[block].piece.slice(unit[0].piece.box);
      const Piece v = walk.v[block].piece.slice(unit[1].piece.box);
      for (std::size_t i = 0; i < x.q.size(); ++i) {
        if (!sees(call, x.q[i].piece, k)) continue;
        const kernels::AttentionOperands operands = x.at(call, i, k, v);
        kernels::attention_grad(operands, call.options, saved[i], view(dqs[i]), view(unit[0]),
                                view(unit[1]));
        if (want_bias && !operands.bias.view.empty())
          kernels::attention_bias_grad(operands, call.options, saved[i], dbias[i].piece.view);
      }
      gradients.pass_on();
    }
    walk.finish(step);
  }
  gradients.finish();
  std::vector<Rearranged> results;
  if (call.movers() != 0) {
    results.push_back(call.queries(dq));
    results.back().parts = dqs;
  }
  if (moved_bias) {
    results.push_back(call.pairs(context.out[3]));
    results.back().parts = dbias;
  }
  if (!results.empty()) give_back(results, call.movers(), kName);
}

}  // namespace tessera
