#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <tessera/core/layout.hpp>
#include <tessera/core/memory.hpp>
#include <tessera/core/view.hpp>

namespace tessera {

/// What autograd keeps with a tensor; opaque to core.
class GradientState : public RefCounted {};

/// A tensor: its global value, and a layout that says where the pieces live.
///
/// A cheap shared handle, of one thread at a time (as all that shares its memory). `shape()` is
/// global; what concerns this rank alone says `local_`. Values do not change after creation except
/// through `mutable_local()`, which is for optimisers and buffers.
class Tensor {
 public:
  /// An undefined handle.
  Tensor() = default;

  /// Uninitialised values.
  static Tensor empty(const Layout& layout, DType dtype = DType::kFloat32, Device device = {});
  static Tensor full(const Layout& layout, double value, DType dtype = DType::kFloat32);
  static Tensor zeros(const Layout& layout, DType dtype = DType::kFloat32) {
    return full(layout, 0.0, dtype);
  }
  /// A copy of this rank's part; throws ShapeError when `local` has not the layout's local shape.
  static Tensor from_local(const View& local, const Layout& layout);
  /// value = f(global index), evaluated for the owned part only.
  static Tensor from_function(const Layout& layout,
                              const std::function<double(const Index&)>& f,
                              DType dtype = DType::kFloat32);
  /// A replicated zero-dimensional value on `mesh`.
  static Tensor scalar(const Mesh& mesh, double value, DType dtype = DType::kFloat32);
  /// Another tensor over the same buffer; what views are made of.
  static Tensor alias(const Tensor& of, const Layout& layout, const View& local);

  bool defined() const { return static_cast<bool>(impl_); }
  const Layout& layout() const { return impl_->layout; }
  const Mesh& mesh() const { return impl_->layout.mesh(); }
  const Shape& shape() const { return impl_->layout.shape(); }
  std::int64_t size(std::int64_t dim) const { return shape()[wrap_dim("size", dim, dims())]; }
  int dims() const { return shape().size(); }
  std::int64_t numel() const { return shape().product(); }
  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->buffer ? impl_->buffer->device() : Device{}; }

  const Shape& local_shape() const { return impl_->layout.local_shape(); }
  const Box& local_box() const { return impl_->layout.local_box(); }
  /// This rank's part; read only, no gradient.
  View local() const {
    return {impl_->data, impl_->dtype, impl_->layout.local_shape(), impl_->strides, device()};
  }
  /// This rank's part for in-place changes; marks the buffer as changed.
  View mutable_local() const;
  /// Bytes of this rank's part.
  std::int64_t local_bytes() const {
    return local_shape().product() * static_cast<std::int64_t>(size_of(dtype()));
  }
  const Ref<Buffer>& buffer() const { return impl_->buffer; }
  /// Whether this handle is the only one that reaches its memory.
  bool is_unshared() const { return impl_->use_count() == 1 && impl_->buffer->use_count() == 1; }
  std::uint32_t version() const { return impl_->buffer->version(); }

  /// The value of a tensor with one element; throws LayoutError while it is Partial, on every rank
  /// that reads, and on ranks that do not hold it. Never communicates.
  double item() const;
  /// The element at a global index that this rank owns, as double; for tests and printing.
  double at(const Index& index) const;

  const Ref<GradientState>& gradient_state() const { return impl_->gradient; }
  /// Which of the values that the gradient state stands for this is.
  int gradient_index() const { return impl_->gradient_index; }
  void set_gradient_state(Ref<GradientState> state, int index = 0) const {
    impl_->gradient = std::move(state);
    impl_->gradient_index = index;
  }
  /// The same values without a gradient.
  Tensor detach() const;
  /// Identity of the handle's object; views have their own.
  const void* id() const { return impl_.get(); }
  /// Shape, layout, dtype.
  std::string str() const;

 private:
  struct Impl : RefCounted, CachedObject {
    Layout layout;
    void* data = nullptr;
    Strides strides;
    Ref<Buffer> buffer;
    Ref<GradientState> gradient;
    int gradient_index = 0;
    DType dtype = DType::kFloat32;
  };
  explicit Tensor(Ref<Impl> impl) : impl_(std::move(impl)) {}
  Ref<Impl> impl_;
};

/// Reads element `offset` of `view` as double; writes it. Slow; for tests, printing and parsing.
double load_as_double(const void* data, DType dtype, std::int64_t offset);
void store_double(void* data, DType dtype, std::int64_t offset, double value);

/// Calls f(index) for every index of `box` in row-major order.
void for_each_index(const Box& box, const std::function<void(const Index&)>& f);

}  // namespace tessera
