#pragma once

// A file system under a program that dies, or whose n-th call fails, at any n: calls go on to the
// real one and into a model that knows what a power cut would leave.

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "io/system_calls.hpp"

namespace tessera::test {

/// Brings nothing to disk: tests that cut no power need not wait for one.
struct NoSync : io::SystemCalls {
  int sync(int) override { return 0; }
};

/// Calls that change something are counted from 1. Nothing is really brought to disk.
class RecordedCalls : public io::SystemCalls {
 public:
  /// What happens at call `at`.
  struct Plan {
    int at = 0;          ///< 0: nothing
    int error = 0;       ///< 0: the process dies: this call and all later ones do nothing
    bool stays = false;  ///< the error is that of all later calls that need room, too
  };

  /// `root`: the folder that is modelled; what is in it counts as on disk.
  RecordedCalls(std::string root, Plan plan) : root_(std::move(root)), plan_(plan) {
    nodes_.emplace_back();
    take_in(0, root_);
    initial_ = nodes_;
  }
  int calls() const { return calls_; }
  bool dead() const { return dead_; }

  /// Makes `to` what a power cut would leave: all that was brought to disk, and each of the other
  /// changes with this probability (of a write perhaps only the beginning).
  void power_cut(const std::string& to, double probability, std::mt19937_64& random) const {
    std::bernoulli_distribution lucky(probability);
    std::vector<Node> nodes = initial_;
    nodes.resize(nodes_.size());
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const Operation& op = operations_[i];
      const bool certain = synced_after(i);
      if (!certain && !lucky(random)) continue;
      apply(nodes, op, certain ? 1.0 : std::uniform_real_distribution<double>(0.2, 1.8)(random));
    }
    std::filesystem::remove_all(to);
    put_out(nodes, 0, to);
  }

  int open(const char* path, int flags, mode_t mode) override {
    const std::lock_guard lock(mutex_);
    if ((flags & (O_CREAT | O_DIRECTORY)) == 0) return SystemCalls::open(path, flags, mode);
    if (fails((flags & O_CREAT) != 0)) return -1;
    const int fd = SystemCalls::open(path, flags, mode);
    if (fd < 0) return fd;
    int node = find(path);
    if (node < 0) node = add(path, Operation::kCreate);
    open_[fd] = node;
    return fd;
  }
  ssize_t write(int fd, const void* data, std::size_t bytes, off_t offset) override {
    const std::lock_guard lock(mutex_);
    if (fails(true)) return -1;
    const ssize_t n = SystemCalls::write(fd, data, bytes, offset);
    record({.kind = Operation::kWrite,
            .node = open_.at(fd),
            .data = std::string(static_cast<const char*>(data), static_cast<std::size_t>(n)),
            .offset = static_cast<std::size_t>(offset)});
    return n;
  }
  int resize(int, off_t) override { throw std::logic_error("resize is not modelled"); }
  int sync(int fd) override {
    const std::lock_guard lock(mutex_);
    if (fails(true)) return -1;
    record({.kind = Operation::kSync, .node = open_.at(fd)});
    return 0;
  }
  int close(int fd) override {
    const std::lock_guard lock(mutex_);
    open_.erase(fd);
    return SystemCalls::close(fd);
  }
  int rename(const char* from, const char* to) override {
    const std::lock_guard lock(mutex_);
    if (fails(false)) return -1;
    const int result = SystemCalls::rename(from, to);
    if (result == 0)
      record({.kind = Operation::kRename,
              .node = parent(from),
              .name = leaf(from),
              .other = leaf(to)});
    return result;
  }
  int remove_file(const char* path) override { return remove(path, true); }
  int remove_directory(const char* path) override { return remove(path, false); }
  int make_directory(const char* path) override {
    const std::lock_guard lock(mutex_);
    if (fails(true)) return -1;
    const int result = SystemCalls::make_directory(path);
    if (result == 0) add(path, Operation::kMakeDirectory);
    return result;
  }

 private:
  struct Node {
    bool directory = true;
    std::map<std::string, int> entries = {};
    std::string content = {};
  };
  /// A change of node `node`: its content, or its entries.
  struct Operation {
    enum Kind { kCreate, kMakeDirectory, kWrite, kSync, kRename, kRemove } kind = kSync;
    int node = 0;
    std::string name = {};
    std::string other = {};
    int child = -1;
    std::string data = {};
    std::size_t offset = 0;
  };

  bool fails(bool needs_room) {
    ++calls_;
    if (plan_.at > 0 && calls_ == plan_.at && plan_.error == 0) dead_ = true;
    if (dead_) {
      errno = EIO;
      return true;
    }
    if (plan_.at == 0 || plan_.error == 0) return false;
    const bool now = calls_ == plan_.at || (plan_.stays && calls_ > plan_.at && needs_room);
    if (now) errno = plan_.error;
    return now;
  }
  int remove(const char* path, bool file) {
    const std::lock_guard lock(mutex_);
    if (fails(false)) return -1;
    const int result = file ? SystemCalls::remove_file(path) : SystemCalls::remove_directory(path);
    if (result == 0) record({.kind = Operation::kRemove, .node = parent(path), .name = leaf(path)});
    return result;
  }
  int add(const std::string& path, Operation::Kind kind) {
    nodes_.push_back({.directory = kind == Operation::kMakeDirectory});
    const int child = static_cast<int>(nodes_.size()) - 1;
    record({.kind = kind, .node = parent(path), .name = leaf(path), .child = child});
    return child;
  }
  void record(Operation op) {
    apply(nodes_, op, 1.0);
    operations_.push_back(std::move(op));
  }
  static void apply(std::vector<Node>& nodes, const Operation& op, double share) {
    Node& node = nodes[static_cast<std::size_t>(op.node)];
    switch (op.kind) {
      case Operation::kCreate:
      case Operation::kMakeDirectory:
        nodes[static_cast<std::size_t>(op.child)].directory = op.kind == Operation::kMakeDirectory;
        node.entries[op.name] = op.child;
        break;
      case Operation::kWrite: {
        const auto bytes = static_cast<std::size_t>(std::min(1.0, share) * double(op.data.size()));
        if (node.content.size() < op.offset + bytes) node.content.resize(op.offset + bytes);
        node.content.replace(op.offset, bytes, op.data, 0, bytes);
        break;
      }
      case Operation::kRename: {
        const auto entry = node.entries.find(op.name);
        if (entry == node.entries.end()) break;
        const int child = entry->second;
        node.entries.erase(entry);
        node.entries[op.other] = child;
        break;
      }
      case Operation::kRemove:
        node.entries.erase(op.name);
        break;
      case Operation::kSync:
        break;
    }
  }
  bool synced_after(std::size_t i) const {
    for (std::size_t k = i + 1; k < operations_.size(); ++k)
      if (operations_[k].kind == Operation::kSync && operations_[k].node == operations_[i].node)
        return true;
    return false;
  }

  static std::string leaf(const std::string& path) {
    return std::filesystem::path(path).filename().string();
  }
  int parent(const std::string& path) const {
    return find(std::filesystem::path(path).parent_path().string());
  }
  int find(const std::string& path) const {
    if (path == root_) return 0;
    int node = 0;
    for (const auto& name : std::filesystem::path(path).lexically_relative(root_)) {
      const auto& entries = nodes_[static_cast<std::size_t>(node)].entries;
      const auto entry = entries.find(name.string());
      if (entry == entries.end()) return -1;
      node = entry->second;
    }
    return node;
  }
  void take_in(std::size_t node, const std::string& path) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const std::size_t child = nodes_.size();
      nodes_[node].entries[leaf(entry.path().string())] = static_cast<int>(child);
      nodes_.push_back({.directory = entry.is_directory()});
      if (entry.is_directory()) {
        take_in(child, entry.path().string());
      } else {
        std::ifstream in(entry.path(), std::ios::binary);
        nodes_[child].content = {std::istreambuf_iterator<char>(in), {}};
      }
    }
  }
  static void put_out(const std::vector<Node>& nodes, std::size_t node, const std::string& path) {
    if (!nodes[node].directory) {
      std::ofstream(path, std::ios::binary) << nodes[node].content;
      return;
    }
    std::filesystem::create_directory(path);
    for (const auto& [name, child] : nodes[node].entries)
      put_out(nodes, static_cast<std::size_t>(child), path + "/" + name);
  }

  std::string root_;
  Plan plan_;
  std::mutex mutex_;
  int calls_ = 0;
  bool dead_ = false;
  std::map<int, int> open_;
  std::vector<Node> nodes_;  // as the program sees them; node 0 is the root
  std::vector<Node> initial_;
  std::vector<Operation> operations_;
};

}  // namespace tessera::test
