// Neighbourhood and window attention: one record. A split domain reads windows of keys and values;
// of the two gradients, that of the queries reads the same windows, that of keys and values windows
// of queries, so no sum crosses ranks but that of the bias.

#include <cmath>
#include <tessera/autograd/ops/local_attention.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "attention_heads.hpp"
#include "broadcast.hpp"
#include "domain.hpp"
#include "local_attention_pairs.hpp"

namespace tessera {

namespace {

const char* op_name(const LocalArgs& args) {
  return args.rules[0].blocks != 0 ? "window_attention" : "neighborhood_attention";
}

// ---- shapes ----

void infer_forward(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<LocalArgs>();
  const int dims = static_cast<int>(args.dims);
  const Shape& q = problem.shape(0);
  const Shape& k = problem.shape(1);
  const Shape& v = problem.shape(2);
  const std::int64_t heads = q[dims + 1];
  bool fits = k.size() == dims + 3 && v.size() == dims + 3 && q.back() > 0;
  for (int d = 0; fits && d <= dims; ++d) fits = q[d] == k[d] && q[d] == v[d];
  fits = fits && k.back() == q.back() && v.back() > 0 && k[dims + 1] == v[dims + 1] &&
         k[dims + 1] > 0 && heads % k[dims + 1] == 0;
  if (!fits) {
    throw ShapeError(str(op_name(args), ": queries ", q, ", keys ", k, " and values ", v,
                         " are not [N, domain..., H, D], [N, domain..., H_kv, D] and [N, "
                         "domain..., H_kv, D_v] with H a multiple of H_kv. Reshape them."));
  }
  const DType dtype = problem.dtypes[0];
  if (problem.dtypes[1] != dtype || problem.dtypes[2] != dtype || !is_floating(dtype)) {
    throw DTypeError(str(op_name(args), ": element types ", name(dtype), ", ",
                         name(problem.dtypes[1]), " and ", name(problem.dtypes[2]),
                         " are not one floating type. Use cast()."));
  }
  if (problem.in[3].defined()) {
    Shape table{heads};
    for (int d = 0; d < dims; ++d) table.push_back(2 * args.rule(d).extent - 1);
    if (!(problem.shape(3) == table)) {
      throw ShapeError(str(op_name(args), ": the bias ", problem.shape(3), " is not ", table,
                           " (heads, then twice the size of the window less one along each domain "
                           "dimension). Reshape it."));
    }
    if (!is_floating(problem.dtypes[3])) {
      throw DTypeError(str(op_name(args), ": the bias is ", name(problem.dtypes[3]),
                           ", not floating. Use cast()."));
    }
  }
  Shape result = q;
  result.back() = v.back();
  Shape rows = q;
  rows.resize(dims + 2);
  out.push_back({result, dtype});
  out.push_back({rows, compute_type(dtype)});
}

void infer_query_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  Shape rows = problem.shape(0);
  rows.resize(rows.size() - 1);
  const DType dtype = compute_type(problem.dtypes[0]);
  out.push_back({problem.shape(0), problem.dtypes[0]});
  out.push_back({rows, dtype});
  if (problem.as<LocalArgs>().bias_grad != 0) out.push_back({problem.shape(3), dtype});
}

void infer_key_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  for (const int i : {1, 2})
    out.push_back({problem.shape(i), problem.dtypes[static_cast<std::size_t>(i)]});
}

// ---- placements ----

enum class Side { kQueries, kKeys, kBias };
constexpr Side kQueries = Side::kQueries, kKeys = Side::kKeys, kBias = Side::kBias;
/// q, k, v, bias, and up to three tensors that lie with the queries.
constexpr Side kInputs[] = {kQueries, kKeys, kKeys, kBias, kQueries, kQueries, kQueries};
constexpr Side kForwardOutputs[] = {kQueries, kQueries};
constexpr Side kQueryGradOutputs[] = {kQueries, kQueries, kBias};
constexpr Side kKeyGradOutputs[] = {kKeys, kKeys};

/// Collects the placements on one group; `windowed` is the side of which windows are read.
class Placements {
 public:
  Placements(const Problem& problem,
             const AxisGroup& group,
             std::span<const Side> outputs,
             Side windowed,
             std::vector<Signature>& legal)
      : problem_(problem), group_(group), outputs_(outputs), windowed_(windowed), legal_(legal) {}

  void add_all() {
    const int dims = static_cast<int>(problem_.as<LocalArgs>().dims);
    for (int d = 0; d <= dims; ++d) add({d, d, -1}, d > 0, 1);
    const int heads = dims + 1;
    const std::int64_t ratio = problem_.shape(0)[heads] / problem_.shape(1)[heads];
    add({heads, heads, 0}, false, ratio);
    add({heads, -1, 0}, false, 1);
  }

 private:
  /// The dimension of each side that is split; -1: none.
  using Cut = std::array<int, 3>;

  static int dim(const Cut& cut, Side side) { return cut[static_cast<std::size_t>(side)]; }
  Side side_of(std::size_t tensor) const {
    const std::size_t inputs = problem_.in.size();
    return tensor < inputs ? kInputs[tensor] : outputs_[tensor - inputs];
  }

  /// Key boundaries are those of the queries divided by `ratio`. Any input may be the driver.
  void add(const Cut& cut, bool domain, std::int64_t ratio) {
    const std::size_t inputs = problem_.in.size();
    for (std::size_t i = 0; i < inputs; ++i) {
      const int d = dim(cut, kInputs[i]);
      const Layout& layout = problem_.in[i];
      if (d < 0 || !layout.defined() || !group_.splits(layout, d)) continue;
      Bounds queries = layout.split(d).bounds;
      Bounds keys = queries;
      bool aligned = true;
      for (std::size_t b = 0; b < queries.size(); ++b) {
        if (kInputs[i] == kKeys) {
          queries[b] *= ratio;
        } else {
          aligned &= queries[b] % ratio == 0;
          keys[b] /= ratio;
        }
      }
      if (!aligned) continue;
      Signature s;
      for (std::size_t t = 0; t < inputs; ++t) {
        const int at = problem_.in[t].defined() ? dim(cut, kInputs[t]) : -1;
        const bool window = domain && kInputs[t] == windowed_;
        s.in.push_back(at < 0 ? replicate_role() : window ? window_role(at) : shard_role(at));
      }
      for (std::size_t j = 0; j < problem_.out.size(); ++j) {
        const int at = dim(cut, outputs_[j]);
        s.out.push_back(at < 0 ? partial_role() : shard_role(at));
      }
      s.driver = static_cast<int>(i);
      std::vector<bool> by_key;
      for (std::size_t t = 0; t < inputs + problem_.out.size(); ++t)
        by_key.push_back(side_of(t) == kKeys);
      s.bounds = [queries, keys, by_key](int t, const Bounds&) {
        return by_key[static_cast<std::size_t>(t)] ? keys : queries;
      };
      legal_.push_back(std::move(s));
    }
  }

  const Problem& problem_;
  const AxisGroup& group_;
  std::span<const Side> outputs_;
  Side windowed_;
  std::vector<Signature>& legal_;
};

void forward_signatures(const Problem& problem,
                        const AxisGroup& group,
                        std::vector<Signature>& legal) {
  Placements(problem, group, kForwardOutputs, kKeys, legal).add_all();
}
void query_grad_signatures(const Problem& problem,
                           const AxisGroup& group,
                           std::vector<Signature>& legal) {
  Placements(problem, group, kQueryGradOutputs, kKeys, legal).add_all();
}
void key_grad_signatures(const Problem& problem,
                         const AxisGroup& group,
                         std::vector<Signature>& legal) {
  Placements(problem, group, kKeyGradOutputs, kQueries, legal).add_all();
}

// ---- windows ----

/// Keys and values that queries need.
void key_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<LocalArgs>();
  for (const int input : {1, 2}) {
    for (int d = 0; d < args.dims; ++d) {
      windows.push_back({input, d + 1, d + 1,
                         [args, d](Interval i) { return args.keys_needed(d, i); }, args.edge(d)});
    }
  }
}

/// Queries, and what lies with them, that keys need.
void query_windows(const Problem& problem, std::vector<Window>& windows) {
  const auto& args = problem.as<LocalArgs>();
  for (const int input : {0, 4, 5, 6}) {
    for (int d = 0; d < args.dims; ++d) {
      windows.push_back({input, d + 1, d + 1,
                         [args, d](Interval j) { return args.queries_needed(d, j); },
                         args.edge(d)});
    }
  }
}

// ---- one rank ----

/// The part of `piece` with the samples and the domain of `box`, and with its heads unless these
/// are all to stay.
Piece tokens(const Piece& piece, const Box& box, int dims, bool heads) {
  Box region = piece.box;
  for (int d = 0; d <= dims + (heads ? 1 : 0); ++d) region.set(d, box[d]);
  return piece.slice(region);
}

/// The domain of `own` widened to what it reads. Own parts of inputs that are cut differently are
/// larger than that, each in its own way.
template <class Need>
Box reach(const LocalArgs& args, const Box& own, const Need& need) {
  Box box = own;
  for (int d = 0; d < args.dims; ++d) {
    const Interval all = need(d, own[d + 1]);
    box.set(d + 1, args.rule(d).circular != 0 ? all : intersect(all, {0, args.rule(d).size}));
  }
  return box;
}

kernels::LocalOptions options_of(const LocalCall& call) {
  return {call.as<LocalArgs>().rules, call.dynamic_as<LocalScalars>().scale};
}

/// For the queries in `own`.
kernels::LocalOperands operands_of(const LocalCall& call, const Piece& q) {
  const auto& args = call.as<LocalArgs>();
  const int dims = static_cast<int>(args.dims);
  const Box keys =
      reach(args, q.box, [&args](int d, Interval i) { return args.keys_needed(d, i); });
  return {q, tokens(call.in[1], keys, dims, false), tokens(call.in[2], keys, dims, false),
          call.in[3]};
}

void forward_local(const LocalCall& call) {
  const int dims = static_cast<int>(call.as<LocalArgs>().dims);
  const Piece& out = call.out[0];
  if (out.box.empty()) return;
  kernels::local_attention_forward(operands_of(call, tokens(call.in[0], out.box, dims, true)),
                                   options_of(call), out.view,
                                   tokens(call.out[1], out.box, dims, true).view);
}

void query_grad_local(const LocalCall& call) {
  const auto& args = call.as<LocalArgs>();
  const int dims = static_cast<int>(args.dims);
  const Piece& q = call.in[0];
  const View dbias = args.bias_grad != 0 ? call.out[2].view : View{};
  if (dbias.data != nullptr && !call.accumulate) kernels::fill(dbias, 0.0);
  if (q.box.empty()) return;
  const auto view = [&](const Piece& piece) { return tokens(piece, q.box, dims, true).view; };
  kernels::local_attention_query_grad(operands_of(call, q), options_of(call), view(call.in[4]),
                                      view(call.in[5]), view(call.out[0]), view(call.out[1]),
                                      dbias);
}

void key_grad_local(const LocalCall& call) {
  const auto& args = call.as<LocalArgs>();
  const int dims = static_cast<int>(args.dims);
  const Piece& dk = call.out[0];
  if (dk.box.empty()) return;
  const Box queries =
      reach(args, dk.box, [&args](int d, Interval j) { return args.queries_needed(d, j); });
  const auto near = [&](int i) {
    return tokens(call.in[static_cast<std::size_t>(i)], queries, dims, false);
  };
  const auto own = [&](const Piece& piece) { return tokens(piece, dk.box, dims, true); };
  kernels::local_attention_key_grad({near(0), own(call.in[1]), own(call.in[2]), call.in[3]},
                                    options_of(call), near(4), near(5), near(6), dk.view,
                                    own(call.out[1]).view);
}

/// Multiply-adds of one product of D (times `depth`) and one of D_v (times `width`) with each pair,
/// times two.
double pair_flops(const LocalCall& call, double depth, double width) {
  const View& q = call.in[0].view;
  if (q.empty()) return 0.0;
  const double channels = depth * static_cast<double>(q.shape.back()) +
                          width * static_cast<double>(call.in[2].view.shape.back());
  return 2.0 * static_cast<double>(q.size() / q.shape.back()) *
         static_cast<double>(call.as<LocalArgs>().places()) * channels;
}

// ---- gradients ----

const OpDef query_grad_op = {.name = "local_attention_query_grad",
                             .infer = infer_query_grad,
                             .signatures = query_grad_signatures,
                             .windows = key_windows,
                             .work = 0,
                             .local = query_grad_local,
                             .cost = [](const LocalCall& c) { return pair_flops(c, 2.0, 1.0); }};

const OpDef key_grad_op = {.name = "local_attention_key_grad",
                           .infer = infer_key_grad,
                           .signatures = key_grad_signatures,
                           .windows = query_windows,
                           .local = key_grad_local,
                           .cost = [](const LocalCall& c) { return pair_flops(c, 2.0, 2.0); }};

void vjp(VjpContext& context) {
  LocalArgs args = context.as<LocalArgs>();
  const auto& scalars = context.dynamic_as<LocalScalars>();
  const Tensor q = context.input(0), k = context.input(1), v = context.input(2);
  const Tensor bias = input_or_none(context, 3);
  const Tensor lse = context.output(1), g = context.grad();
  args.bias_grad = bias.defined() && context.needs(3) ? 1 : 0;
  const Outputs by_query = call(query_grad_op, {q, k, v, bias, lse, g}, args, scalars);
  if (context.needs(0)) context.set(0, by_query[0]);
  if (args.bias_grad != 0) context.set(3, cast(by_query[2], context.input_dtype(3)));
  if (!context.needs(1) && !context.needs(2)) return;
  args.bias_grad = 0;
  const Outputs by_key = call(key_grad_op, {q, k, v, bias, lse, by_query[1], g}, args, scalars);
  for (const int i : {1, 2})
    if (context.needs(i)) context.set(i, by_key[i - 1]);
}

constexpr OpDef forward_op(const char* name) {
  return {.name = name,
          .infer = infer_forward,
          .signatures = forward_signatures,
          .windows = key_windows,
          .local = forward_local,
          .vjp = vjp,
          .decompose = local_attention_decompose,
          .saved_inputs = 0b1111,
          .saved_outputs = 0b10,
          .differentiable_outputs = 0b01,
          .cost = [](const LocalCall& c) { return pair_flops(c, 1.0, 1.0); }};
}
constexpr OpDef neighborhood_op = forward_op("neighborhood_attention");
constexpr OpDef window_op = forward_op("window_attention");

// ---- options ----

/// Domain dimensions of q; throws ShapeError unless 1 to 3.
int token_dims(const char* op, const Tensor& q) {
  if (q.dims() < 4 || q.dims() > 6) {
    throw ShapeError(str(op, ": queries ", q.shape(),
                         " are not [N, domain..., H, D] with 1 to 3 domain dimensions. Reshape "
                         "them."));
  }
  return q.dims() - 3;
}

Dims flags(const char* op, const char* option, const std::vector<bool>& values, int dims) {
  Dims result;
  for (const bool value : values) result.push_back(value ? 1 : 0);
  return per_dim(op, option, result, dims, 0, 0);
}

Tensor run(const OpDef& op,
           const Tensor& q,
           const Tensor& k,
           const Tensor& v,
           const Tensor& bias,
           const LocalArgs& args,
           std::optional<double> scale) {
  const double depth = static_cast<double>(q.shape().back());
  return call(op, {q, k, v, bias}, args, LocalScalars{scale.value_or(1.0 / std::sqrt(depth))});
}

}  // namespace

Tensor neighborhood_attention(const Tensor& q,
                              const Tensor& k,
                              const Tensor& v,
                              const NeighborhoodOptions& o) {
  const char* const op = neighborhood_op.name;
  const int dims = token_dims(op, q);
  if (o.kernel.empty())
    throw UsageError(str(op, ": no kernel is given. Set NeighborhoodOptions::kernel."));
  const Dims kernel = per_dim(op, "kernel", o.kernel, dims, 1, 1);
  const Dims dilation = per_dim(op, "dilation", o.dilation, dims, 1, 1);
  const Dims stride = per_dim(op, "stride", o.stride, dims, 1, 1);
  const Dims causal = flags(op, "causal", o.causal, dims);
  const Dims circular = flags(op, "circular", o.circular, dims);
  LocalArgs args{};
  args.dims = dims;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t n = q.shape()[d + 1];
    if (kernel[d] * dilation[d] > n) {
      throw ShapeError(str(op, ": kernel ", kernel[d],
                           dilation[d] > 1 ? str(" with dilation ", dilation[d]) : "",
                           " does not fit size ", n, " of domain dimension ", d,
                           " (windows would be cut off). Use at most ", n / dilation[d], "."));
    }
    if (stride[d] > kernel[d]) {
      throw ShapeError(str(op, ": stride ", stride[d], " is above the kernel ", kernel[d],
                           " of domain dimension ", d,
                           " (queries would not see themselves). Use at most the kernel."));
    }
    if (circular[d] != 0 && n % dilation[d] != 0) {
      throw ShapeError(str(op, ": dilation ", dilation[d], " does not divide the circular size ", n,
                           " of domain dimension ", d,
                           " (steps would not meet themselves). Use a divisor."));
    }
    args.rules[static_cast<std::size_t>(d)] = {.size = n,
                                               .extent = kernel[d],
                                               .dilation = dilation[d],
                                               .stride = stride[d],
                                               .causal = causal[d],
                                               .circular = circular[d]};
  }
  return run(neighborhood_op, q, k, v, o.bias, args, o.scale);
}

Tensor window_attention(const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        const WindowAttentionOptions& o) {
  const char* const op = window_op.name;
  const int dims = token_dims(op, q);
  if (o.window.empty())
    throw UsageError(str(op, ": no window is given. Set WindowAttentionOptions::window."));
  const Dims window = per_dim(op, "window", o.window, dims, 1, 1);
  const Dims shift = per_dim(op, "shift", o.shift, dims, 0, 0);
  const Dims circular = flags(op, "circular", o.circular, dims);
  LocalArgs args{};
  args.dims = dims;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t n = q.shape()[d + 1];
    if (window[d] > n) {
      throw ShapeError(str(op, ": window ", window[d], " does not fit size ", n,
                           " of domain dimension ", d, ". Use at most ", n, "."));
    }
    if (shift[d] >= window[d]) {
      throw ShapeError(str(op, ": shift ", shift[d], " is not below the window ", window[d],
                           " of domain dimension ", d, ". Take it modulo the window."));
    }
    if (circular[d] != 0 && n % window[d] != 0) {
      throw ShapeError(str(op, ": window ", window[d], " does not divide the circular size ", n,
                           " of domain dimension ", d, ". Use a divisor."));
    }
    args.rules[static_cast<std::size_t>(d)] = {
        .size = n, .extent = window[d], .shift = shift[d], .blocks = 1, .circular = circular[d]};
  }
  return run(window_op, q, k, v, o.bias, args, o.scale);
}

}  // namespace tessera
