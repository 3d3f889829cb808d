#pragma once

#include <algorithm>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/kernels/elementwise.hpp>

namespace tessera::kernels::cpu {

inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// An aligned block of the memory pool; made on the calling thread.
template <class T>
class PoolScratch {
 public:
  PoolScratch() = default;
  explicit PoolScratch(std::int64_t count)
      : buffer_(MemoryPool::of(Device{}).allocate(
            static_cast<std::size_t>(std::max<std::int64_t>(1, count)) * sizeof(T))) {}
  T* data() const { return reinterpret_cast<T*>(buffer_->data()); }

 private:
  Ref<Buffer> buffer_;
};

/// View with its last dimension [groups * channels] as [groups, channels].
inline View split_last(const View& view, std::int64_t channels) {
  View result = view;
  const std::int64_t groups = channels == 0 ? 1 : view.shape.back() / channels;
  if (groups == 1) return result;
  const std::int64_t stride = view.strides.back();
  result.shape.back() = groups;
  result.shape.push_back(channels);
  result.strides.back() = stride * channels;
  result.strides.push_back(stride);
  return result;
}

/// A view as dense rows whose last dimension is padded with zeros to `width` elements per row of
/// channels; in place where it is that already.
template <class T>
class PaddedRows {
 public:
  PaddedRows() = default;
  PaddedRows(const View& view, std::int64_t channels, std::int64_t width) {
    if (view.data == nullptr) return;
    const std::int64_t rows = channels == 0 ? 0 : view.size() / channels;
    if (channels == width && view.is_dense()) {
      data_ = view.as<T>();
      return;
    }
    copy_ = PoolScratch<T>(rows * width);
    data_ = copy_.data();
    if (dry_run()) return;
    if (channels != width) std::fill_n(data_, rows * width, T(0));
    copy(split_last(view, channels), window(view, channels, width, data_));
  }
  const T* data() const { return data_; }

  /// `data`, rows of `width`, seen with the shape of `view`, whose rows have `channels`.
  static View window(const View& view, std::int64_t channels, std::int64_t width, T* data) {
    View padded = view;
    padded.data = data;
    // The last dimension is one or several groups of channels.
    const std::int64_t groups = channels == 0 ? 1 : view.shape.back() / channels;
    if (groups != 1) {
      padded.shape.back() = groups;
      padded.shape.push_back(channels);
    }
    Shape dense = padded.shape;
    dense.back() = width;
    padded.strides = row_major(dense);
    return padded;
  }

 private:
  PoolScratch<T> copy_;
  T* data_ = nullptr;
};

/// An output as padded dense rows, written back at the end where it is not that itself.
template <class T>
class PaddedResult {
 public:
  PaddedResult(const View& view, std::int64_t channels, std::int64_t width)
      : view_(view), channels_(channels), width_(width) {
    if (view.data == nullptr) return;
    const std::int64_t rows = channels == 0 ? 0 : view.size() / channels;
    size_ = rows * width;
    direct_ = channels == width && view.is_dense();
    if (direct_) {
      data_ = view.as<T>();
    } else {
      copy_ = PoolScratch<T>(size_);
      data_ = copy_.data();
    }
  }
  T* data() const { return data_; }
  void clear() const {
    if (data_ != nullptr) std::fill_n(data_, size_, T(0));
  }
  void finish() const {
    if (data_ == nullptr || direct_) return;
    copy(PaddedRows<T>::window(view_, channels_, width_, data_), split_last(view_, channels_));
  }

 private:
  View view_;
  std::int64_t channels_, width_;
  PoolScratch<T> copy_;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
  bool direct_ = false;
};

}  // namespace tessera::kernels::cpu
