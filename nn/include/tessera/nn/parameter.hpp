#pragma once

#include <memory>
#include <string>
#include <tessera/core/layout.hpp>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/init.hpp>
#include <tessera/parallel/group.hpp>

namespace tessera::nn {

/// A trainable tensor of a module: a cheap shared handle (copies are the same parameter).
///
/// It is stored in its `rest` layout and read in its `use` layout; both are replicated on the mesh
/// unless nn::place() says otherwise. Values are made at the first access, for the owned part only,
/// from the initialiser and the key that nn::initialize() derived from the seed and the parameter's
/// path.
class Parameter {
 public:
  /// An absent parameter, e.g. the bias of a layer without one; reads as an undefined tensor.
  Parameter() = default;
  /// Throws DTypeError unless `dtype` is a floating type.
  Parameter(const Shape& shape, const Init& init, const Mesh& mesh, DType dtype = DType::kFloat32);

  bool defined() const { return state_ != nullptr; }
  const Shape& shape() const { return state_->rest.shape(); }
  const Mesh& mesh() const { return state_->rest.mesh(); }
  DType dtype() const { return state_->dtype; }
  std::int64_t numel() const { return shape().product(); }
  /// Name from the root of the model, `encoder.0.conv.weight`; empty before nn::initialize().
  const std::string& path() const { return state_->path; }
  const Layout& rest() const { return state_->rest; }
  const Layout& use() const { return state_->use; }
  /// That of an optimiser's state, and of the part of the values that it changes on this rank;
  /// `rest` unless nn::shard() says otherwise.
  const Layout& optimizer_layout() const {
    return state_->shares.defined() ? state_->shares : state_->rest;
  }
  /// Bytes of this rank's part at rest.
  std::int64_t local_bytes() const {
    if (!here()) return 0;
    return rest().local_shape().product() * static_cast<std::int64_t>(size_of(dtype()));
  }

  /// The value as a layer reads it, in the use layout and the element type to compute in: recorded
  /// ops where these differ from what is stored. Where that moves data, the parameter that was read
  /// after this one the last time starts to move, too. Throws UsageError when the model has not
  /// been initialised.
  Tensor operator()() const;
  /// The leaf that holds the values, in the rest layout; its gradient is `gradient(value())`.
  const Tensor& value() const;
  bool requires_grad() const { return state_->trainable; }
  /// False: the parameter is a constant from now on, and optimisers made later leave it out.
  void set_requires_grad(bool on);

  /// Name and key of the random numbers; drops values that exist. Called by nn::initialize().
  void initialize(const std::string& path, RandomKey key);
  /// New layouts; the values move along. Throws UsageError when a recorded computation has read the
  /// parameter already.
  void place(const Layout& rest, const Layout& use);
  /// Whether the value in its use layout is kept while the values at rest do not change, or made
  /// again for each use, in backward too (the state after construction).
  void keep_use(bool on);
  /// See optimizer_layout(); undefined: `rest`.
  void place_optimizer(const Layout& layout) { state_->shares = layout; }
  /// New element type; the values are converted. Make optimisers afterwards.
  void to(DType dtype);
  /// Element type in which layers read it from now on (see nn::compute_in()); its own: as stored.
  /// Nothing happens to exact parameters.
  void compute_in(DType dtype);
  /// Gives it to stage `stage` of a pipeline along `axis` of `whole`; mesh() is a slice of that.
  /// Elsewhere it keeps its name and layouts but has no values: reading them throws UsageError, and
  /// what works on lists of parameters (optimisers, norms, averages) leaves it out. Called by
  /// nn::Pipeline.
  void set_stage(const Mesh& whole, int axis, int stage);
  /// Whether the values lie in the stage of this process; true without a pipeline.
  bool here() const { return stages().size() == 1 || stages().rank() == state_->stage; }
  int stage() const { return state_->stage; }
  /// `layout`, one of this parameter's, on the mesh of its stage: elsewhere a layout of which this
  /// process owns nothing.
  Layout in_its_stage(const Layout& layout) const;
  /// value(); elsewhere a tensor in_its_stage(rest()), without a part here. For files.
  Tensor stored() const;
  /// The processes at this one's place in all stages, in order; this one alone without a pipeline.
  const parallel::Group& stages() const { return state_->stages; }
  /// The mesh of all stages; mesh() without a pipeline.
  const Mesh& whole_mesh() const { return state_->whole.defined() ? state_->whole : mesh(); }
  /// Layers read it as it is stored, always: what normalisation multiplies with.
  Parameter& exact() {
    state_->exact = true;
    return *this;
  }

  friend bool operator==(const Parameter& a, const Parameter& b) { return a.state_ == b.state_; }

 private:
  struct Ahead;
  struct State {
    Layout rest;
    Layout use;
    Layout shares;
    DType dtype = DType::kFloat32;
    Init init;
    std::string path;
    RandomKey key;
    bool initialized = false;
    bool trainable = true;
    bool read = false;
    bool exact = false;
    DType compute = DType::kFloat32;
    Mesh whole;
    int axis = 0;  // of `whole`
    parallel::Group stages;
    int stage = 0;
    bool keep = false;
    Tensor value;
    Tensor kept;  // the value in use, of version `kept_version` at rest
    std::uint32_t kept_version = 0;
    std::shared_ptr<Ahead> ahead;  // the value in use, on its way
    std::weak_ptr<State> next;     // what was read after it
    std::uint32_t read_version = 0;
  };
  void set_value(const Tensor& value) const;
  bool has_kept() const;
  Tensor moved(const Tensor& x) const;
  void start_ahead() const;
  static std::weak_ptr<State>& last_read();
  std::shared_ptr<State> state_;
};

}  // namespace tessera::nn
