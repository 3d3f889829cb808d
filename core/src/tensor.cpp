#include <cstring>
#include <tessera/core/backend.hpp>
#include <tessera/core/dry_run.hpp>
#include <tessera/core/tensor.hpp>

namespace tessera {

double load_as_double(const void* data, DType dtype, std::int64_t offset) {
  return visit_dtype(dtype, [&]<class T>() {
    const T value = static_cast<const T*>(data)[offset];
    if constexpr (std::is_same_v<T, BFloat16>) {
      return static_cast<double>(static_cast<float>(value));
    } else {
      return static_cast<double>(value);
    }
  });
}

void store_double(void* data, DType dtype, std::int64_t offset, double value) {
  visit_dtype(dtype, [&]<class T>() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      static_cast<T*>(data)[offset] = BFloat16(static_cast<float>(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      static_cast<T*>(data)[offset] = value != 0.0;
    } else {
      static_cast<T*>(data)[offset] = static_cast<T>(value);
    }
  });
}

namespace {

double read_element(const Tensor& tensor, std::int64_t offset) {
  if (dry_run()) return 0.0;
  const View local = tensor.local();
  if (local.device.kind == Device::kCpu) return load_as_double(local.data, local.dtype, offset);
  std::int64_t element = 0;
  const std::size_t size = size_of(local.dtype);
  copy_bytes(&element, Device{}, local.as<std::byte>() + offset * static_cast<std::int64_t>(size),
             local.device, size);
  return load_as_double(&element, local.dtype, 0);
}

}  // namespace

void for_each_index(const Box& box, const std::function<void(const Index&)>& f) {
  if (box.empty()) return;
  Index index = box.lo;
  while (true) {
    f(index);
    int d = box.dims() - 1;
    for (; d >= 0; --d) {
      if (++index[d] < box.hi[d]) break;
      index[d] = box.lo[d];
    }
    if (d < 0) return;
  }
}

Tensor Tensor::empty(const Layout& layout, DType dtype, Device device) {
  if (!layout.defined())
    throw LayoutError(
        "tensor: the layout is undefined. Resolve a placement, or use Layout::replicated.");
  Ref<Impl> impl(new Impl);
  impl->layout = layout;
  impl->dtype = dtype;
  impl->strides = row_major(layout.local_shape());
  impl->buffer = MemoryPool::of(device).allocate(
      static_cast<std::size_t>(layout.local_shape().product()) * size_of(dtype));
  impl->data = impl->buffer->data();
  return Tensor(std::move(impl));
}

Tensor Tensor::full(const Layout& layout, double value, DType dtype) {
  Tensor result = empty(layout, dtype);
  if (dry_run()) return result;
  const std::int64_t n = result.local_shape().product();
  void* data = result.impl_->data;
  if (value == 0.0) {
    std::memset(data, 0, static_cast<std::size_t>(n) * size_of(dtype));
    return result;
  }
  visit_dtype(dtype, [&]<class T>() {
    store_double(data, dtype, 0,
                 value);  // at least one element's room: blocks are 64 bytes or more
    T* const p = static_cast<T*>(data);
    for (std::int64_t i = 1; i < n; ++i) p[i] = p[0];
  });
  return result;
}

Tensor Tensor::from_local(const View& local, const Layout& layout) {
  if (!(local.shape == layout.local_shape())) {
    throw ShapeError(tessera::str("from_local: the local part is ", local.shape, " but layout ",
                                  layout, " gives this rank ", layout.local_shape(),
                                  ". Pass this rank's part only."));
  }
  Tensor result = empty(layout, local.dtype, local.device);
  const auto size = static_cast<std::int64_t>(size_of(local.dtype));
  auto* out = static_cast<std::byte*>(result.impl_->data);
  if (local.empty() || dry_run()) return result;
  if (local.is_dense()) {
    copy_bytes(out, local.device, local.data, local.device,
               static_cast<std::size_t>(local.size() * size));
    return result;
  }
  if (local.device.kind != Device::kCpu) {
    throw DeviceError(tessera::str("from_local: the view on ", tessera::str(local.device),
                                   " is not dense. Copy it to a dense one first."));
  }
  for_each_index(Box::whole(local.shape), [&](const Index& index) {
    std::int64_t offset = 0;
    for (int d = 0; d < index.size(); ++d) offset += index[d] * local.strides[d];
    std::memcpy(out, static_cast<const std::byte*>(local.data) + offset * size,
                static_cast<std::size_t>(size));
    out += size;
  });
  return result;
}

Tensor Tensor::from_function(const Layout& layout,
                             const std::function<double(const Index&)>& f,
                             DType dtype) {
  Tensor result = empty(layout, dtype);
  if (dry_run()) return result;
  std::int64_t i = 0;
  for_each_index(layout.local_box(), [&](const Index& index) {
    store_double(result.impl_->data, dtype, i++, f(index));
  });
  return result;
}

Tensor Tensor::scalar(const Mesh& mesh, double value, DType dtype) {
  return full(Layout::replicated(mesh, {}), value, dtype);
}

Tensor Tensor::alias(const Tensor& of, const Layout& layout, const View& local) {
  if (!(local.shape == layout.local_shape())) {
    throw ShapeError(tessera::str("alias: the local part is ", local.shape, " but layout ", layout,
                                  " gives this rank ", layout.local_shape(), "."));
  }
  Ref<Impl> impl(new Impl);
  impl->layout = layout;
  impl->dtype = local.dtype;
  impl->strides = local.strides;
  impl->buffer = of.impl_->buffer;
  impl->data = local.data;
  return Tensor(std::move(impl));
}

View Tensor::mutable_local() const {
  impl_->buffer->bump_version();
  return local();
}

double Tensor::item() const {
  if (numel() != 1) {
    throw ShapeError(tessera::str("item: the tensor ", shape(), " has ", numel(),
                                  " elements. Reduce it to one first."));
  }
  if (layout().partial_axes()) {
    throw LayoutError(tessera::str("item: the value ", layout(),
                                   " is a sum not yet taken, and reading never "
                                   "communicates. Call reduced(x) (all ranks) first."));
  }
  if (layout().split_axes()) {
    throw LayoutError(tessera::str("item: the value ", layout(),
                                   " lives on one rank only. Call replicate(x) first."));
  }
  if (local_shape().product() != 1)
    throw LayoutError("item: this process is not part of the tensor's mesh.");
  return read_element(*this, 0);
}

double Tensor::at(const Index& index) const {
  std::int64_t offset = 0;
  for (int d = 0; d < dims(); ++d) {
    if (index[d] < local_box().lo[d] || index[d] >= local_box().hi[d]) {
      throw LayoutError(tessera::str("at: element ", index, " is not on this rank, which owns ",
                                     local_box(), "."));
    }
    offset += (index[d] - local_box().lo[d]) * impl_->strides[d];
  }
  return read_element(*this, offset);
}

Tensor Tensor::detach() const { return alias(*this, layout(), local()); }

std::string Tensor::str() const {
  return tessera::str("Tensor(", name(dtype()), " ", layout(), ")");
}

}  // namespace tessera
