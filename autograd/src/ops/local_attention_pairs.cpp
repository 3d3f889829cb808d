// Pairs of a query and a key of its window, spread out: a pair of linear ops, adjoint to each
// other,
//   spread(x)   y[n, i, t, h, c] = x[n, key t of i, h, c]     (0 in places without a key)
//   collect(y)  x[n, j, h, c]    = sum of y[n, i, t, h, c] over all queries i that see j at place t
// and local attention written with them, for derivatives of its gradient.

#include "local_attention_pairs.hpp"

#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/gather.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "attention_heads.hpp"
#include "broadcast.hpp"

namespace tessera {

namespace {

kernels::LocalOptions options_of(const LocalArgs& args) { return {args.rules, 1.0}; }

Tensor spread(const Tensor& x, const LocalArgs& args);
Tensor collect(const Tensor& y, const LocalArgs& args, const Layout& like);

/// Everything is split alike; along the domain the input reads windows. The side with the pairs has
/// one dimension more, behind the domain.
void pair_signatures(const Problem& problem, int driver, std::vector<Signature>& legal) {
  const int dims = static_cast<int>(problem.as<LocalArgs>().dims);
  const bool wide_input = problem.shape(0).size() > problem.out[0].shape.size();
  for (int d = 0; d < dims + 3; ++d) {
    const int in = d > dims && wide_input ? d + 1 : d;
    const int out = d > dims && !wide_input ? d + 1 : d;
    const bool domain = d >= 1 && d <= dims;
    legal.push_back({.in = {domain ? window_role(in) : shard_role(in)},
                     .out = {shard_role(out)},
                     .driver = driver,
                     .bounds = {}});
  }
}

const OpDef spread_op = {
    .name = "local_gather",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          const auto& args = problem.as<LocalArgs>();
          Shape shape = problem.shape(0);
          shape.insert(static_cast<int>(args.dims) + 1, args.places());
          out.push_back({shape, problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          pair_signatures(problem, 0, legal);
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<LocalArgs>();
          for (int d = 0; d < args.dims; ++d) {
            windows.push_back({0, d + 1, d + 1,
                               [args, d](Interval i) { return args.keys_needed(d, i); },
                               args.edge(d)});
          }
        },
    .local =
        [](const LocalCall& call) {
          kernels::local_gather(call.in[0], options_of(call.as<LocalArgs>()), call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(
              0, collect(context.grad(), context.as<LocalArgs>(), context.input_layout(0).dual()));
        }};

const OpDef collect_op = {
    .name = "local_scatter",
    .infer =
        [](const Problem& problem, std::vector<OutputMeta>& out) {
          Shape shape = problem.shape(0);
          shape.erase(static_cast<int>(problem.as<LocalArgs>().dims) + 1);
          out.push_back({shape, problem.dtypes[0]});
        },
    .signatures =
        [](const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
          partial_signature(problem, 0b1, legal);
          pair_signatures(problem, Signature::kLike, legal);
          pair_signatures(problem, 0, legal);
        },
    .windows =
        [](const Problem& problem, std::vector<Window>& windows) {
          const auto& args = problem.as<LocalArgs>();
          for (int d = 0; d < args.dims; ++d) {
            windows.push_back({0, d + 1, d + 1,
                               [args, d](Interval j) { return args.queries_needed(d, j); },
                               args.edge(d)});
          }
        },
    .local =
        [](const LocalCall& call) {
          kernels::local_scatter(call.in[0], options_of(call.as<LocalArgs>()), call.out[0]);
        },
    .vjp =
        [](VjpContext& context) {
          context.set(0, spread(context.grad(), context.as<LocalArgs>()));
        }};

Tensor spread(const Tensor& x, const LocalArgs& args) { return call(spread_op, {x}, args); }
Tensor collect(const Tensor& y, const LocalArgs& args, const Layout& like) {
  return call(collect_op, {y}, args, NoArgs{}, like);
}

/// `layout` whole in dimensions of size 1, which elementwise ops may stretch.
Layout without_single(const Layout& layout) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(layout.dims()));
  for (int d = 0; d < layout.dims(); ++d)
    if (layout.shape()[d] > 1) splits[static_cast<std::size_t>(d)] = layout.split(d);
  return Layout::make(layout.mesh(), layout.shape(), std::move(splits));
}

/// [N, domain..., H_kv, C] -> [N, domain..., places, H, C]
Tensor spread_heads(const Tensor& x, const LocalArgs& args, std::int64_t heads) {
  const Tensor pairs = spread(x, args);
  const int at = pairs.dims() - 2;
  const std::int64_t key_heads = pairs.shape()[at];
  if (key_heads == heads) return pairs;
  Shape shape = pairs.shape();
  shape.insert(at + 1, 1);
  const Tensor single = reshape(pairs, shape);
  shape[at + 1] = heads / key_heads;
  const Tensor all = expand(single, shape);
  shape.erase(at + 1);
  shape[at] = heads;
  return reshape(all, shape);
}

/// A constant [1, domain..., places, 1, 1]: f(runs, places within them).
template <class F>
Tensor by_pair(const Mesh& mesh, const LocalArgs& args, const Shape& shape, DType dtype, F f) {
  const int dims = static_cast<int>(args.dims);
  return Tensor::from_function(
      Layout::replicated(mesh, shape),
      [&args, dims, f](const Index& at) {
        std::array<kernels::LocalRun, 3> runs;
        Index place = Dims::filled(dims, 0);
        std::int64_t rest = at[dims + 1];
        for (int d = dims - 1; d >= 0; --d) {
          runs[static_cast<std::size_t>(d)] = args.rule(d).keys(at[d + 1]);
          place[d] = rest % args.rule(d).extent;
          rest /= args.rule(d).extent;
        }
        return f(at, runs, place);
      },
      dtype);
}

/// The bias of each pair, [1, domain..., places, H, 1].
Tensor spread_bias(const Tensor& bias, const LocalArgs& args, Shape shape) {
  const std::int64_t heads = bias.shape()[0];
  const Tensor table = permute(reshape(bias, {heads, bias.numel() / heads}), {1, 0});
  const Tensor index = by_pair(bias.mesh(), args, shape, DType::kInt64,
                               [&args](const Index& at, const auto& runs, const Index& place) {
                                 std::int64_t element = 0;
                                 for (int d = 0; d < args.dims; ++d) {
                                   const kernels::LocalRule& rule = args.rule(d);
                                   const kernels::LocalRun& run = runs[static_cast<std::size_t>(d)];
                                   const std::int64_t t = std::min(place[d], run.count - 1);
                                   element = element * (2 * rule.extent - 1) +
                                             (run.first - at[d + 1]) / rule.dilation + t +
                                             rule.extent - 1;
                                 }
                                 return static_cast<double>(element);
                               });
  const Tensor rows = gather(table, reshape(index, {index.numel()}));
  shape[shape.size() - 2] = heads;
  return reshape(rows, shape);
}

}  // namespace

std::vector<Tensor> local_attention_decompose(const VjpContext& context) {
  const auto& args = context.as<LocalArgs>();
  const int dims = static_cast<int>(args.dims);
  const Layout result = without_single(context.output_layout(0).dual());
  const std::int64_t heads = result.shape()[dims + 1];
  const Tensor q = redistribute(context.input(0),
                                result.with_dim(dims + 2, context.input(0).shape().back(), {}));
  const DType dtype = q.dtype();
  const Mesh mesh = q.mesh();
  const Tensor keys = spread_heads(beside_result(context.input(1), result, dims + 1), args, heads);
  const Tensor values =
      spread_heads(beside_result(context.input(2), result, dims + 1), args, heads);

  Shape single = q.shape();
  single.insert(dims + 1, 1);
  const Tensor queries = reshape(q, single) * context.dynamic_as<LocalScalars>().scale;
  Tensor scores = sum(queries * keys, {-1}, true);
  Shape pairs = scores.shape();
  pairs[0] = pairs[dims + 2] = 1;
  if (context.input_layout(3).defined())
    scores = scores + cast(spread_bias(context.input(3), args, pairs), dtype);
  Tensor exists;
  for (int d = 0; d < dims; ++d) {
    if (exists.defined() || !args.rule(d).uneven()) continue;
    exists = by_pair(mesh, args, pairs, DType::kBool,
                     [dims](const Index&, const auto& runs, const Index& place) {
                       for (int e = 0; e < dims; ++e)
                         if (place[e] >= runs[static_cast<std::size_t>(e)].count) return 0.0;
                       return 1.0;
                     });
    scores = where(exists, scores, Tensor::scalar(mesh, -1e30, dtype));
  }
  const Tensor top = amax(scores.detach(), {dims + 1}, true);
  Tensor weights = exp(scores - top);
  if (exists.defined()) weights = where(exists, weights, Tensor::scalar(mesh, 0.0, dtype));
  weights = weights / sum(weights, {dims + 1}, true);
  return {sum(weights * values, {dims + 1}), Tensor()};
}

}  // namespace tessera
