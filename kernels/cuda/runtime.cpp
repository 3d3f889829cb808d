#include <cuda_runtime_api.h>

#include <tessera/core/backend.hpp>
#include <tessera/core/error.hpp>

namespace tessera::kernels::cuda {

/// All kernels are queued here, in program order; see launch.cuh.
cudaStream_t stream();

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw DeviceError(str("cuda: ", what, " failed (", cudaGetErrorString(error),
                        "). Check the driver with nvidia-smi, or use the CPU."));
}

void use_device(int index) {
  thread_local int current = -1;
  if (index == current) return;
  check(cudaSetDevice(index), "the choice of a device");
  current = index;
}

void* allocate(int index, std::size_t bytes) {
  use_device(index);
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(error, "an allocation");
  return data;
}

// At the end of the process the driver may be gone already, and the memory with it.
void free_block(int, void* data) { (void)cudaFree(data); }

void copy(int index, void* to, const void* from, std::size_t bytes) {
  use_device(index);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()), "a copy");
  check(cudaStreamSynchronize(stream()), "a copy");
}

void* native_stream(int) { return stream(); }

void synchronize(void* queue) {
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(queue)), "work on the device");
}

void* record(void* queue) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "the creation of an event");
  check(cudaEventRecord(event, static_cast<cudaStream_t>(queue)), "the record of an event");
  return event;
}

bool ready(void* event) {
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaErrorNotReady) return false;
  check(error, "work on the device");
  return true;
}

void wait(void* event) {
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "work on the device");
}

void forget(void* event) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

constexpr DeviceBackend kBackend{allocate, free_block, copy, native_stream, synchronize,
                                 record,   ready,      wait, forget};

// This file is linked wherever a kernel of the device is, since those need stream().
[[maybe_unused]] const bool registered = (register_backend(Device::kCuda, &kBackend), true);

}  // namespace

cudaStream_t stream() { return nullptr; }

}  // namespace tessera::kernels::cuda
