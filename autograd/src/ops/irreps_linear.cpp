// Channels mixed per irrep: the form S(g, x, w) = sum over nodes, blocks and their rows of g . (x
// w), one record for its derivatives by g (the product itself), x and w.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/equivariant.hpp>
#include <tessera/kernels/equivariant.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

constexpr std::int64_t kPerL = -1;

/// Paths of a convolution as blocks, or l_in = kPerL: one block per l <= l_out.
struct MixArgs {
  std::int64_t slot;
  std::int64_t l_in, l_edge, l_out;
};

extern const OpDef mix_op;

std::vector<kernels::MixBlock> blocks_of(const MixArgs& args) {
  std::vector<kernels::MixBlock> blocks;
  if (args.l_in == kPerL) {
    for (std::int64_t l = 0; l <= args.l_out; ++l) blocks.push_back({l * l, l * l, 2 * l + 1, l});
    return blocks;
  }
  for (const kernels::TensorPath& p :
       kernels::tensor_paths(static_cast<int>(args.l_in), static_cast<int>(args.l_edge),
                             static_cast<int>(args.l_out))
           .paths)
    blocks.push_back({p.row, static_cast<std::int64_t>(p.l3) * p.l3, 2 * p.l3 + 1,
                      static_cast<std::int64_t>(blocks.size())});
  return blocks;
}

std::int64_t result_rows(const MixArgs& args) {
  return kernels::irreps_rows(static_cast<int>(args.l_out));
}

/// Inputs: g, x, w, species; that of the slot is absent.
void infer(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<MixArgs>();
  DType dtype = DType::kFloat32;
  bool first = true;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!problem.in[i].defined()) continue;
    if (!first && problem.dtypes[i] != dtype) {
      throw DTypeError(str("irreps_linear: element types ", name(dtype), " and ",
                           name(problem.dtypes[i]), " are mixed. Use cast()."));
    }
    dtype = problem.dtypes[i];
    first = false;
  }
  if (!is_floating(dtype))
    throw DTypeError(str("irreps_linear: element type ", name(dtype), " is not floating."));
  if (args.slot != 0) {
    out.push_back({problem.like.shape(), dtype});
    return;
  }
  const Shape& x = problem.shape(1);
  const Shape& w = problem.shape(2);
  const auto blocks = blocks_of(args);
  const bool species = problem.in[3].defined();
  const std::int64_t rows = blocks.back().x_row + blocks.back().rows;
  const bool fits = x.size() == 3 && w.size() == (species ? 4 : 3) &&
                    w[0] == static_cast<std::int64_t>(blocks.size()) && w[w.size() - 2] == x[2] &&
                    (args.l_in == kPerL ? x[1] >= rows : x[1] == rows);
  if (!fits) {
    throw ShapeError(str("irreps_linear: features ", x, " and weights ", w,
                         " do not fit (needed are [N, ", rows, args.l_in == kPerL ? " or more" : "",
                         ", K] and [", blocks.size(), species ? ", elements" : "", ", K, K'])."));
  }
  if (species && !(problem.shape(3) == Shape{x[0]}))
    throw ShapeError(str("irreps_linear: species ", problem.shape(3), " are not [", x[0], "]."));
  if (species && problem.dtypes[3] != DType::kInt32 && problem.dtypes[3] != DType::kInt64)
    throw DTypeError(
        str("irreps_linear: species are ", name(problem.dtypes[3]), ", not i32 or i64."));
  out.push_back({{x[0], result_rows(args), w.back()}, dtype});
}

void signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const auto& args = problem.as<MixArgs>();
  const Role result = args.slot == 2 ? partial_role() : shard_role(0);
  for (const int driver : {0, 1, 3}) {
    if (!problem.in[static_cast<std::size_t>(driver)].defined()) continue;
    Signature s{.in = {}, .out = {result}, .driver = driver, .bounds = {}};
    for (std::size_t i = 0; i < 4; ++i)
      s.in.push_back(i != 2 && problem.in[i].defined() ? shard_role(0) : replicate_role());
    legal.push_back(std::move(s));
  }
  // Linear in each: a pending sum passes.
  for (std::uint32_t i = 0; i < 3; ++i)
    if (problem.in[i].defined()) partial_signature(problem, 1u << i, legal);
}

/// A matrix [K, K'] per block as one per block and element.
View with_elements(View w) {
  if (w.data == nullptr || w.dims() == 4) return w;
  return View{w.data,
              w.dtype,
              {w.shape[0], 1, w.shape[1], w.shape[2]},
              {w.strides[0], 0, w.strides[1], w.strides[2]}};
}

void local(const LocalCall& call) {
  const auto& args = call.as<MixArgs>();
  View out = call.out[0].view;
  if (args.slot == 2) out = with_elements(out);
  kernels::channel_mix(blocks_of(args), static_cast<kernels::MixSlot>(args.slot), call.in[0].view,
                       call.in[1].view, with_elements(call.in[2].view), call.in[3].view, out);
}

void vjp(VjpContext& context) {
  const auto& args = context.as<MixArgs>();
  std::array<Tensor, 3> slots;
  for (int i = 0; i < 3; ++i)
    slots[static_cast<std::size_t>(i)] = i == args.slot ? context.grad() : context.input(i);
  const Tensor species = input_or_none(context, 3);
  for (int i = 0; i < 3; ++i) {
    if (i == args.slot || !context.needs(i)) continue;
    MixArgs other = args;
    other.slot = i;
    std::array<Tensor, 3> in = slots;
    in[static_cast<std::size_t>(i)] = Tensor();
    context.set(i, call(mix_op, {in[0], in[1], in[2], species}, other, NoArgs{},
                        i == 0 ? Layout() : context.input_layout(i).dual()));
  }
}

double cost(const LocalCall& call) {
  const auto& args = call.as<MixArgs>();
  std::int64_t rows = 0;
  for (const auto& block : blocks_of(args)) rows += block.rows;
  const View& w = (args.slot == 2 ? call.out[0] : call.in[2]).view;
  const View& nodes = (args.slot == 1 ? call.in[0] : args.slot == 0 ? call.in[1] : call.in[0]).view;
  return 2.0 * static_cast<double>(nodes.shape[0] * rows) *
         static_cast<double>(w.shape[w.dims() - 2] * w.shape[w.dims() - 1]);
}

const OpDef mix_op = {.name = "irreps_linear",
                      .infer = infer,
                      .signatures = signatures,
                      .local = local,
                      .vjp = vjp,
                      .saved_inputs = 0b1111,
                      .cost = cost};

}  // namespace

Tensor irreps_linear(const Tensor& x, const Tensor& w, const Tensor& species) {
  const std::int64_t l = w.dims() > 0 ? w.shape()[0] - 1 : -1;
  if (l < 0) throw ShapeError(str("irreps_linear: weights ", w.shape(), " have no l."));
  return call(mix_op, {Tensor(), x, w, species}, MixArgs{0, kPerL, 0, l});
}

Tensor path_linear(const Tensor& x, const Tensor& w, const ConvolutionPaths& paths) {
  return call(mix_op, {Tensor(), x, w, Tensor()},
              MixArgs{0, paths.l_in, paths.l_edge, paths.l_out});
}

}  // namespace tessera
