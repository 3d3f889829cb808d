#include "batch.hpp"

#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/error.hpp>

namespace tessera::parallel {

void Batch::send(const void* data, std::int64_t bytes, int peer, int tag) {
  ++messages_;
  bytes_ += bytes;
  if (dry_run()) return;
  handles_.push_back(mpi::isend(data, bytes, peer, tag, channel_));
  entries_.push_back({bytes, peer, false});
  ++open_;
}

void Batch::recv(void* data, std::int64_t bytes, int peer, int tag) {
  if (dry_run()) return;
  handles_.push_back(mpi::irecv(data, bytes, peer, tag, channel_));
  entries_.push_back({bytes, peer, true});
  ++open_;
}

bool Batch::test() {
  if (open_ == 0) return true;
  static std::vector<mpi::Completion> done;  // one thread communicates
  done.clear();
  mpi::test_some(handles_, done);
  open_ -= done.size();
  for (const mpi::Completion& message : done) {
    const Entry& entry = entries_[static_cast<std::size_t>(message.index)];
    if (!entry.receives || message.bytes == entry.bytes) continue;
    throw CommError(str("receive: the message from process ", entry.peer,
                        message.bytes < 0 ? " is longer than the "
                                          : str(" has ", message.bytes, " instead of the "),
                        entry.bytes,
                        " bytes expected (the processes disagree on what they exchange). Run with "
                        "TESSERA_CHECKS=collective to find the first call that differs."));
  }
  return open_ == 0;
}

std::vector<int> Batch::missing() const {
  std::vector<int> receives;
  std::vector<int> sends;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] == mpi::kNone) continue;
    (entries_[i].receives ? receives : sends).push_back(entries_[i].peer);
  }
  std::vector<int>& peers = receives.empty() ? sends : receives;
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void Batch::clear() {
  handles_.clear();
  entries_.clear();
  open_ = 0;
}

}  // namespace tessera::parallel
