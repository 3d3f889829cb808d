#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <tessera/core/edge.hpp>
#include <tessera/core/tensor.hpp>
#include <type_traits>
#include <vector>

/// One op, one record. An OpDef says what an op computes on global values, which placements of its
/// tensors are legal, which input interval an output interval needs, how one rank computes its
/// part, and the gradient. Everything else (choice of placement, redistribution, halo exchange,
/// tape) is done once, by the dispatcher. How to write one: docs/add_an_op.md.
namespace tessera {

inline constexpr int kMaxInputs = 8;
inline constexpr int kMaxOutputs = 4;

/// Shape and element type of an output, from `OpDef::infer`.
struct OutputMeta {
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// The global metadata of one call; the same on every rank. Decisions may depend on nothing else.
struct Problem {
  const void* args = nullptr;  ///< the op's static arguments
  std::span<const Layout> in;  ///< undefined where an optional input is absent
  std::span<const DType> dtypes;
  Layout like;                      ///< gradient ops: the layout to return; undefined otherwise
  std::span<const OutputMeta> out;  ///< set once `infer` has run

  template <class Args>
  const Args& as() const {
    return *static_cast<const Args*>(args);
  }
  const Shape& shape(int input) const { return in[static_cast<std::size_t>(input)].shape(); }
};

/// The mesh axes that split one dimension together.
struct AxisGroup {
  Mesh mesh;
  AxisMask axes = 0;
  int parts = 1;

  /// Whether exactly these axes split dimension `dim` of `layout`.
  bool splits(const Layout& layout, int dim) const {
    return dim < layout.dims() && layout.axes_of(dim) == axes;
  }
};

/// What one group of axes does to one tensor.
struct Role {
  enum Kind : std::uint8_t {
    kReplicate,  ///< every rank of the group holds the same
    kShard,      ///< splits `dim` at the signature's boundaries
    kWindow,  ///< splits `dim` anywhere; the ranks read beyond their part as `OpDef::windows` says
    kPartial  ///< the value is the sum (max, min) over the group
  } kind = kReplicate;
  int dim = -1;
};
inline Role replicate_role() { return {}; }
inline Role shard_role(int dim) { return {Role::kShard, dim}; }
inline Role window_role(int dim) { return {Role::kWindow, dim}; }
inline Role partial_role() { return {Role::kPartial, -1}; }

struct RunContext;

/// A legal placement of all tensors of an op on one group of axes. All-replicated need not be
/// listed.
struct Signature {
  static constexpr int kLike = -1;

  std::vector<Role> in = {};
  std::vector<Role> out = {};
  /// The input whose present placement is kept (kLike: the layout `like`, whose role is that of
  /// output 0). The signature is considered only where that tensor already has the role stated for
  /// it; its boundaries cut the others.
  int driver = 0;
  /// Boundaries of tensor `t` (inputs first, then outputs) from those of the driver; null: the
  /// same.
  std::function<Bounds(int t, const Bounds& driver)> bounds = {};
  ReduceOp partial_op = ReduceOp::kSum;
  /// Null: exchange the windows, then `local`. Otherwise an algorithm with communication of its own
  /// (ring, routed gather, FFT). Groups that name the same `run` are handed to it in one call.
  void (*run)(RunContext&) = nullptr;
  /// Inputs (bit i) that this signature may gather from split to replicated; any other such need is
  /// an error with advice.
  std::uint32_t may_gather = 0;
};

/// One dimension of one input in which the op reads a window.
struct Window {
  int input = 0;
  int in_dim = 0;
  int work_dim = 0;
  /// The input interval (virtual coordinates: may leave the domain) that a non-empty interval of
  /// the work needs. Both ends must not decrease when the ends of the work interval grow.
  std::function<Interval(Interval work)> need = {};
  EdgeRule edge = EdgeRule::kZero;
};

/// A dimension in which an output is computed beyond its domain, [-lo, n + hi), and what lies
/// outside is added to the elements that `edge` maps it to: the adjoint of an edge rule.
struct Fold {
  int output = 0;
  int dim = 0;
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  EdgeRule edge = EdgeRule::kZero;
};

/// What `OpDef::local` computes: this rank's part, or one box of it.
///
/// The work tensor's piece is cut to the box at hand. Windowed inputs hold every existing element
/// that the box needs, at virtual coordinates beyond the domain where an edge rule applies; what is
/// outside their box is absent. All other pieces are this rank's whole part. An absent optional
/// input has a null `view.data`.
struct LocalCall {
  const void* args = nullptr;
  const void* dynamic = nullptr;
  std::span<const Piece> in;
  std::span<const Piece> out;
  /// Add to the outputs instead of setting them; occurs only where the work tensor is an input. The
  /// first call sets the outputs even when its box is empty.
  bool accumulate = false;

  template <class Args>
  const Args& as() const {
    return *static_cast<const Args*>(args);
  }
  template <class Dynamic>
  const Dynamic& dynamic_as() const {
    return *static_cast<const Dynamic*>(dynamic);
  }
};

/// What a signature's `run` gets. Inputs are already in the placement of the signature, outputs are
/// allocated.
struct RunContext {
  const void* args = nullptr;
  const void* dynamic = nullptr;
  std::span<const Tensor> in;  ///< undefined where absent; no gradient
  std::span<const Tensor> out;
  AxisMask axes = 0;  ///< all axes of the groups that chose this algorithm

  template <class Args>
  const Args& as() const {
    return *static_cast<const Args*>(args);
  }
  template <class Dynamic>
  const Dynamic& dynamic_as() const {
    return *static_cast<const Dynamic*>(dynamic);
  }
};

class VjpContext;

/// The record of an op. Function pointers that are null do not apply.
struct OpDef {
  const char* name = "";

  /// Output shapes and dtypes; throws ShapeError, DTypeError, ... with advice. Sees `like` but no
  /// decomposition question.
  void (*infer)(const Problem&, std::vector<OutputMeta>&) = nullptr;
  /// Appends the placements that are legal on `group`; the cheapest is taken, the first of equals.
  void (*signatures)(const Problem&, const AxisGroup&, std::vector<Signature>&) = nullptr;
  void (*windows)(const Problem&, std::vector<Window>&) = nullptr;
  void (*folds)(const Problem&, std::vector<Fold>&) = nullptr;
  /// The tensor whose owned box is the work space: an input index, or kOutput for output 0.
  static constexpr int kOutput = -1;
  int work = kOutput;

  /// `local` takes blocks of the memory pool that count in the size of a problem. It then runs in a
  /// DryRun, too, where it must touch no element (see core/dry_run.hpp).
  bool takes_scratch = false;
  void (*local)(const LocalCall&) = nullptr;
  /// Views: returns the local memory of output 0 inside that of input 0 (or a view with null data
  /// when the strides do not allow it, then `local` copies). No memory is touched.
  View (*alias)(const LocalCall&) = nullptr;

  /// Gradients of the inputs in terms of ops (so that they differentiate again). Null: not
  /// differentiable.
  void (*vjp)(VjpContext&) = nullptr;
  /// The same maths in smaller ops, used instead of `vjp` when a graph of the gradient is asked
  /// for; null: `vjp` serves.
  std::vector<Tensor> (*decompose)(const VjpContext&) = nullptr;
  /// Output 0 again, to the bit, from what is saved; null: it is kept. For what costs little beside
  /// the ops that read it (normalisation, activation): those save nothing of it and compute it
  /// again in backward. Gradients are off.
  Tensor (*recompute)(const VjpContext&) = nullptr;
  /// Input whose memory output 0 may take where nobody else sees it (same layout and type); for
  /// elementwise gradient ops, which have no vjp. -1: none.
  int overwrites = -1;
  std::uint32_t saved_inputs = 0;   ///< bit i: vjp reads input i
  std::uint32_t saved_outputs = 0;  ///< bit j: vjp reads output j
  std::uint32_t differentiable_outputs = ~0u;
  /// Linear in its only input and made of no arithmetic (cast, permute, slice, redistribute):
  /// Partial gradients of parameters pass through it unreduced.
  bool linear_view = false;
  /// Floating-point operations that `local` takes for these pieces (only their sizes are read), for
  /// profiles. Null: the op moves memory, and the bytes it reads and writes are what counts.
  double (*cost)(const LocalCall&) = nullptr;
  /// What a `run` chooses to do on these axes, in a word or two; for plans. `in`: as placed.
  std::string (*variant)(const void* args, std::span<const Layout> in, AxisMask axes) = nullptr;

  /// Of the name, so the same in every process; not to be given.
  std::uint64_t name_hash = hash_of(name);
  /// Of a text, at compile time.
  static constexpr std::uint64_t hash_of(const char* text) {
    std::uint64_t hash = 0;
    for (; *text != '\0'; ++text) hash = std::rotl(hash, 7) ^ static_cast<unsigned char>(*text);
    return hash;
  }
};

/// The outputs of one call.
class Outputs {
 public:
  int size() const { return size_; }
  const Tensor& operator[](int j) const { return tensors_[static_cast<std::size_t>(j)]; }
  Tensor& operator[](int j) { return tensors_[static_cast<std::size_t>(j)]; }
  void push_back(Tensor t) { tensors_[static_cast<std::size_t>(size_++)] = std::move(t); }
  operator Tensor() && { return std::move(tensors_[0]); }

 private:
  std::array<Tensor, kMaxOutputs> tensors_;
  int size_ = 0;
};

/// Arguments as the dispatcher takes them. `bytes` bytes of static arguments are part of the cache
/// key; the dynamic ones (scalars, seeds, steps) are not and must not change shapes, placements or
/// windows.
struct ArgsRef {
  const void* data = nullptr;
  std::size_t bytes = 0;
  const void* dynamic = nullptr;
  std::size_t dynamic_bytes = 0;
};
inline constexpr std::size_t kMaxArgBytes = 512;

/// For ops without arguments of one kind.
struct NoArgs {
  std::uint64_t unused = 0;
};

/// Runs `op` on global values: chooses the placement, redistributes, exchanges, computes, records.
/// All tensors must live on one mesh.
Outputs dispatch(const OpDef& op,
                 std::span<const Tensor> inputs,
                 const ArgsRef& args,
                 const Layout& like = {});

/// `call(op, {x, w}, args)`: Args must be a trivially copyable struct without padding (equal
/// arguments, equal bytes).
template <class Args, class Dynamic = NoArgs>
Outputs call(const OpDef& op,
             std::initializer_list<Tensor> inputs,
             const Args& args = {},
             const Dynamic& dynamic = {},
             const Layout& like = {}) {
  static_assert(std::is_trivially_copyable_v<Args> && std::is_trivially_copyable_v<Dynamic>);
  static_assert(std::has_unique_object_representations_v<Args>,
                "static arguments: integers only, no padding");
  static_assert(sizeof(Args) <= kMaxArgBytes && sizeof(Dynamic) <= kMaxArgBytes);
  return dispatch(op, std::span(inputs.begin(), inputs.size()),
                  {&args, sizeof args, &dynamic, sizeof dynamic}, like);
}

/// What a vjp works with. All tensors are global values; under create_graph everything computed
/// here is recorded.
class VjpContext {
 public:
  template <class Args>
  const Args& as() const {
    return *static_cast<const Args*>(args());
  }
  template <class Dynamic>
  const Dynamic& dynamic_as() const {
    return *static_cast<const Dynamic*>(dynamic());
  }
  virtual const void* args() const = 0;
  virtual const void* dynamic() const = 0;
  /// A saved input or output (see OpDef::saved_inputs); throws when it was changed in place since.
  virtual Tensor input(int i) const = 0;
  virtual Tensor output(int j) const = 0;
  /// Layout of any input or output, saved or not; the layout that the gradient of input i has to
  /// have is `input_layout(i).dual()`.
  virtual const Layout& input_layout(int i) const = 0;
  virtual const Layout& output_layout(int j) const = 0;
  virtual DType input_dtype(int i) const = 0;
  virtual int input_count() const = 0;
  /// Gradient of output j: in the dual layout of that output; undefined where none arrived.
  virtual Tensor grad(int j = 0) const = 0;
  /// The same, given away: an op may overwrite it.
  virtual Tensor take_grad(int j = 0) = 0;
  /// Whether the gradient of input i is wanted.
  virtual bool needs(int i) const = 0;
  /// Sets the gradient of input i, of that input's shape, in any layout.
  virtual void set(int i, Tensor gradient) = 0;

 protected:
  ~VjpContext() = default;
};

}  // namespace tessera
