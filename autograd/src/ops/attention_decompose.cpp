// Attention in small ops, recorded, for derivatives of its gradient: keys and values are gathered
// and the matrix of weights is formed.

#include <limits>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>

#include "attention_heads.hpp"
#include "attention_record.hpp"
#include "broadcast.hpp"

namespace tessera {

namespace {

/// All tensors below are in the order of kernels: [samples..., tokens..., H, C]; `s` samples.

/// -> [samples..., H, 1..., T, C] with as many ones as `ones`.
Tensor key_matrix(const Tensor& x, int s, std::int64_t heads, int ones) {
  const Shape& shape = x.shape();
  const std::int64_t key_heads = shape[shape.size() - 2];
  const std::int64_t channels = shape.back();
  Shape samples = shape;
  samples.resize(s);
  std::int64_t tokens = 1;
  for (int d = s; d < shape.size() - 2; ++d) tokens *= shape[d];
  const auto with = [&](std::initializer_list<std::int64_t> last) {
    Shape y = samples;
    for (const std::int64_t n : last) y.push_back(n);
    return y;
  };
  Dims order;
  for (int d = 0; d < s; ++d) order.push_back(d);
  for (const int d : {s + 1, s, s + 2}) order.push_back(d);
  Tensor y = permute(reshape(x, with({tokens, key_heads, channels})), order);
  if (key_heads != heads) {
    y = expand(reshape(y, with({key_heads, 1, tokens, channels})),
               with({key_heads, heads / key_heads, tokens, channels}));
  }
  Shape target = with({heads});
  for (int i = 0; i < ones; ++i) target.push_back(1);
  target.push_back(tokens);
  target.push_back(channels);
  return reshape(y, target);
}

/// A mask or bias with its key dimensions as one, split as the rows of the result; `keys` are the
/// sizes of the key dimensions.
Tensor flat_keys(const Tensor& x, const Dims& keys, const Layout& result, int s) {
  const int tokens = result.dims() - s - 2;
  const int first = s + 1 + tokens;
  std::vector<DimSplit> splits(static_cast<std::size_t>(x.dims()));
  const auto split_as = [&](int d, int result_d) {
    if (x.shape()[d] > 1) splits[static_cast<std::size_t>(d)] = result.split(result_d);
  };
  for (int d = 0; d < s; ++d) split_as(d, d);
  split_as(s, s + tokens);
  for (int d = 0; d < tokens; ++d) split_as(s + 1 + d, s + d);
  const Tensor rows = redistribute(x, Layout::make(x.mesh(), x.shape(), std::move(splits)));
  Shape full = x.shape(), flat = x.shape();
  std::int64_t present = 1;
  for (int d = first; d < x.dims(); ++d) {
    present *= x.shape()[d];
    full[d] = keys[d - first];
  }
  flat.resize(first);
  flat.push_back(present == 1 ? 1 : keys.product());
  return reshape(present == 1 || present == keys.product() ? rows : expand(rows, full), flat);
}

/// The permutation from [N, domain..., H, C] to the order of kernels.
Dims kernel_order(const AttentionDims& dims, int total) {
  Dims order;
  for (const Dims& list : {dims.samples, dims.attended})
    for (const std::int64_t d : list) order.push_back(d);
  for (int d = total - 2; d < total; ++d) order.push_back(d);
  return order;
}

}  // namespace

std::vector<Tensor> attention_decompose(const VjpContext& context) {
  const auto& args = context.as<AttentionArgs>();
  const auto& scalars = context.dynamic_as<AttentionScalars>();
  const AttentionDims dims(args, context.input_layout(0).dims() - 3);
  const int s = dims.samples.size();
  const int tokens = dims.attended.size();
  const Dims order = kernel_order(dims, context.input_layout(0).dims());
  const Layout split = context.output_layout(0).dual();
  const Tensor q =
      permute(redistribute(context.input(0),
                           split.with_dim(split.dims() - 1, context.input(0).shape().back(), {})),
              order);
  const Layout result = q.layout();
  const auto keys_in_order = [&](int i) {
    const Tensor x = context.input(i);
    return args.attended == 0 ? x : permute(x, order);
  };
  const Tensor k = keys_in_order(1);
  const DType dtype = k.dtype();
  const Mesh mesh = k.mesh();
  const std::int64_t heads = q.shape()[s + tokens];

  // Rows of weights [samples..., H, query..., T]; the last query dimension counts as rows of the
  // products, those before as leading dimensions.
  Dims to_rows, back;
  for (int d = 0; d < s; ++d) {
    to_rows.push_back(d);
    back.push_back(d);
  }
  to_rows.push_back(s + tokens);
  for (int d = 0; d < tokens; ++d) {
    to_rows.push_back(s + d);
    back.push_back(s + 1 + d);
  }
  to_rows.push_back(s + tokens + 1);
  back.push_back(s);
  back.push_back(s + tokens + 1);
  const Tensor rows = permute(q, to_rows) * scalars.scale;
  const auto beside_rows = [&](const Tensor& x) {
    const Tensor y = key_matrix(beside_result(x, result, s), s, heads, tokens - 1);
    if (tokens == 1) return y;
    Layout like = rows.layout().with_dim(s + tokens, y.shape()[s + tokens], {});
    like = like.with_dim(s + tokens + 1, y.shape().back(), {});
    return expand(y, like);
  };
  Tensor scores = matmul(rows, beside_rows(k), false, true);
  Dims key_sizes;
  for (int d = s; d < k.dims() - 2; ++d) key_sizes.push_back(k.shape()[d]);
  if (const Tensor bias = input_or_none(context, 4); bias.defined())
    scores = scores + cast(flat_keys(bias, key_sizes, result, s), dtype);

  std::vector<Tensor> allowed;
  if (const Tensor mask = input_or_none(context, 3); mask.defined())
    allowed.push_back(flat_keys(mask, key_sizes, result, s));
  if (args.causal != 0) {
    Shape shape = scores.shape();
    for (int d = 0; d <= s; ++d) shape[d] = 1;
    allowed.push_back(Tensor::from_function(
        Layout::replicated(mesh, shape),
        [&](const Index& i) {
          std::int64_t position = 0;
          for (int d = s + 1; d <= s + tokens; ++d) position = position * shape[d] + i[d];
          return i.back() <= position ? 1.0 : 0.0;
        },
        DType::kBool));
  }
  constexpr double kNever = -1e30;
  const Tensor never = Tensor::scalar(mesh, kNever, dtype);
  const Tensor zero = Tensor::scalar(mesh, 0.0, dtype);
  for (const Tensor& a : allowed) scores = where(a, scores, never);
  Tensor weights = scores;
  if (scores.shape().back() > 0) {
    const Tensor top = amax(scores.detach(), {-1}, true);
    weights = exp(scores - clamp(top, kNever, std::numeric_limits<double>::infinity()));
  }
  for (const Tensor& a : allowed) weights = where(a, weights, zero);
  const Tensor total = sum(weights, {-1}, true);
  weights = weights / where(equal(total, zero), Tensor::scalar(mesh, 1.0, dtype), total);
  weights = dropout(weights, scalars.dropout, scalars.key);
  const Tensor out = permute(matmul(weights, beside_rows(keys_in_order(2))), back);
  Dims inverse = order;
  for (int i = 0; i < order.size(); ++i) inverse[static_cast<int>(order[i])] = i;
  return {permute(out, inverse), Tensor()};
}

}  // namespace tessera
