// Full attention. Keys and values that are split over the domain walk in a ring (attention_ring);
// everything else is local. The gradient computes the probabilities again from the log-sum-exp.

#include <cmath>
#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/attention.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/kernels/elementwise.hpp>

#include "attention_ring.hpp"
#include "broadcast.hpp"

namespace tessera {

namespace {

DType compute_type(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// ---- shapes ----

void infer_attention(const Problem& problem, std::vector<OutputMeta>& out) {
  const Shape& q = problem.shape(0);
  const Shape& k = problem.shape(1);
  const Shape& v = problem.shape(2);
  bool fits = q.size() >= 4 && k.size() >= 4 && v.size() == k.size();
  for (int d = 0; fits && d + 1 < k.size(); ++d) fits = k[d] == v[d];
  const std::int64_t heads = q.size() >= 2 ? q[q.size() - 2] : 0;
  const std::int64_t key_heads = k.size() >= 2 ? k[k.size() - 2] : 0;
  fits = fits && q[0] == k[0] && q.back() == k.back() && key_heads > 0 && heads % key_heads == 0;
  if (!fits) {
    throw ShapeError(str("attention: queries ", q, ", keys ", k, " and values ", v,
                         " are not [N, domain..., H, D], [N, key domain..., H_kv, D] and [N, key "
                         "domain..., H_kv, D_v] with H a multiple of H_kv. Reshape them."));
  }
  const DType dtype = problem.dtypes[0];
  if (problem.dtypes[1] != dtype || problem.dtypes[2] != dtype || !is_floating(dtype)) {
    throw DTypeError(str("attention: element types ", name(dtype), ", ", name(problem.dtypes[1]),
                         " and ", name(problem.dtypes[2]),
                         " are not one floating type. Use cast()."));
  }
  Shape pair{q[0], heads};
  for (const Shape* s : {&q, &k})
    for (int d = 1; d + 2 < s->size(); ++d) pair.push_back((*s)[d]);
  for (const int i : {3, 4}) {
    const char* const what = i == 3 ? "mask" : "bias";
    if (!problem.in[static_cast<std::size_t>(i)].defined()) continue;
    const Shape& shape = problem.shape(i);
    bool broadcasts = shape.size() == pair.size();
    for (int d = 0; broadcasts && d < pair.size(); ++d)
      broadcasts = shape[d] == pair[d] || shape[d] == 1;
    if (!broadcasts) {
      throw ShapeError(str("attention: the ", what, " ", shape, " does not broadcast to ", pair,
                           " ([N|1, H|1, query domain|1..., key domain|1...]). Reshape it."));
    }
    const DType type = problem.dtypes[static_cast<std::size_t>(i)];
    if (i == 3 ? type != DType::kBool : !is_floating(type)) {
      throw DTypeError(str("attention: the ", what, " is ", name(type), ", not ",
                           i == 3 ? "bool" : "floating", ". Use cast() or a comparison."));
    }
  }
  Shape result = q;
  result.back() = v.back();
  Shape rows = q;
  rows.resize(q.size() - 1);
  out.push_back({result, dtype});
  out.push_back({rows, compute_type(dtype)});
}

void infer_grad(const Problem& problem, std::vector<OutputMeta>& out) {
  const DType dtype = compute_type(problem.dtypes[0]);
  for (const int i : {0, 1, 2}) out.push_back({problem.shape(i), dtype});
  if (problem.as<AttentionArgs>().bias_grad != 0) out.push_back({problem.shape(4), dtype});
}

// ---- placements ----

enum class Side { kQueries, kKeys, kPairs };
constexpr Side kSides[] = {Side::kQueries, Side::kKeys,    Side::kKeys,    Side::kPairs,
                           Side::kPairs,   Side::kQueries, Side::kQueries, Side::kQueries};
constexpr Side kForwardOut[] = {Side::kQueries, Side::kQueries};
constexpr Side kGradOut[] = {Side::kQueries, Side::kKeys, Side::kKeys, Side::kPairs};

/// The dimensions in which one group splits the tensors of each side; -1: none.
struct Cut {
  int queries = -1;
  int keys = -1;
  int pairs = -1;

  int dim(Side side) const {
    return side == Side::kQueries ? queries : side == Side::kKeys ? keys : pairs;
  }
};

/// Collects the placements on one group, of forward and gradient alike.
class Placements {
 public:
  Placements(const Problem& problem,
             const AxisGroup& group,
             bool gradient,
             std::vector<Signature>& legal)
      : problem_(problem),
        group_(group),
        out_sides_(gradient ? std::span<const Side>(kGradOut) : std::span<const Side>(kForwardOut)),
        run_(gradient ? run_attention_grad : run_attention),
        legal_(legal) {}

  void add_all() {
    const int q_heads = problem_.shape(0).size() - 2;
    const int k_heads = problem_.shape(1).size() - 2;
    const std::int64_t ratio = problem_.shape(0)[q_heads] / problem_.shape(1)[k_heads];
    const Cut samples{0, 0, 0};
    if (const int driver = source(samples); driver >= 0) {
      const Bounds b = bounds_of(driver, samples);
      add(samples, driver, b, b, nullptr);
    }
    add_heads({q_heads, k_heads, 1}, ratio);
    const Cut query_heads{q_heads, -1, 1};
    if (const int driver = source(query_heads); driver >= 0)
      add(query_heads, driver, bounds_of(driver, query_heads), {}, nullptr);
    for (int d = 1; d < q_heads; ++d) {
      const Cut queries{d, -1, 1 + d};
      if (const int driver = source(queries); driver >= 0)
        add(queries, driver, bounds_of(driver, queries), {}, nullptr);
    }
    add_ring(q_heads, k_heads);
  }

 private:
  bool has(int input, int dim) const {
    const Layout& layout = problem_.in[static_cast<std::size_t>(input)];
    return dim >= 0 && layout.defined() && group_.splits(layout, dim);
  }
  /// The first input (of one side, if given) that is split as the cut says.
  int source(const Cut& cut, std::optional<Side> side = {}) const {
    for (std::size_t i = 0; i < problem_.in.size(); ++i) {
      const bool wanted = !side || kSides[i] == *side;
      if (wanted && has(static_cast<int>(i), cut.dim(kSides[i]))) return static_cast<int>(i);
    }
    return -1;
  }
  const Bounds& bounds_of(int input, const Cut& cut) const {
    const auto i = static_cast<std::size_t>(input);
    return problem_.in[i].split(cut.dim(kSides[i])).bounds;
  }

  /// Each group of query heads with its key head.
  void add_heads(const Cut& cut, std::int64_t ratio) {
    const int driver = source(cut);
    if (driver < 0) return;
    Bounds queries = bounds_of(driver, cut);
    Bounds keys = queries;
    const bool by_keys = kSides[driver] == Side::kKeys;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      if (by_keys) {
        queries[i] *= ratio;
      } else if (queries[i] % ratio != 0) {
        return;
      } else {
        keys[i] /= ratio;
      }
    }
    add(cut, driver, queries, keys, nullptr);
  }

  void add_ring(int q_heads, int k_heads) {
    Cut cut;
    for (int d = k_heads - 1; d >= 1; --d)
      if (has(1, d) || has(2, d)) cut.keys = d;
    const int key_source = source(cut, Side::kKeys);
    if (key_source < 0) return;
    const Bounds keys = bounds_of(key_source, cut);
    int spare = -1;
    for (int d = q_heads - 1; d >= 1; --d) {
      Cut with = cut;
      with.queries = d;
      with.pairs = 1 + d;
      int driver = source(with, Side::kQueries);
      if (driver < 0) driver = source(with, Side::kPairs);
      if (driver >= 0) return add(with, driver, bounds_of(driver, with), keys, run_);
      if (problem_.in[0].axes_of(d) == 0) spare = d;
    }
    // Queries that are whole are cut: each rank needs rows of its own.
    if (spare < 0) return;
    cut.queries = spare;
    cut.pairs = 1 + spare;
    const std::int64_t n = problem_.shape(0)[spare];
    add(cut, key_source, keys.back() == n ? keys : balanced_bounds(n, group_.parts), keys, run_);
  }

  Role role(Side side, const Shape& shape, const Cut& cut, bool output) const {
    const int d = cut.dim(side);
    if (d >= 0 && (side != Side::kPairs || shape[d] > 1)) return shard_role(d);
    return output ? partial_role() : replicate_role();
  }

  void add(const Cut& cut,
           int driver,
           const Bounds& queries,
           const Bounds& keys,
           void (*run)(RunContext&)) {
    Signature s;
    const std::size_t inputs = problem_.in.size();
    for (std::size_t i = 0; i < inputs; ++i) {
      const bool defined = problem_.in[i].defined();
      s.in.push_back(defined ? role(kSides[i], problem_.in[i].shape(), cut, false)
                             : replicate_role());
    }
    for (std::size_t j = 0; j < problem_.out.size(); ++j)
      s.out.push_back(role(out_sides_[j], problem_.out[j].shape, cut, true));
    s.driver = driver;
    s.run = run;
    s.bounds = [=, sides = out_sides_](int t, const Bounds&) {
      const auto i = static_cast<std::size_t>(t);
      const Side side = i < inputs ? kSides[i] : sides[i - inputs];
      return side == Side::kKeys ? keys : queries;
    };
    legal_.push_back(std::move(s));
  }

  const Problem& problem_;
  const AxisGroup& group_;
  std::span<const Side> out_sides_;
  void (*run_)(RunContext&);
  std::vector<Signature>& legal_;
};

void attention_signatures(const Problem& problem,
                          const AxisGroup& group,
                          std::vector<Signature>& legal) {
  Placements(problem, group, false, legal).add_all();
}

void grad_signatures(const Problem& problem,
                     const AxisGroup& group,
                     std::vector<Signature>& legal) {
  Placements(problem, group, true, legal).add_all();
}

// ---- one rank ----

kernels::AttentionOperands operands_of(const LocalCall& call) {
  return {call.in[0], call.in[1], call.in[2], call.in[3], call.in[4]};
}

void attention_local(const LocalCall& call) {
  kernels::attention_forward(operands_of(call), attention_options(call.args, call.dynamic), {},
                             call.out[0].view, call.out[1].view);
}

void grad_local(const LocalCall& call) {
  for (const Piece& out : call.out) kernels::fill(out.view, 0.0);
  const kernels::AttentionOperands operands = operands_of(call);
  const kernels::AttentionOptions options = attention_options(call.args, call.dynamic);
  const kernels::AttentionSaved saved{call.in[5].view, call.in[6].view, call.in[7].view};
  kernels::attention_grad(operands, options, saved, call.out[0].view, call.out[1].view,
                          call.out[2].view);
  if (call.as<AttentionArgs>().bias_grad != 0 && !operands.bias.view.empty())
    kernels::attention_bias_grad(operands, options, saved, call.out[3].view);
}

/// Multiply-adds of one matrix product with each of the pairs, times two.
double pair_flops(const LocalCall& call) {
  const View& q = call.in[0].view;
  const View& v = call.in[2].view;
  if (q.empty() || v.empty()) return 0.0;
  const double heads = static_cast<double>(v.shape[v.dims() - 2]);
  const double keys =
      static_cast<double>(v.size() / v.shape.back()) / heads / static_cast<double>(v.shape[0]);
  const double rows = static_cast<double>(q.size() / q.shape.back());
  const double causal = call.as<AttentionArgs>().causal != 0 ? 0.5 : 1.0;
  return 2.0 * causal * rows * keys * static_cast<double>(q.shape.back() + v.shape.back());
}

// ---- gradients ----

const OpDef attention_grad_op = {
    .name = "attention_grad",
    .infer = infer_grad,
    .signatures = grad_signatures,
    .local = grad_local,
    .cost = [](const LocalCall& call) { return 2.5 * pair_flops(call); }};

Tensor input_or_none(const VjpContext& context, int i) {
  return context.input_layout(i).defined() ? context.input(i) : Tensor();
}

void attention_vjp(VjpContext& context) {
  const Tensor bias = input_or_none(context, 4);
  AttentionArgs args = context.as<AttentionArgs>();
  args.bias_grad = bias.defined() && context.needs(4) ? 1 : 0;
  const Outputs grads =
      call(attention_grad_op,
           {context.input(0), context.input(1), context.input(2), input_or_none(context, 3), bias,
            context.output(0), context.output(1), context.grad()},
           args, context.dynamic_as<AttentionScalars>());
  for (const int i : {0, 1, 2})
    if (context.needs(i)) context.set(i, cast(grads[i], context.input_dtype(i)));
  if (args.bias_grad != 0) context.set(4, cast(grads[3], context.input_dtype(4)));
}

/// Keys or values: samples and heads split as those of the result where a key head is not cut, the
/// domain whole.
Tensor beside_result(const Tensor& x, const Layout& result) {
  const Shape& s = x.shape();
  const int heads = s.size() - 2;
  const int result_heads = result.dims() - 2;
  std::vector<DimSplit> splits(static_cast<std::size_t>(s.size()));
  splits[0] = result.split(0);
  DimSplit by_head = result.split(result_heads);
  const std::int64_t ratio = result.shape()[result_heads] / s[heads];
  bool whole = s[heads] == 1;
  for (std::int64_t& b : by_head.bounds) {
    whole |= b % ratio != 0;
    b /= ratio;
  }
  if (!whole) splits[static_cast<std::size_t>(heads)] = by_head;
  return redistribute(x, Layout::make(x.mesh(), s, std::move(splits)));
}

/// [N, key domain..., H_kv, C] -> [N, H, 1..., T, C] with as many ones as `ones`.
Tensor key_matrix(const Tensor& x, std::int64_t heads, int ones) {
  const Shape& s = x.shape();
  const int dims = s.size();
  const std::int64_t key_heads = s[dims - 2];
  const std::int64_t channels = s.back();
  std::int64_t tokens = 1;
  for (int d = 1; d < dims - 2; ++d) tokens *= s[d];
  Tensor y = permute(reshape(x, {s[0], tokens, key_heads, channels}), {0, 2, 1, 3});
  if (key_heads != heads) {
    y = expand(reshape(y, {s[0], key_heads, 1, tokens, channels}),
               Shape{s[0], key_heads, heads / key_heads, tokens, channels});
  }
  Shape shape{s[0], heads};
  for (int i = 0; i < ones; ++i) shape.push_back(1);
  shape.push_back(tokens);
  shape.push_back(channels);
  return reshape(y, shape);
}

/// A mask or bias with its key dimensions as one, split as the rows of the result.
Tensor flat_keys(const Tensor& x, const Shape& k, const Layout& result) {
  const int q_dims = result.dims() - 3;
  const int first = 2 + q_dims;
  std::vector<DimSplit> splits(static_cast<std::size_t>(x.dims()));
  const auto split_as = [&](int d, int result_d) {
    if (x.shape()[d] > 1) splits[static_cast<std::size_t>(d)] = result.split(result_d);
  };
  split_as(0, 0);
  split_as(1, q_dims + 1);
  for (int d = 1; d <= q_dims; ++d) split_as(1 + d, d);
  const Tensor rows = redistribute(x, Layout::make(x.mesh(), x.shape(), std::move(splits)));
  Shape full = x.shape(), flat = x.shape();
  std::int64_t tokens = 1, present = 1;
  for (int d = first; d < x.dims(); ++d) {
    present *= x.shape()[d];
    full[d] = k[d - first + 1];
    tokens *= full[d];
  }
  flat.resize(first);
  flat.push_back(present == 1 ? 1 : tokens);
  return reshape(present == 1 || present == tokens ? rows : expand(rows, full), flat);
}

std::vector<Tensor> attention_decompose(const VjpContext& context) {
  const auto& scalars = context.dynamic_as<AttentionScalars>();
  const Layout result = context.output_layout(0).dual();
  const Tensor k = context.input(1);
  const DType dtype = k.dtype();
  const Mesh mesh = k.mesh();
  const int q_dims = result.dims() - 3;
  const Tensor q = redistribute(context.input(0),
                                result.with_dim(q_dims + 2, context.input(0).shape().back(), {}));
  const std::int64_t heads = q.shape()[q_dims + 1];

  // Rows of weights [N, H, query domain..., T]; the last query dimension counts as rows of the
  // products, those before as leading dimensions.
  Dims order{0, q_dims + 1}, back{0};
  for (int d = 1; d <= q_dims; ++d) order.push_back(d);
  order.push_back(q_dims + 2);
  for (int d = 0; d < q_dims; ++d) back.push_back(d + 2);
  back.push_back(1);
  back.push_back(q_dims + 2);
  const Tensor rows = permute(q, order) * scalars.scale;
  const auto beside_rows = [&](const Tensor& x) {
    const Tensor y = key_matrix(beside_result(x, result), heads, q_dims - 1);
    if (q_dims == 1) return y;
    Layout like = rows.layout().with_dim(q_dims + 1, y.shape()[q_dims + 1], {});
    like = like.with_dim(q_dims + 2, y.shape().back(), {});
    return expand(y, like);
  };
  Tensor scores = matmul(rows, beside_rows(k), false, true);
  if (const Tensor bias = input_or_none(context, 4); bias.defined())
    scores = scores + cast(flat_keys(bias, k.shape(), result), dtype);

  std::vector<Tensor> allowed;
  if (const Tensor mask = input_or_none(context, 3); mask.defined())
    allowed.push_back(flat_keys(mask, k.shape(), result));
  if (context.as<AttentionArgs>().causal != 0) {
    Shape shape = scores.shape();
    shape[0] = shape[1] = 1;
    allowed.push_back(Tensor::from_function(
        Layout::replicated(mesh, shape),
        [&](const Index& i) {
          std::int64_t position = 0;
          for (int d = 0; d < q_dims; ++d) position = position * shape[2 + d] + i[2 + d];
          return i.back() <= position ? 1.0 : 0.0;
        },
        DType::kBool));
  }
  constexpr double kNever = -1e30;
  const Tensor never = Tensor::scalar(mesh, kNever, dtype);
  const Tensor zero = Tensor::scalar(mesh, 0.0, dtype);
  for (const Tensor& a : allowed) scores = where(a, scores, never);
  const Tensor top =
      clamp(amax(scores.detach(), {-1}, true), kNever, std::numeric_limits<double>::infinity());
  Tensor weights = exp(scores - top);
  for (const Tensor& a : allowed) weights = where(a, weights, zero);
  const Tensor total = sum(weights, {-1}, true);
  weights = weights / where(equal(total, zero), Tensor::scalar(mesh, 1.0, dtype), total);
  weights = dropout(weights, scalars.dropout, scalars.key);
  return {permute(matmul(weights, beside_rows(context.input(2))), back), Tensor()};
}

const OpDef attention_op = {.name = "attention",
                            .infer = infer_attention,
                            .signatures = attention_signatures,
                            .local = attention_local,
                            .vjp = attention_vjp,
                            .decompose = attention_decompose,
                            .saved_inputs = 0b11111,
                            .saved_outputs = 0b11,
                            .differentiable_outputs = 0b01,
                            .cost = pair_flops};

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionParameters& parameters) {
  if (!(parameters.dropout >= 0.0 && parameters.dropout < 1.0))
    throw UsageError(str("attention: dropout ", parameters.dropout, " is not in [0, 1)."));
  const double depth = q.dims() > 0 ? static_cast<double>(q.shape().back()) : 1.0;
  const AttentionScalars scalars{parameters.scale.value_or(1.0 / std::sqrt(depth)),
                                 parameters.dropout, parameters.key};
  return call(attention_op, {q, k, v, parameters.mask, parameters.bias},
              AttentionArgs{parameters.causal ? 1 : 0, 0}, scalars);
}

}  // namespace tessera
