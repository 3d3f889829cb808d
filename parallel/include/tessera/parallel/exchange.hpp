#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <tessera/core/view.hpp>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/window_plan.hpp>
#include <vector>

namespace tessera::parallel {

/// One windowed input: its plan for this rank and the piece this rank owns (box = plan->owned).
struct WindowInput {
  std::shared_ptr<const ExchangePlan> plan;
  Piece own;
};

/// The exchange of the windows of all inputs of an op in flight: one message per peer.
///
/// Only the faces are ever allocated. The owned memory must stay, unchanged, until the exchange is
/// done; the destructor waits for that. In builds without NDEBUG ghosts hold signalling NaN until
/// they arrive.
class WindowExchange {
 public:
  /// Posts the receives, packs and sends. Throws LayoutError when a piece is not what its plan says
  /// that this rank owns.
  WindowExchange(const Mesh& mesh, std::span<const WindowInput> inputs, const CallInfo& info = {});
  /// One input.
  WindowExchange(const Mesh& mesh, const WindowInput& input, const CallInfo& info = {});

  /// Whether all ghosts are here; progresses the messages.
  bool poll() { return request_.test(); }
  void wait() { request_.wait(); }

  /// Disjoint pieces in virtual coordinates that hold all that exists of `plan->needed`: the owned
  /// piece, then the images in plan order (ghosts valid after wait()). Mirrored and repeated
  /// ones have strides that are negative or 0.
  std::span<const Piece> pieces(int input = 0) const;

  /// Copies the box `region` (virtual coordinates) to `out`; what no piece holds becomes `fill`.
  /// Throws UsageError when called before the exchange is done.
  void assemble(const Box& region, const View& out, double fill, int input = 0) const;

 private:
  std::vector<std::vector<Piece>> pieces_;
  Ref<Buffer> ghosts_;
  Ref<Buffer> packed_;
  Request request_;
};

/// One input of an adjoint exchange.
struct AdjointInput {
  std::shared_ptr<const ExchangePlan> plan;
  DType dtype;
};

/// The transpose of a WindowExchange: values given in virtual coordinates where the plan puts its
/// images are added to the elements that those show, on the ranks that own them.
///
/// Sums have a fixed order: what one parcel was given in the order of the calls of add() and of its
/// images; then, at the owner, parcels by sending rank and plan order. bf16 is rounded after each
/// addition. All buffers lie on `info.device`.
class AdjointExchange {
 public:
  AdjointExchange(const Mesh& mesh,
                  std::span<const AdjointInput> inputs,
                  const CallInfo& info = {});
  AdjointExchange(const Mesh& mesh, const AdjointInput& input, const CallInfo& info = {});

  /// Adds the part of `values` (the box `region` in virtual coordinates) that lies in images. The
  /// part that this rank owns in place is left to the caller, that outside the domain under
  /// EdgeRule::kZero is dropped.
  void add(const Box& region, const View& values, int input = 0);
  /// Sends what was added.
  void start();
  bool poll() { return request_.test(); }
  /// Waits and adds what arrived, and the local images, to the owned view. Throws UsageError when
  /// start() was not called.
  void finish(const View& own, int input = 0);

 private:
  struct Input {
    std::shared_ptr<const ExchangePlan> plan;
    std::vector<Piece> sums;    ///< per image, in virtual coordinates
    std::vector<Piece> local;   ///< those of the own part, in real coordinates
    std::vector<View> arrived;  ///< per parcel of plan->sends
  };
  Mesh mesh_;
  CallInfo info_;
  std::vector<Input> inputs_;
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
  Ref<Buffer> outgoing_;
  Ref<Buffer> incoming_;
  Request request_;
  bool started_ = false;
};

}  // namespace tessera::parallel
