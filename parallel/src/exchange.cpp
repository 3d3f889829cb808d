#include <algorithm>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/parallel/exchange.hpp>

#include "strided.hpp"

namespace tessera::parallel {

namespace {

std::int64_t element_bytes(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

/// Messages start where blocks of the pool do: at multiples of 64 bytes.
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Where the parcels of one direction lie in one block: per peer and message the parcels of all
/// inputs one after the other. Both sides compute the same, so a message needs no header.
struct Block {
  struct Message {
    int peer;
    std::int64_t offset;
    std::int64_t bytes;
  };
  std::vector<Message> messages;
  std::vector<std::vector<std::int64_t>> offsets;  ///< [input][parcel]
  std::int64_t bytes = 0;
};

Block lay_out(std::span<const std::vector<Parcel>* const> parcels, std::span<const DType> dtypes) {
  Block block;
  block.offsets.resize(parcels.size());
  std::vector<std::size_t> next(parcels.size(), 0);
  while (true) {
    int peer = -1;
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      if (next[i] == parcels[i]->size()) continue;
      const int candidate = (*parcels[i])[next[i]].peer;
      if (peer < 0 || candidate < peer) peer = candidate;
    }
    if (peer < 0) return block;
    block.bytes = aligned(block.bytes);
    const std::int64_t start = block.bytes;
    for (std::size_t i = 0; i < parcels.size(); ++i) {
      const std::int64_t size = element_bytes(dtypes[i]);
      for (; next[i] < parcels[i]->size() && (*parcels[i])[next[i]].peer == peer; ++next[i]) {
        block.bytes = (block.bytes + size - 1) / size * size;
        block.offsets[i].push_back(block.bytes);
        block.bytes += (*parcels[i])[next[i]].box.volume() * size;
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

/// `real`, which holds `image.from`, as seen in virtual coordinates.
Piece as_virtual(const Image& image, View real, const Shape& global) {
  std::int64_t offset = 0;
  for (int d = 0; d < image.at.dims(); ++d) {
    const int step = image.step[static_cast<std::size_t>(d)];
    if (step < 0) offset += (image.from[d].size() - 1) * real.strides[d];
    real.strides[d] *= step;
  }
  real.data = static_cast<std::byte*>(real.data) + offset * element_bytes(real.dtype);
  real.shape = image.at.shape();
  return {real, image.at, global};
}

View part_of(const Piece& piece, const Box& box) {
  return piece.view.slice(relative(box, piece.box.lo));
}

std::span<const Parcel> parcels_of(const std::vector<Parcel>& parcels, int peer) {
  const auto [first, last] =
      std::equal_range(parcels.begin(), parcels.end(), Parcel{peer, {}},
                       [](const Parcel& a, const Parcel& b) { return a.peer < b.peer; });
  return {first, last};
}

}  // namespace

WindowExchange::WindowExchange(const Mesh& mesh, const WindowInput& input, const CallInfo& info)
    : WindowExchange(mesh, std::span(&input, 1), info) {}

WindowExchange::WindowExchange(const Mesh& mesh,
                               std::span<const WindowInput> inputs,
                               const CallInfo& info) {
  std::vector<const std::vector<Parcel>*> receives;
  std::vector<const std::vector<Parcel>*> sends;
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
    std::size_t parcels = 0;
    View view;
    for (const WindowInput& input : inputs) {
      const std::span<const Parcel> mine = parcels_of(input.plan->sends, out.messages[m].peer);
      parcels += mine.size();
      if (!mine.empty()) view = part_of(input.own, mine.front().box);
    }
    if (parcels == 1 && view.is_dense()) {
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
    const ExchangePlan& plan = *input.plan;
    std::vector<Piece> ghosts;
    for (std::size_t c = 0; c < plan.receives.size(); ++c) {
      const Box& box = plan.receives[c].box;
      const View ghost =
          View::dense(ghosts_->data() + in.offsets[i][c], dtypes[i], box.shape(), device);
#ifndef NDEBUG
      poison(ghost);
#endif
      ghosts.push_back({ghost, box, plan.global});
    }
    for (const Image& image : plan.images) {
      const Piece& source =
          image.parcel < 0 ? input.own : ghosts[static_cast<std::size_t>(image.parcel)];
      pieces.push_back(as_virtual(image, part_of(source, image.from), plan.global));
    }
    for (std::size_t c = 0; c < plan.sends.size(); ++c) {
      const Parcel& parcel = plan.sends[c];
      const std::size_t m = message_of(parcel.peer);
      if (sources[m]) continue;
      std::byte* const start =
          packed_->data() + packed_at[m] + (out.offsets[i][c] - out.messages[m].offset);
      kernels::copy(part_of(input.own, parcel.box),
                    View::dense(start, dtypes[i], parcel.box.shape(), device));
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
  std::vector<const std::vector<Parcel>*> outgoing;
  std::vector<const std::vector<Parcel>*> incoming;
  std::vector<DType> dtypes;
  std::int64_t local_bytes = 0;
  const Device device = info.device;
  for (const AdjointInput& input : inputs) {
    outgoing.push_back(&input.plan->receives);
    incoming.push_back(&input.plan->sends);
    dtypes.push_back(input.dtype);
    for (const Image& image : input.plan->images) {
      if (image.parcel < 0)
        local_bytes += aligned(image.from.volume() * element_bytes(input.dtype));
    }
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
    const auto zeros = [&](const Box& box, std::int64_t offset) -> Piece {
      const View sum = View::dense(outgoing_->data() + offset, dtypes[i], box.shape(), device);
      kernels::fill(sum, 0.0);
      return {sum, box, plan.global};
    };
    std::vector<Piece> parcels;
    for (std::size_t c = 0; c < plan.receives.size(); ++c)
      parcels.push_back(zeros(plan.receives[c].box, out.offsets[i][c]));
    for (const Image& image : plan.images) {
      Piece source;
      if (image.parcel < 0) {
        source = zeros(image.from, local_at);
        local_at += aligned(image.from.volume() * element_bytes(dtypes[i]));
        mine.local.push_back(source);
      } else {
        source = parcels[static_cast<std::size_t>(image.parcel)];
      }
      mine.sums.push_back(as_virtual(image, part_of(source, image.from), plan.global));
    }
    for (std::size_t c = 0; c < plan.sends.size(); ++c) {
      mine.arrived.push_back(View::dense(incoming_->data() + in.offsets[i][c], dtypes[i],
                                         plan.sends[c].box.shape(), device));
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
  for (const Piece& sum : inputs_[static_cast<std::size_t>(input)].sums) {
    const Piece part = all.slice(sum.box);
    if (!part.box.empty()) accumulate(part.view, part_of(sum, part.box), ReduceOp::kSum);
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
      accumulate(mine.arrived[c], part_of(target, plan.sends[c].box), ReduceOp::kSum);
  };
  add_until(mesh_.rank());
  for (const Piece& local : mine.local)
    accumulate(local.view, part_of(target, local.box), ReduceOp::kSum);
  add_until(mesh_.size());
}

}  // namespace tessera::parallel
