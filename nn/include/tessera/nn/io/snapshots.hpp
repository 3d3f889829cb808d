#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tessera/core/view.hpp>
#include <tessera/nn/io/shards.hpp>
#include <vector>

namespace tessera::io {

/// Options of Snapshots.
struct SnapshotOptions {
  std::string directory;  ///< made at the first save
  int keep = 2;  ///< newest ones that stay; 0: all. One more needs room while it is written.
  bool asynchronous = true;  ///< written behind what the program does next
  /// Takes a line about a damaged snapshot that is passed over, on rank 0; empty: stderr.
  std::function<void(const std::string& line)> warn = {};
};

/// The states of something that goes on step by step, in sharded directories `step-000000123`
/// (saved again: `step-000000123.2`), of which the newest whole one counts. Those not complete have
/// other names, so what is there is found by listing; nothing points to it and can be stale.
///
/// A save copies this rank's parts into memory of the pool and returns; a thread writes them and
/// brings them to disk. It never communicates: whether all ranks are done is found out by poll(),
/// on the calling thread, and then the snapshot is committed. One is in flight at most. Where the
/// pool has no room for the copy the rank writes before save() returns.
class Snapshots {
 public:
  Snapshots(SnapshotOptions options, Collective collective);
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;
  /// Drops what is in flight. Not collective.
  ~Snapshots();

  /// Collective. Finishes the save before, then starts this one. `views`: this rank's parts by
  /// tensor (ignored where the rank writes none of it). Throws IoError on every rank when the save
  /// before or the start of this one failed; the snapshots that were there are untouched and the
  /// program can go on. Throws UsageError when there is a snapshot of a later step.
  void save(std::int64_t step,
            std::vector<ShardedTensor> tensors,
            const std::vector<View>& views,
            const Metadata& metadata);
  /// Collective, for every step: commits what all ranks have written, and removes the snapshots
  /// that are too many. Returns whether it did. Throws like save(). One sum of a number while a
  /// save is in flight, else nothing.
  bool poll();
  /// Collective. Waits for what is in flight and commits it. Throws like save().
  void finish();

  /// Collective. Takes the newest snapshot whose files are as they were written, whose
  /// `read(reader)` succeeds on every rank; says which ones it passes over and why. What
  /// `check(reader)` throws ends the search. Returns false when there is none at all; throws
  /// DataError when all are damaged.
  bool load(const std::function<void(const ShardReader&)>& check,
            const std::function<void(const ShardReader&)>& read);
  /// Collective. Paths of those that are there, oldest first.
  std::vector<std::string> list() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
