#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <tessera/nn/io/collective.hpp>
#include <utility>

namespace tessera::data {

/// Items first, first + 1, ... < end, made ahead by a thread of its own (the type does not matter
/// to it).
class PrefetchThread {
 public:
  PrefetchThread(std::function<std::shared_ptr<void>(std::int64_t)> make,
                 std::int64_t first,
                 std::int64_t end,
                 int ahead);
  /// Stops; an item that is being made is finished first.
  ~PrefetchThread();
  PrefetchThread(const PrefetchThread&) = delete;
  PrefetchThread& operator=(const PrefetchThread&) = delete;

  /// The next item, or what making it threw.
  std::shared_ptr<void> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Samples made behind the compute of those before: `make(i)` runs on a thread of its own, for
/// i = first, first + 1, ..., in this order, at most `ahead` items before they are asked for
/// (0: no thread; `make` runs when asked).
///
/// `make` may read files and make tensors; it must not communicate, and what it hands out must be
/// its last copy. The samples are the same for any `ahead`.
template <class T>
class Prefetcher {
 public:
  Prefetcher(std::function<T(std::int64_t)> make,
             std::int64_t first,
             std::int64_t end,
             int ahead = 2,
             const io::Collective& ranks = {})
      : ranks_(ranks),
        thread_(
            [make = std::move(make)](std::int64_t i) -> std::shared_ptr<void> {
              return std::make_shared<T>(make(i));
            },
            first,
            end,
            ahead) {}

  /// Collective. The next item; when making it failed on some rank, all ranks throw that error.
  /// Throws UsageError behind the last one.
  T next() {
    std::shared_ptr<void> item;
    ranks_.together([&] { item = thread_.next(); });
    return std::move(*static_cast<T*>(item.get()));
  }

 private:
  io::Collective ranks_;
  PrefetchThread thread_;
};

}  // namespace tessera::data
