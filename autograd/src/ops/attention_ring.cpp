#include "attention_ring.hpp"

#include <array>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/parallel/communicator.hpp>

#include "piece_of.hpp"

namespace tessera {

namespace {

/// The ranks of some axes as a ring, seen from this one.
class Ring {
 public:
  Ring(const Mesh& mesh, AxisMask axes) : mesh_(mesh), members_(mesh.group(mesh.rank(), axes)) {
    while (members_[static_cast<std::size_t>(place_)] != mesh.rank()) ++place_;
  }
  int size() const { return static_cast<int>(members_.size()); }
  /// The rank whose block is here at `step`; its own one again after size() steps.
  int owner(int step) const { return at(place_ - step); }
  int next() const { return mesh_.process_of(at(place_ + 1)); }
  int previous() const { return mesh_.process_of(at(place_ - 1)); }

 private:
  int at(int place) const {
    const int n = size();
    return members_[static_cast<std::size_t>((place % n + n) % n)];
  }
  Mesh mesh_;
  std::vector<int> members_;
  int place_ = 0;
};

/// Part of one tensor in memory of its own or of the tensor.
struct Part {
  Ref<Buffer> buffer;
  Piece piece;

  std::int64_t bytes() const {
    return piece.view.size() * static_cast<std::int64_t>(size_of(piece.view.dtype));
  }
};
using Pair = std::array<Part, 2>;

/// Uninitialised memory for what `rank` owns of a tensor of this layout.
Part empty_part(const Layout& layout, int rank, DType dtype) {
  const Box box = layout.owned(rank);
  const Shape shape = box.shape();
  Part part;
  part.buffer =
      MemoryPool::of(Device{}).allocate(static_cast<std::size_t>(shape.product()) * size_of(dtype));
  part.piece = {View::dense(part.buffer->data(), dtype, shape), box, layout.shape()};
  return part;
}

/// This rank's part, dense, in place where it is.
Part own_part(const Tensor& x) {
  Part part{x.buffer(), piece_of(x)};
  if (part.piece.view.is_dense()) return part;
  part = empty_part(x.layout(), x.mesh().rank(), x.dtype());
  kernels::copy(x.local(), part.piece.view);
  return part;
}

parallel::Request pass_on(const Ring& ring, const Pair& out, const Pair& in, const Layout& layout) {
  std::vector<parallel::Send> sends;
  std::vector<parallel::Recv> recvs;
  for (const Part& p : out)
    if (p.bytes() > 0) sends.push_back({ring.next(), p.piece.view.data, p.bytes()});
  for (const Part& p : in)
    if (p.bytes() > 0) recvs.push_back({ring.previous(), p.piece.view.data, p.bytes()});
  return parallel::exchange_messages(sends, recvs, {"attention", layout, {}});
}

/// Keys and values on their way: `here` is worked on while the next block comes.
class Walk {
 public:
  Walk(const Tensor& k, const Tensor& v, AxisMask axes)
      : ring(k.mesh(), axes), k_(k), v_(v), here{own_part(k), own_part(v)} {}

  void start(int step) {
    if (step + 1 == ring.size()) return;
    coming_ = {empty_part(k_.layout(), ring.owner(step + 1), k_.dtype()),
               empty_part(v_.layout(), ring.owner(step + 1), v_.dtype())};
    request_ = pass_on(ring, here, coming_, k_.layout());
  }
  void finish(int step) {
    if (step + 1 == ring.size()) return;
    request_.wait();
    here = std::move(coming_);
  }

  const Ring ring;

 private:
  const Tensor& k_;
  const Tensor& v_;

 public:
  Pair here;

 private:
  Pair coming_;
  parallel::Request request_;  // last: it ends before its memory
};

kernels::AttentionOperands operands_of(const RunContext& context, const Pair& kv) {
  return {piece_of(context.in[0]), kv[0].piece, kv[1].piece, piece_of(context.in[3]),
          piece_of(context.in[4])};
}

}  // namespace

kernels::AttentionOptions attention_options(const void* args, const void* dynamic) {
  const auto& scalars = *static_cast<const AttentionScalars*>(dynamic);
  return {.scale = scalars.scale,
          .causal = static_cast<const AttentionArgs*>(args)->causal != 0,
          .dropout = scalars.dropout,
          .key = {scalars.key.high, scalars.key.low}};
}

void run_attention(RunContext& context) {
  const Tensor& out = context.out[0];
  const Tensor& lse = context.out[1];
  Walk walk(context.in[1], context.in[2], context.axes);
  const int steps = walk.ring.size();
  Tensor sum, total;
  kernels::AttentionState state;
  if (steps > 1) {
    sum = out.dtype() == lse.dtype() ? out : Tensor::empty(out.layout(), lse.dtype());
    total = Tensor::empty(lse.layout(), lse.dtype());
    state.sum = sum.mutable_local();
    state.largest = lse.mutable_local();
    state.total = total.mutable_local();
  }
  for (int step = 0; step < steps; ++step) {
    walk.start(step);
    state.first = step == 0;
    state.last = step + 1 == steps;
    kernels::attention_forward(operands_of(context, walk.here),
                               attention_options(context.args, context.dynamic), state,
                               out.mutable_local(), lse.mutable_local());
    walk.finish(step);
  }
}

void run_attention_grad(RunContext& context) {
  const Tensor& dk = context.out[1];
  const Tensor& dv = context.out[2];
  const View dq = context.out[0].mutable_local();
  const bool want_bias = context.as<AttentionArgs>().bias_grad != 0;
  const kernels::AttentionOptions options = attention_options(context.args, context.dynamic);
  const kernels::AttentionSaved saved{context.in[5].local(), context.in[6].local(),
                                      context.in[7].local()};
  kernels::fill(dq, 0.0);
  if (want_bias) kernels::fill(context.out[3].mutable_local(), 0.0);

  Walk walk(context.in[1], context.in[2], context.axes);
  const int steps = walk.ring.size();
  const auto empty = [&](int step) {
    return Pair{empty_part(dk.layout(), walk.ring.owner(step), dk.dtype()),
                empty_part(dv.layout(), walk.ring.owner(step), dv.dtype())};
  };
  const auto result = [](const Tensor& t) {
    return Part{t.buffer(), {t.mutable_local(), t.local_box(), t.shape()}};
  };
  Pair sent, received;
  parallel::Request travelling;
  for (int step = 0; step < steps; ++step) {
    walk.start(step);
    Pair sum = steps == 1 ? Pair{result(dk), result(dv)} : empty(step);
    for (const Part& part : sum) kernels::fill(part.piece.view, 0.0);
    const kernels::AttentionOperands operands = operands_of(context, walk.here);
    kernels::attention_grad(operands, options, saved, dq, sum[0].piece.view, sum[1].piece.view);
    if (want_bias && !operands.bias.view.empty()) {
      kernels::attention_bias_grad(operands, options, saved, context.out[3].mutable_local());
    }
    walk.finish(step);
    if (steps == 1) return;
    if (step > 0) {
      // What the ranks before added to this block.
      travelling.wait();
      for (std::size_t i = 0; i < 2; ++i) {
        const View& mine = sum[i].piece.view;
        kernels::axpby(1.0, received[i].piece.view, 1.0, mine, mine);
      }
    }
    sent = std::move(sum);
    received = step + 1 == steps ? Pair{result(dk), result(dv)} : empty(step + 1);
    travelling = pass_on(walk.ring, sent, received, dk.layout());
  }
  travelling.wait();
}

}  // namespace tessera
