#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <set>
#include <tessera/core/memory.hpp>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/io/snapshots.hpp>
#include <thread>
#include <utility>

#include "io/convert.hpp"
#include "io/posix_file.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {
namespace {

/// A snapshot's name: step, and how often that step was saved.
struct Name {
  std::int64_t step = 0;
  std::int64_t attempt = 1;

  std::string text() const {
    std::string name = fmt::format("step-{:09}", step);
    if (attempt > 1) name += fmt::format(".{}", attempt);
    return name;
  }
  static std::optional<Name> parse(const std::string& text) {
    Name name;
    const char* at = text.data() + std::min<std::size_t>(5, text.size());
    const char* const end = text.data() + text.size();
    const auto step = std::from_chars(at, end, name.step);
    if (step.ec == std::errc() && step.ptr != end && *step.ptr == '.')
      std::from_chars(step.ptr + 1, end, name.attempt);
    if (text != name.text()) return std::nullopt;
    return name;
  }
  friend auto operator<=>(const Name&, const Name&) = default;
};

/// All in the directory, oldest first; none where there is no directory.
std::vector<Name> names_in(const std::string& directory) {
  std::vector<Name> names;
  std::error_code error;
  std::filesystem::directory_iterator it(directory, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const auto name = Name::parse(it->path().filename().string());
    if (name) names.push_back(*name);
  }
  if (error)
    throw IoError(str(directory, ": cannot be listed (", error.message(), "). Check the path."));
  std::sort(names.begin(), names.end());
  return names;
}

void remove_stale_directories(const std::string& directory) {
  std::vector<std::string> stale;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && is_temporary_name(name)) stale.push_back(entry.path());
  }
  for (const std::string& path : stale) remove_directory_quietly(path);
}

/// Copies in memory of the pool.
std::vector<Tensor> copies_of(const std::vector<View>& views) {
  const AllocationScope scope("checkpoint");
  std::vector<Tensor> copies;
  copies.reserve(views.size());
  for (const View& view : views) {
    check_view("checkpoint", view, view.shape);
    copies.push_back(Tensor::from_local(view, Layout::replicated(Mesh::self(), view.shape)));
  }
  return copies;
}

/// A save between its start and its commit.
struct Flight {
  ShardWriter writer;
  std::vector<Tensor> copies = {};
  std::exception_ptr failure = {};
  std::atomic<bool> done{false};
  std::jthread thread = {};  // last: it ends before what it uses

  Flight(const std::string& path,
         std::vector<ShardedTensor> tensors,
         const Metadata& metadata,
         const Collective& collective)
      : writer(path, std::move(tensors), metadata, collective) {}

  void write(const std::vector<View>& views, const std::function<bool()>& cancelled) noexcept {
    try {
      writer.write(views, cancelled);
    } catch (...) {
      failure = std::current_exception();
    }
    done = true;
  }
  /// Views of what lies in the copies go to a thread of its own.
  void start(std::vector<View> views) {
    thread = std::jthread([this, all = std::move(views)](const std::stop_token& stop) {
      write(all, [&] { return stop.stop_requested(); });
    });
  }
  void join() {
    if (thread.joinable()) thread.join();
  }
};

}  // namespace

struct Snapshots::State {
  SnapshotOptions options;
  Collective ranks;
  std::unique_ptr<Flight> flight;
  std::set<Name> damaged;
  bool prepared = false;

  std::string path(const Name& name) const { return options.directory + "/" + name.text(); }

  void warn(const std::string& line) const {
    if (ranks.rank != 0) return;
    if (options.warn) return options.warn(line);
    std::fprintf(stderr, "%s\n", line.c_str());
    std::fflush(stderr);
  }

  /// What rank 0 finds, on every rank.
  std::vector<Name> list() const {
    std::vector<Name> names;
    ranks.together([&] {
      if (ranks.rank == 0) names = names_in(options.directory);
    });
    names.resize(static_cast<std::size_t>(ranks.broadcast(std::ssize(names))));
    std::vector<std::int64_t> numbers(2 * names.size(), 0);
    for (std::size_t i = 0; i < names.size() && ranks.rank == 0; ++i) {
      numbers[2 * i] = names[i].step;
      numbers[2 * i + 1] = names[i].attempt;
    }
    if (ranks.size > 1 && !names.empty()) ranks.sum(numbers);
    for (std::size_t i = 0; i < names.size(); ++i)
      names[i] = {.step = numbers[2 * i], .attempt = numbers[2 * i + 1]};
    return names;
  }

  Name next_name(std::int64_t step) const {
    Name name = {.step = step};
    for (const Name& there : list()) {
      if (there.step == step) name.attempt = there.attempt + 1;
      if (there.step > step && !damaged.contains(there))
        throw UsageError(str("checkpoint: step ", step, " is to be saved, but ", path(there),
                             " is newer. Continue from that, or choose another directory."));
    }
    return name;
  }

  void prepare() {
    ranks.together([&] {
      if (ranks.rank != 0 || prepared) return;
      make_directories(options.directory);
      remove_stale_directories(options.directory);
    });
    prepared = true;
  }

  /// On rank 0. The name goes first, so that nothing half removed looks whole.
  void remove(const Name& name) const {
    const std::string old = temporary_name(path(name), unique_id());
    if (system_calls().rename(path(name).c_str(), old.c_str()) == 0) remove_directory_quietly(old);
  }

  /// On rank 0, after a commit. What cannot be removed only takes room.
  void prune() const {
    if (ranks.rank != 0 || options.keep <= 0) return;
    std::vector<Name> whole;
    try {
      for (const Name& name : names_in(options.directory)) {
        if (damaged.contains(name))
          remove(name);
        else
          whole.push_back(name);
      }
    } catch (const IoError&) {
      return;
    }
    for (std::size_t i = 0; i + static_cast<std::size_t>(options.keep) < whole.size(); ++i)
      remove(whole[i]);
  }

  void commit() {
    const std::unique_ptr<Flight> landed = std::move(flight);
    landed->join();
    landed->writer.commit(landed->failure);
    prune();
  }
};

Snapshots::Snapshots(SnapshotOptions options, Collective collective)
    : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->ranks = std::move(collective);
}

Snapshots::~Snapshots() = default;

void Snapshots::save(std::int64_t step,
                     std::vector<ShardedTensor> tensors,
                     const std::vector<View>& views,
                     const Metadata& metadata) {
  State& s = *state_;
  finish();
  if (step < 0) throw UsageError(str("checkpoint: step ", step, " is negative."));
  if (views.size() != tensors.size())
    throw UsageError(str("checkpoint: ", views.size(), " views of ", tensors.size(), " tensors."));
  const Name name = s.next_name(step);
  s.prepare();
  s.flight = std::make_unique<Flight>(s.path(name), std::move(tensors), metadata, s.ranks);
  std::vector<View> parts;
  for (const ShardWriter::Part& part : s.flight->writer.local_parts())
    parts.push_back(views[part.tensor]);
  bool behind = s.options.asynchronous;
  if (behind) {
    try {
      s.flight->copies = copies_of(parts);
      std::transform(s.flight->copies.begin(), s.flight->copies.end(), parts.begin(),
                     [](const Tensor& copy) { return copy.local(); });
    } catch (const OutOfMemory&) {
      behind = false;
    }
  }
  if (behind)
    s.flight->start(std::move(parts));
  else
    s.flight->write(parts, {});  // fails at the commit, on all ranks alike
  if (!s.options.asynchronous) finish();
}

bool Snapshots::poll() {
  State& s = *state_;
  if (!s.flight) return false;
  if (s.ranks.total(s.flight->done ? 1 : 0) < s.ranks.size) return false;
  s.commit();
  return true;
}

void Snapshots::finish() {
  if (state_->flight) state_->commit();
}

bool Snapshots::load(const std::function<void(const ShardReader&)>& check,
                     const std::function<void(const ShardReader&)>& read) {
  State& s = *state_;
  finish();
  std::vector<Name> names = s.list();
  std::string first_damage;
  const auto works = [&](const auto& attempt) {
    try {
      attempt();
      return true;
    } catch (const IoError& e) {
      if (first_damage.empty()) first_damage = e.what();
      s.warn(str("checkpoint: ", e.what()));
      return false;
    }
  };
  for (std::size_t i = names.size(); i-- > 0;) {
    std::optional<ShardReader> reader;
    const bool whole = works([&] {
      s.ranks.together([&] { reader.emplace(s.path(names[i])); });
      reader->verify(s.ranks);
    });
    if (whole) {
      s.ranks.together([&] { check(*reader); });
      if (works([&] { s.ranks.together([&] { read(*reader); }); })) {
        if (i + 1 < names.size()) s.warn(str("checkpoint: continuing from ", s.path(names[i])));
        return true;
      }
    }
    s.damaged.insert(names[i]);
  }
  if (names.empty()) return false;
  throw DataError(str("checkpoint: none of the ", names.size(), " in ", s.options.directory,
                      " is whole. The newest: ", first_damage));
}

std::vector<std::string> Snapshots::list() const {
  std::vector<std::string> paths;
  for (const Name& name : state_->list()) paths.push_back(state_->path(name));
  return paths;
}

}  // namespace tessera::io
