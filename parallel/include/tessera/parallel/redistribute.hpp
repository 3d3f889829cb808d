#pragma once

#include <cstdint>
#include <memory>
#include <tessera/core/tensor.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/redistribution_plan.hpp>
#include <vector>

namespace tessera::parallel {

/// A redistribution in flight. It holds its buffers; the destructor waits for the messages.
class Redistribution {
 public:
  Redistribution(Redistribution&&) noexcept;
  Redistribution& operator=(Redistribution&&) noexcept;
  ~Redistribution();

  /// Progresses the step in flight; true when it is done. Later steps start in wait() only, so that
  /// their order is that of the program on every rank.
  bool poll();
  /// The tensor in its new layout; to be called once, in the same order on all ranks.
  Tensor wait();

 private:
  friend Redistribution start_redistribute(const Tensor&, const Layout&, const char*);
  struct State;
  explicit Redistribution(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Begins to bring `x` to layout `to`, which has the same mesh and shape; no gradient is recorded.
/// Nothing is sent where this rank's part is already here: equal layouts give x itself, a split of
/// a replicated dimension a view of x. Partial values combine in rank order, bf16 sums in fp32.
/// Throws LayoutError when meshes or shapes differ.
Redistribution start_redistribute(const Tensor& x,
                                  const Layout& to,
                                  const char* op = "redistribute");

/// The same, waiting.
Tensor redistribute(const Tensor& x, const Layout& to, const char* op = "redistribute");

/// The tensor with layout `layout` whose global value mesh rank `root` has in `values`; on other
/// ranks only the dtype of `values` is read. On Partial axes coordinate 0 holds the value.
Tensor scatter(const Layout& layout, const View& values, int root);

/// The global value of x on mesh rank `root` alone, as a tensor of the mesh Mesh::single(that
/// process); other ranks get an empty part. Partial axes are reduced.
Tensor gather_to(const Tensor& x, int root);

/// The global value of x on every rank, as a tensor of Mesh::self(); for tests and small results.
Tensor replicate_values(const Tensor& x);

}  // namespace tessera::parallel
