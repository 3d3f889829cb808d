#pragma once

#include <cstddef>
#include <memory>
#include <tessera/core/error.hpp>
#include <utility>

namespace tessera {

/// At most N values inside the object; only those that exist are constructed.
template <class T, int N>
class InlineVector {
 public:
  InlineVector() = default;
  InlineVector(const InlineVector&) = delete;
  InlineVector& operator=(const InlineVector&) = delete;
  ~InlineVector() { std::destroy_n(data(), size_); }

  /// Throws UsageError when it is full.
  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == N) throw UsageError(str("at most ", N, " values fit here."));
    T* const value = ::new (static_cast<void*>(data() + size_)) T{std::forward<Args>(args)...};
    ++size_;
    return *value;
  }

  /// Appends what `make()` returns, built in place: large values are not copied.
  template <class Make>
  T& append(Make&& make) {
    if (size_ == N) throw UsageError(str("at most ", N, " values fit here."));
    T* const value = ::new (static_cast<void*>(data() + size_)) T(make());
    ++size_;
    return *value;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return reinterpret_cast<T*>(storage_); }
  const T* data() const { return reinterpret_cast<const T*>(storage_); }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }

 private:
  int size_ = 0;
  alignas(T) std::byte storage_[N * sizeof(T)];
};

}  // namespace tessera
