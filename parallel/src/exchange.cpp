#include <algorithm>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/parallel/exchange.hpp>

#include "strided.hpp"

namespace tessera::parallel {

namespace {

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// Messages start where blocks of the pool do: at multiples of 64 bytes.
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Where the cells of one direction lie in one block: per peer and message the cells of all inputs
/// one after the other. Both sides compute the same, so a message needs no header.
struct Block {
  struct Message {
    int peer;
    std::int64_t offset;
    std::int64_t bytes;
  };
  std::vector<Message> messages;
  std::vector<std::vector<std::int64_t>> offsets;  ///< [input][cell]
  std::int64_t bytes = 0;
};

Block lay_out(std::span<const std::vector<Cell>* const> cells, std::span<const DType> dtypes) {
  Block block;
  block.offsets.resize(cells.size());
  std::vector<std::size_t> next(cells.size(), 0);
  while (true) {
    int peer = -1;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (next[i] == cells[i]->size()) continue;
      const int candidate = (*cells[i])[next[i]].peer;
      if (peer < 0 || candidate < peer) peer = candidate;
    }
    if (peer < 0) return block;
    block.bytes = aligned(block.bytes);
    const std::int64_t start = block.bytes;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::int64_t size = element_bytes(dtypes[i]);
      for (; next[i] < cells[i]->size() && (*cells[i])[next[i]].peer == peer; ++next[i]) {
        block.bytes = (block.bytes + size - 1) / size * size;
        block.offsets[i].push_back(block.bytes);
        block.bytes += (*cells[i])[next[i]].elements() * size;
      }
    }
    block.messages.push_back({peer, start, block.bytes - start});
  }
}

Ref<Buffer> allocate(std::int64_t bytes, Device device) {
  if (bytes == 0) return {};
  return MemoryPool::of(device).allocate(static_cast<std::size_t>(bytes));
}

Box relative(const Box& box, const Dims& origin) {
  Box local = box;
  for (int d = 0; d < box.dims(); ++d) local.set(d, {box.lo[d] - origin[d], box.hi[d] - origin[d]});
  return local;
}

/// `real`, which shows `cell.from`, as seen in virtual coordinates.
Piece as_virtual(const Cell& cell, View real, const Shape& global) {
  std::int64_t offset = 0;
  for (int d = 0; d < cell.at.dims(); ++d) {
    const int step = cell.step[static_cast<std::size_t>(d)];
    if (step < 0) offset += (cell.from[d].size() - 1) * real.strides[d];
    real.strides[d] *= step;
  }
  real.data = static_cast<std::byte*>(real.data) + offset * element_bytes(real.dtype);
  real.shape = cell.at.shape();
  return {real, cell.at, global};
}

View cell_view(const Cell& cell, std::byte* data, DType dtype, Device device) {
  return View::dense(data, dtype, cell.from.shape(), device);
}

View own_part(const Piece& own, const Cell& cell) {
  return own.view.slice(relative(cell.from, own.box.lo));
}

std::span<const Cell> cells_of(const std::vector<Cell>& cells, int peer) {
  Cell key;
  key.peer = peer;
  const auto [first, last] =
      std::equal_range(cells.begin(), cells.end(), key,
                       [](const Cell& a, const Cell& b) { return a.peer < b.peer; });
  return {first, last};
}

}  // namespace

WindowExchange::WindowExchange(const Mesh& mesh, const WindowInput& input, const CallInfo& info)
    : WindowExchange(mesh, std::span(&input, 1), info) {}

WindowExchange::WindowExchange(const Mesh& mesh,
                               std::span<const WindowInput> inputs,
                               const CallInfo& info) {
  std::vector<const std::vector<Cell>*> receives;
  std::vector<const std::vector<Cell>*> sends;
  std::vector<DType> dtypes;
  const Device device = inputs.empty() ? info.device : inputs[0].own.view.device;
  for (const WindowInput& input : inputs) {
    if (!(input.own.box == input.plan->owned) ||
        !(input.own.view.shape == input.plan->owned.shape())) {
      throw LayoutError(str("exchange: the piece ", input.own.box, " of shape ",
                            input.own.view.shape, " is not the one that the plan was made for (",
                            input.plan->owned, ")."));
    }
    receives.push_back(&input.plan->receives);
    sends.push_back(&input.plan->sends);
    dtypes.push_back(input.own.view.dtype);
  }
  const Block in = lay_out(receives, dtypes);
  const Block out = lay_out(sends, dtypes);
  ghosts_ = allocate(in.bytes, device);

  // A face that already lies densely in the owned memory is sent from there.
  std::vector<const void*> sources(out.messages.size(), nullptr);
  std::int64_t packed_bytes = 0;
  std::vector<std::int64_t> packed_at(out.messages.size(), 0);
  for (std::size_t m = 0; m < out.messages.size(); ++m) {
    int cells = 0;
    View view;
    for (const WindowInput& input : inputs) {
      const std::span<const Cell> mine = cells_of(input.plan->sends, out.messages[m].peer);
      cells += static_cast<int>(mine.size());
      if (!mine.empty()) view = own_part(input.own, mine.front());
    }
    if (cells == 1 && view.is_dense()) {
      sources[m] = view.data;
    } else {
      packed_at[m] = packed_bytes;
      packed_bytes += aligned(out.messages[m].bytes);
    }
  }
  packed_ = allocate(packed_bytes, device);
  const auto message_of = [&](int peer) {
    return static_cast<std::size_t>(
        std::lower_bound(out.messages.begin(), out.messages.end(), peer,
                         [](const Block::Message& m, int p) { return m.peer < p; }) -
        out.messages.begin());
  };

  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const WindowInput& input = inputs[i];
    std::vector<Piece>& pieces = pieces_.emplace_back();
    pieces.push_back(input.own);
    for (std::size_t c = 0; c < input.plan->receives.size(); ++c) {
      const Cell& cell = input.plan->receives[c];
      const View ghost = cell_view(cell, ghosts_->data() + in.offsets[i][c], dtypes[i], device);
#ifndef NDEBUG
      poison(ghost);
#endif
      pieces.push_back(as_virtual(cell, ghost, input.plan->global));
    }
    for (const Cell& cell : input.plan->local)
      pieces.push_back(as_virtual(cell, own_part(input.own, cell), input.plan->global));
    for (std::size_t c = 0; c < input.plan->sends.size(); ++c) {
      const Cell& cell = input.plan->sends[c];
      const std::size_t m = message_of(cell.peer);
      if (sources[m]) continue;
      std::byte* const start = packed_->data() + packed_at[m];
      kernels::copy(
          own_part(input.own, cell),
          cell_view(cell, start + (out.offsets[i][c] - out.messages[m].offset), dtypes[i], device));
    }
  }

  if (in.messages.empty() && out.messages.empty()) return;
  std::vector<Recv> recvs;
  std::vector<Send> posted;
  for (const Block::Message& m : in.messages)
    recvs.push_back({mesh.process_of(m.peer), ghosts_->data() + m.offset, m.bytes});
  for (std::size_t m = 0; m < out.messages.size(); ++m) {
    const void* const data = sources[m] ? sources[m] : packed_->data() + packed_at[m];
    posted.push_back({mesh.process_of(out.messages[m].peer), data, out.messages[m].bytes});
  }
  CallInfo placed = info;
  placed.device = device;
  request_ = exchange_messages(posted, recvs, placed);
}

std::span<const Piece> WindowExchange::pieces(int input) const {
  return pieces_[static_cast<std::size_t>(input)];
}

void WindowExchange::assemble(const Box& region, const View& out, double value, int input) const {
  if (!request_.done()) {
    throw UsageError("exchange: assemble() before the ghosts are here. Call wait() first.");
  }
  std::int64_t covered = 0;
  for (const Piece& piece : pieces(input)) covered += intersect(piece.box, region).volume();
  if (covered != region.volume()) kernels::fill(out, value);
  for (const Piece& piece : pieces(input)) {
    const Piece part = piece.slice(region);
    if (!part.box.empty()) kernels::copy(part.view, out.slice(relative(part.box, region.lo)));
  }
}

AdjointExchange::AdjointExchange(const Mesh& mesh, const AdjointInput& input, const CallInfo& info)
    : AdjointExchange(mesh, std::span(&input, 1), info) {}

AdjointExchange::AdjointExchange(const Mesh& mesh,
                                 std::span<const AdjointInput> inputs,
                                 const CallInfo& info)
    : mesh_(mesh), info_(info) {
  std::vector<const std::vector<Cell>*> outgoing;
  std::vector<const std::vector<Cell>*> incoming;
  std::vector<DType> dtypes;
  std::int64_t local_bytes = 0;
  const Device device = info.device;
  for (const AdjointInput& input : inputs) {
    outgoing.push_back(&input.plan->receives);
    incoming.push_back(&input.plan->sends);
    dtypes.push_back(input.dtype);
    for (const Cell& cell : input.plan->local)
      local_bytes += aligned(cell.elements() * element_bytes(input.dtype));
  }
  const Block out = lay_out(outgoing, dtypes);
  const Block in = lay_out(incoming, dtypes);
  std::int64_t local_at = aligned(out.bytes);
  outgoing_ = allocate(local_at + local_bytes, device);
  incoming_ = allocate(in.bytes, device);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ExchangePlan& plan = *inputs[i].plan;
    Input& mine = inputs_.emplace_back();
    mine.plan = inputs[i].plan;
    const auto open = [&](const Cell& cell, std::int64_t offset) {
      const View sum = cell_view(cell, outgoing_->data() + offset, dtypes[i], device);
      kernels::fill(sum, 0.0);
      mine.sums.push_back(as_virtual(cell, sum, plan.global));
      return sum;
    };
    for (std::size_t c = 0; c < plan.receives.size(); ++c)
      open(plan.receives[c], out.offsets[i][c]);
    for (const Cell& cell : plan.local) {
      mine.local.push_back(open(cell, local_at));
      local_at += aligned(cell.elements() * element_bytes(dtypes[i]));
    }
    for (std::size_t c = 0; c < plan.sends.size(); ++c) {
      mine.arrived.push_back(
          cell_view(plan.sends[c], incoming_->data() + in.offsets[i][c], dtypes[i], device));
#ifndef NDEBUG
      poison(mine.arrived.back());
#endif
    }
  }
  for (const Block::Message& m : out.messages)
    sends_.push_back({mesh.process_of(m.peer), outgoing_->data() + m.offset, m.bytes});
  for (const Block::Message& m : in.messages)
    recvs_.push_back({mesh.process_of(m.peer), incoming_->data() + m.offset, m.bytes});
}

void AdjointExchange::add(const Box& region, const View& values, int input) {
  if (started_) throw UsageError("exchange: add() after start(). Add all values before.");
  const Piece all{values, region, {}};
  for (const Piece& cell : inputs_[static_cast<std::size_t>(input)].sums) {
    const Piece part = all.slice(cell.box);
    if (part.box.empty()) continue;
    accumulate(part.view, cell.view.slice(relative(part.box, cell.box.lo)), ReduceOp::kSum);
  }
}

void AdjointExchange::start() {
  if (started_) throw UsageError("exchange: start() was called twice.");
  started_ = true;
  if (!sends_.empty() || !recvs_.empty()) request_ = exchange_messages(sends_, recvs_, info_);
}

void AdjointExchange::finish(const View& own, int input) {
  if (!started_) throw UsageError("exchange: finish() without start(). Call start() first.");
  request_.wait();
  const Input& mine = inputs_[static_cast<std::size_t>(input)];
  const ExchangePlan& plan = *mine.plan;
  const Piece target{own, plan.owned, plan.global};
  std::size_t c = 0;
  const auto add_until = [&](int rank) {
    for (; c < plan.sends.size() && plan.sends[c].peer < rank; ++c)
      accumulate(mine.arrived[c], own_part(target, plan.sends[c]), ReduceOp::kSum);
  };
  for (std::size_t k = 0; k < plan.local.size(); ++k) {
    add_until(plan.local[k].peer);
    accumulate(mine.local[k], own_part(target, plan.local[k]), ReduceOp::kSum);
  }
  add_until(mesh_.size());
}

}  // namespace tessera::parallel
