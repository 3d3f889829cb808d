#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/autograd/recompute.hpp>
#include <tessera/core/scope.hpp>
#include <tessera/nn/parameter.hpp>
#include <utility>
#include <vector>

namespace tessera::nn {

class Module;

/// What Module::fields() shows its members to. A name has no dots; lists name their elements 0, 1,
/// ...; null pointers, empty optionals and absent parameters are left out.
class Fields {
 public:
  virtual ~Fields() = default;

  void operator()(std::string_view name, Parameter& p) {
    if (p.defined()) parameter(name, p);
  }
  /// A buffer: a tensor that belongs to the module's state, but is not trained.
  void operator()(std::string_view name, Tensor& t) {
    if (t.defined()) buffer(name, t);
  }
  void operator()(std::string_view name, Module& m) { child(name, m); }
  template <class T>
  void operator()(std::string_view name, std::unique_ptr<T>& m) {
    if (m) (*this)(name, *m);
  }
  template <class T>
  void operator()(std::string_view name, std::shared_ptr<T>& m) {
    if (m) (*this)(name, *m);
  }
  template <class T>
  void operator()(std::string_view name, std::optional<T>& m) {
    if (m) (*this)(name, *m);
  }
  template <class T>
  void operator()(std::string_view name, std::vector<T>& list) {
    enter(name);
    for (std::size_t i = 0; i < list.size(); ++i) (*this)(std::to_string(i), list[i]);
    leave();
  }

 protected:
  virtual void parameter(std::string_view name, Parameter& p) = 0;
  virtual void buffer(std::string_view name, Tensor& t) = 0;
  virtual void child(std::string_view name, Module& m) = 0;
  /// Around the elements of a list.
  virtual void enter(std::string_view name) = 0;
  virtual void leave() = 0;
};

/// What fixes random draws inside a model (dropout), beside the module and the element: set `step`
/// (and `micro_batch` while accumulating) before each forward pass. Equal contexts draw equal
/// numbers on any mesh.
struct RandomContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t micro_batch = 0;
  friend bool operator==(const RandomContext&, const RandomContext&) = default;
};

/// A part of a model: plain members (parameters, buffers, other modules) that `fields` names.
///
/// ```cpp
/// struct Mlp : nn::Module {
///   nn::Linear in, out;
///   explicit Mlp(const Mesh& mesh)
///       : in({.in = 3, .out = 64}, mesh), out({.in = 64, .out = 1}, mesh) {
///     nn::initialize(*this, 42);  // seed
///   }
///   void fields(nn::Fields& f) override {
///     f("in", in);
///     f("out", out);
///   }
///   Tensor operator()(const Tensor& x) const { return out(relu(in(x))); }
/// };
/// ```
///
/// Movable, not copyable. Modules are born replicated on a mesh.
class Module {
 public:
  virtual ~Module() = default;
  /// Calls `f(name, member)` for each parameter, buffer and child, always in the same order.
  virtual void fields(Fields& f) = 0;
  /// One line for the summary table, e.g. `Conv 64 -> 64, 3x3`.
  virtual std::string describe() const { return "Module"; }

  /// All parameters, in the order of fields(), each once.
  std::vector<Parameter> parameters();
  /// With their names, `encoder.0.conv.weight`.
  std::vector<std::pair<std::string, Parameter>> named_parameters();
  std::vector<std::pair<std::string, Tensor>> named_buffers();
  /// This module (name "") and all below.
  std::vector<std::pair<std::string, Module*>> named_modules();

  /// Training mode (the state after construction): dropout is active.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  /// Converts parameters and floating buffers. Make optimisers afterwards.
  void to(DType dtype);

  /// Number of parameter elements, globally.
  std::int64_t parameter_count();
  /// Table of modules and parameters: name, shape, layout at rest, count, bytes on this rank.
  std::string summary();

  /// The context that this model's random draws use; shared by all modules of one model. Throws
  /// UsageError before nn::initialize().
  RandomContext& random() const;
  /// Key of the next random op of this module: hash of (seed, path of the module, step,
  /// micro-batch, how many keys it took since the context last changed). What is computed again
  /// gets the keys of the first time.
  RandomKey next_random_key() const;
  const std::string& path() const { return path_; }
  /// The path for a LayerScope. Modules that are not called through Layer::operator() open one
  /// where they run ops.
  const char* scope_name() const { return scope_name_; }
  /// Whether recompute() may name this module: its call goes through Layer::operator() or run().
  virtual bool can_recompute() const { return false; }
  /// The options of recompute(), null where it does not name this module.
  const RecomputeOptions* recomputes() const { return recompute_.get(); }

 protected:
  Module() = default;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  /// `f(inputs)`, computed again in backward where recompute() says so: for modules of several
  /// inputs or outputs, which also say so in can_recompute().
  std::vector<Tensor> run(const RecomputedFunction& f, const std::vector<Tensor>& inputs) const {
    return recompute_ ? tessera::recompute(f, inputs, *recompute_) : f(inputs);
  }
  /// `x` in the element type in which this module computes (see compute_in()): for layers that are
  /// not called through Layer::operator().
  Tensor computed(const Tensor& x) const {
    return compute_ && x.defined() ? in_compute_type(x) : x;
  }

 private:
  friend void initialize(Module& model, std::uint64_t seed);
  friend struct RandomDraws;
  friend void recompute(Module& model, const std::string& pattern, const RecomputeOptions& options);
  friend void compute_in(Module& model, DType dtype, const std::vector<std::string>& except);
  Tensor in_compute_type(const Tensor& x) const;
  RandomKey draw_key() const;
  std::string path_;
  const char* scope_name_ = "";
  std::shared_ptr<RandomContext> random_;
  std::shared_ptr<const RecomputeOptions> recompute_;
  std::optional<DType> compute_;
  mutable RandomContext drawn_;
  mutable std::uint64_t draws_ = 0;
  bool training_ = true;
};

/// A module from one tensor to one tensor.
class Layer : public Module {
 public:
  virtual Tensor forward(const Tensor& x) const = 0;
  Tensor operator()(const Tensor& x) const {
    const LayerScope scope(scope_name());
    return recomputes() != nullptr ? recomputed(computed(x)) : forward(computed(x));
  }
  bool can_recompute() const override { return true; }

 private:
  Tensor recomputed(const Tensor& x) const;
};

/// Names everything below `model` by its path and gives each parameter new values, keyed by (seed,
/// path). The constructor of a top-level model calls it last; a model inside another is named anew
/// by that one.
void initialize(Module& model, std::uint64_t seed);

/// Where a parameter lies at rest and where the layers read it. A default Placement: replicated.
struct ParameterPlacement {
  Placement rest = {};
  Placement use = {};
  /// Boundaries of dimensions that are split with `domain` set are multiples of this: heads, groups
  /// of channels (see Placement::shard).
  std::int64_t multiple = 1;
};

/// Places all parameters whose path matches a pattern (`*`: any characters, `?`: one). Later rules
/// win. Splitting `rest` alone is full sharding; splitting `use`
/// as well is tensor parallelism. Throws UsageError when a pattern matches nothing, or a parameter
/// was read by a recorded computation before.
void place(Module& model, const std::vector<std::pair<std::string, ParameterPlacement>>& rules);

/// Modules whose path matches `pattern` (see place()) keep their inputs alone, not what their ops
/// save, and are computed again in backward (tessera::recompute): less memory for about a third
/// more time, with the same gradients to the bit. Of nested matches the outermost count; to nest,
/// call again. `{.keep = {"attention"}}` keeps the outputs of these ops. Modules must not be moved
/// between forward and backward. Throws UsageError when nothing matches, or a match cannot.
///
/// ```cpp
/// nn::recompute(model, "blocks.?", {.keep = {"attention"}});
/// ```
void recompute(Module& model, const std::string& pattern, const RecomputeOptions& options = {});

/// Mixed precision: parameters stay what they are (fp32 master weights, and so do their gradients
/// and the state of optimisers), but layers read them, and their own floating inputs, rounded to
/// `dtype`, so activations are computed and kept in it. Kernels sum in fp32; norms keep exact
/// parameters and statistics, losses are taken in fp32. bf16 has the exponents of fp32, so nothing
/// under- or overflows that would not there, and losses need no scaling.
///
/// Modules whose path matches one of `except` (see place()), and those below, stay in their
/// parameters' type: what they return has it, and adding that to something narrower needs a cast
/// (the blocks of nn and models do so). Models return the type of their input. With the type of the
/// parameters all is as before. Throws UsageError when a pattern matches nothing.
///
/// ```cpp
/// nn::compute_in(model, DType::kBFloat16, {"head"});
/// ```
void compute_in(Module& model, DType dtype, const std::vector<std::string>& except = {});

/// Whether `path` matches `pattern` (see place()).
bool glob_match(std::string_view pattern, std::string_view path);

}  // namespace tessera::nn
