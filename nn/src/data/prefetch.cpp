#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <tessera/core/error.hpp>
#include <tessera/nn/data/prefetch.hpp>
#include <thread>

namespace tessera::data {

struct PrefetchThread::State {
  struct Item {
    std::shared_ptr<void> value;
    std::exception_ptr error;
  };

  std::function<std::shared_ptr<void>(std::int64_t)> make;
  std::int64_t asked;  // the next item to be handed out
  std::int64_t end;
  std::size_t ahead;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> ready;
  bool stop = false;
  std::jthread thread;  // last: joined before the rest goes

  void run(std::int64_t item) {
    for (; item < end; ++item) {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || ready.size() < ahead; });
        if (stop) return;
      }
      Item made;
      try {
        made.value = make(item);
      } catch (...) {
        made.error = std::current_exception();
      }
      const bool failed = made.error != nullptr;
      {
        const std::lock_guard lock(mutex);
        ready.push_back(std::move(made));
      }
      changed.notify_all();
      if (failed) return;
    }
  }
};

PrefetchThread::PrefetchThread(std::function<std::shared_ptr<void>(std::int64_t)> make,
                               std::int64_t first,
                               std::int64_t end,
                               int ahead)
    : state_(std::make_unique<State>()) {
  if (ahead < 0) throw UsageError(str("prefetch: ", ahead, " items ahead. Use 0 or more."));
  State& s = *state_;
  s.make = std::move(make);
  s.asked = first;
  s.end = end;
  s.ahead = static_cast<std::size_t>(ahead);
  if (ahead > 0 && first < end) s.thread = std::jthread([&s, first] { s.run(first); });
}

PrefetchThread::~PrefetchThread() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
}

std::shared_ptr<void> PrefetchThread::next() {
  State& s = *state_;
  if (s.asked >= s.end)
    throw UsageError(str("prefetch: item ", s.asked, " of ", s.end, ". There are no more."));
  if (s.ahead == 0) return s.make(s.asked++);
  std::unique_lock lock(s.mutex);
  s.changed.wait(lock, [&] { return !s.ready.empty(); });
  // An error stays: the thread has ended.
  if (s.ready.front().error) std::rethrow_exception(s.ready.front().error);
  std::shared_ptr<void> value = std::move(s.ready.front().value);
  s.ready.pop_front();
  ++s.asked;
  lock.unlock();
  s.changed.notify_all();
  return value;
}

}  // namespace tessera::data
