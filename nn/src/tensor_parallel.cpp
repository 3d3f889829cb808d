#include <tessera/autograd/autograd.hpp>
#include <tessera/nn/attention.hpp>
#include <tessera/nn/mlp.hpp>
#include <tessera/nn/patches.hpp>
#include <tessera/nn/tensor_parallel.hpp>

namespace tessera::nn {

ParameterPlacement split_rows(const Mesh& mesh, const std::string& axis, std::int64_t multiple) {
  const Placement rows = Placement(mesh).shard(0, {axis}, true);
  return {.rest = rows, .use = rows, .multiple = multiple};
}

ParameterPlacement split_columns(const Parameter& weight,
                                 const std::string& axis,
                                 std::int64_t multiple) {
  const Placement columns = Placement(weight.mesh()).shard(weight.shape().size() - 1, {axis}, true);
  return {.rest = columns, .use = columns, .multiple = multiple};
}

PlacementRules tensor_parallel(Module& model, const std::string& axis) {
  PlacementRules rules;
  const auto rows = [&](const std::string& path, const Linear& linear, std::int64_t multiple) {
    const ParameterPlacement split = split_rows(linear.weight.mesh(), axis, multiple);
    rules.emplace_back(path + ".weight", split);
    if (linear.bias.defined()) rules.emplace_back(path + ".bias", split);
  };
  for (const auto& [path, module] : model.named_modules()) {
    const std::string in = path.empty() ? "" : path + ".";
    if (const auto* const a = dynamic_cast<const MultiHeadAttention*>(module)) {
      const MultiHeadAttentionOptions& o = a->options();
      const std::int64_t group = o.heads / o.key_heads;
      rows(in + "query", a->query, group * o.head_channels);
      rows(in + "key", a->key, o.head_channels);
      rows(in + "value", a->value, o.head_channels);
      rules.emplace_back(in + "proj.weight",
                         split_columns(a->proj.weight, axis, group * o.head_channels));
      if (a->relative_bias.defined())
        rules.emplace_back(in + "relative_bias", split_rows(a->relative_bias.mesh(), axis, group));
    }
    if (const auto* const m = dynamic_cast<const Mlp*>(module)) {
      rows(in + "fc1", m->fc1, 1);
      if (m->gate) rows(in + "gate", *m->gate, 1);
      rules.emplace_back(in + "fc2.weight", split_columns(m->fc2.weight, axis));
    }
  }
  return rules;
}

Tensor gathered_for(const Tensor& x, const Parameter& weight) {
  const AxisMask axes = weight.use().axes_of(0);
  if ((x.layout().split_axes() & axes) == 0) return x;
  Layout whole = x.layout();
  for (int d = 0; d + 1 < x.dims(); ++d)
    if ((whole.axes_of(d) & axes) != 0) whole = whole.with_dim(d, x.size(d), {});
  return redistribute(x, whole);
}

Tensor returned_to(const Tensor& y, const Tensor& x) {
  if (y.layout().partial_axes() == 0) return y;
  return redistribute(y, domain_layout(x.layout(), y.size(0), y.size(-1)));
}

}  // namespace tessera::nn
