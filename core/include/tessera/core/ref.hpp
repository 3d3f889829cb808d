#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tessera {

/// Base of objects that count their owners themselves. A count is plain, not atomic (an atomic one
/// costs more than the rest of a small op): all owners of an object live on one thread at a time.
/// Handing an object over to another thread as a whole is fine.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;
  virtual ~RefCounted() = default;

  void retain() const { ++count_; }
  void release() const {
    if (--count_ == 0) dispose();
  }
  std::int32_t use_count() const { return count_; }

 protected:
  /// Called when the last owner is gone.
  virtual void dispose() const { delete this; }

 private:
  mutable std::int32_t count_ = 0;
};

/// The same for interned objects, which threads share without knowing: the count is atomic.
class SharedRefCounted {
 public:
  SharedRefCounted() = default;
  SharedRefCounted(const SharedRefCounted&) = delete;
  SharedRefCounted& operator=(const SharedRefCounted&) = delete;
  virtual ~SharedRefCounted() = default;

  void retain() const { count_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) dispose();
  }
  std::int32_t use_count() const { return count_.load(std::memory_order_relaxed); }

 protected:
  virtual void dispose() const { delete this; }

 private:
  mutable std::atomic<std::int32_t> count_{0};
};

/// Owning pointer to such an object.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* p) : p_(p) {
    if (p_) p_->retain();
  }
  Ref(const Ref& other) : p_(other.p_) {
    if (p_) p_->retain();
  }
  Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  template <class U>
  requires std::is_convertible_v<U*, T*> Ref(const Ref<U>& other) : Ref(other.get()) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(p_, other.p_);
    return *this;
  }
  ~Ref() {
    if (p_) p_->release();
  }

  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

 private:
  T* p_ = nullptr;
};

template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>(new T(std::forward<Args>(args)...));
}

}  // namespace tessera
