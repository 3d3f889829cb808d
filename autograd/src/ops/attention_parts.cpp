#include "attention_parts.hpp"

#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "piece_of.hpp"

namespace tessera {

Part empty_part(const Box& box, const Shape& global, DType dtype) {
  const Shape shape = box.shape();
  Part part;
  part.buffer =
      MemoryPool::of(Device{}).allocate(static_cast<std::size_t>(shape.product()) * size_of(dtype));
  part.piece = {View::dense(part.buffer->data(), dtype, shape), box, global};
  return part;
}

Part own_part(const Tensor& x) { return {x.buffer(), piece_of(x)}; }

Part dense(const Part& part) {
  if (part.piece.view.is_dense()) return part;
  Part copy = empty_part(part.piece.box, part.piece.global, part.piece.view.dtype);
  kernels::copy(part.piece.view, copy.piece.view);
  return copy;
}

namespace {

/// The ranks that hold other parts of `x` within `axes`; its replicas keep to themselves.
std::vector<int> holders(const Tensor& x, AxisMask axes) {
  return x.mesh().group(x.mesh().rank(), axes & x.layout().split_axes());
}

/// Messages of one exchange, in the order in which both sides list them: tensor, box, peer.
struct Messages {
  std::vector<parallel::Send> sends;
  std::vector<parallel::Recv> recvs;
  std::vector<Part> held;  // until they are through

  void send(const Mesh& mesh, int rank, Part part) {
    if (part.bytes() == 0) return;
    part = dense(part);
    sends.push_back({mesh.process_of(rank), part.piece.view.data, part.bytes()});
    held.push_back(std::move(part));
  }
  void receive(const Mesh& mesh, int rank, const Part& into) {
    if (into.bytes() > 0)
      recvs.push_back({mesh.process_of(rank), into.piece.view.data, into.bytes()});
  }
  void exchange(const char* op, const Layout& layout) {
    if (!sends.empty() || !recvs.empty())
      parallel::exchange_messages(sends, recvs, {op, layout, {}}).wait();
  }
};

/// A piece of memory received for, or found in, `target`.
struct Arrival {
  Part from;
  Piece target;
};

}  // namespace

void bring(std::span<Rearranged> list, AxisMask axes, const char* op) {
  Messages messages;
  std::vector<Arrival> arrivals;
  for (Rearranged& r : list) {
    const Tensor& x = r.tensor;
    const Mesh& mesh = x.mesh();
    const Part own = own_part(x);
    for (const Box& box : r.boxes(mesh.rank()))
      r.parts.push_back(empty_part(box, x.shape(), x.dtype()));
    for (const int peer : holders(x, axes)) {
      for (const Box& box : r.boxes(peer)) {
        const Part part{own.buffer, own.piece.slice(box)};
        if (peer != mesh.rank()) messages.send(mesh, peer, part);
      }
      const Box theirs = x.layout().owned(peer);
      for (const Part& mine : r.parts) {
        const Piece target = mine.piece.slice(theirs);
        if (target.view.empty()) continue;
        Part from{own.buffer, own.piece.slice(target.box)};
        if (peer != mesh.rank()) {
          from = target.view.is_dense() ? Part{mine.buffer, target}
                                        : empty_part(target.box, x.shape(), x.dtype());
          messages.receive(mesh, peer, from);
        }
        arrivals.push_back({std::move(from), target});
      }
    }
  }
  messages.exchange(op, list[0].tensor.layout());
  for (const Arrival& a : arrivals)
    if (a.from.piece.view.data != a.target.view.data)
      kernels::copy(a.from.piece.view, a.target.view);
}

void give_back(std::span<Rearranged> list, AxisMask axes, const char* op) {
  Messages messages;
  std::vector<Arrival> arrivals;
  for (Rearranged& r : list) {
    const Tensor& x = r.tensor;
    const Mesh& mesh = x.mesh();
    const Piece own{x.mutable_local(), x.local_box(), x.shape()};
    kernels::fill(own.view, 0.0);
    for (const int peer : holders(x, axes)) {
      const Box theirs = x.layout().owned(peer);
      if (peer != mesh.rank()) {
        for (const Part& part : r.parts)
          messages.send(mesh, peer, {part.buffer, part.piece.slice(theirs)});
      }
      const std::vector<Box> boxes = r.boxes(peer);
      for (std::size_t i = 0; i < boxes.size(); ++i) {
        const Piece target = own.slice(boxes[i]);
        if (target.view.empty()) continue;
        Part from;
        if (peer == mesh.rank()) {
          from = {r.parts[i].buffer, r.parts[i].piece.slice(target.box)};
        } else {
          from = empty_part(target.box, x.shape(), x.dtype());
          messages.receive(mesh, peer, from);
        }
        arrivals.push_back({std::move(from), target});
      }
    }
  }
  messages.exchange(op, list[0].tensor.layout());
  if (dry_run()) return;
  for (const Arrival& a : arrivals)
    kernels::axpby(1.0, a.from.piece.view, 1.0, a.target.view, a.target.view);
}

}  // namespace tessera
