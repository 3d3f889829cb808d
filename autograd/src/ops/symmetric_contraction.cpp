// The symmetric contraction as the form phi(g, w, a; d_1..d_n) = the n-th derivative of g . B(a; w)
// along d_1..d_n, summed over nodes. One record gives its derivative by g (n = 0: B), w or a;
// derivatives of those are such ops again, and vanish for n > 3.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/equivariant.hpp>
#include <tessera/kernels/equivariant.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

constexpr std::size_t kDirections = 3;
enum Input { kG, kW, kA, kSpecies, kFirstDirection };

struct ContractionArgs {
  std::int64_t slot;
  std::int64_t directions;
  std::int64_t lmax, l_out, correlation, basis;
};

extern const OpDef contraction_op;

using Directions = std::vector<Tensor>;

/// The derivative by `slot`; the tensor given for that slot is left out (that of a says where).
/// `like`: layout of w, for its derivative. Undefined where it is zero whatever the values.
Tensor form(ContractionArgs args,
            int slot,
            const Tensor& g,
            const Tensor& w,
            const Tensor& a,
            const Tensor& species,
            const Directions& d,
            const Layout& like) {
  if (d.size() > kDirections) return {};
  args.slot = slot;
  args.directions = static_cast<std::int64_t>(d.size());
  const auto at = [&](std::size_t i) { return i < d.size() ? d[i] : Tensor(); };
  return call(
      contraction_op,
      {slot == kG ? Tensor() : g, slot == kW ? Tensor() : w, a, species, at(0), at(1), at(2)}, args,
      NoArgs{}, slot == kW ? like : Layout());
}

void infer(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<ContractionArgs>();
  const Shape& a = problem.shape(kA);
  const DType dtype = problem.dtypes[kA];
  for (std::size_t i = 0; i < problem.in.size(); ++i) {
    if (i != kSpecies && problem.in[i].defined() && problem.dtypes[i] != dtype) {
      throw DTypeError(str("symmetric_contraction: element types ", name(dtype), " and ",
                           name(problem.dtypes[i]), " are mixed. Use cast()."));
    }
  }
  if (dtype != DType::kFloat64 && dtype != DType::kFloat32) {
    throw DTypeError(str("symmetric_contraction: element type ", name(dtype),
                         " is neither f32 nor f64. Cast it first."));
  }
  if (problem.dtypes[kSpecies] != DType::kInt32 && problem.dtypes[kSpecies] != DType::kInt64) {
    throw DTypeError(str("symmetric_contraction: species are ", name(problem.dtypes[kSpecies]),
                         ", not i32 or i64."));
  }
  const std::int64_t rows = kernels::irreps_rows(static_cast<int>(args.lmax));
  const Shape& w = args.slot == kW ? problem.like.shape() : problem.shape(kW);
  if (a.size() != 3 || a[1] != rows || w.size() != 3 || w[2] != a[2] ||
      !(problem.shape(kSpecies) == Shape{a[0]})) {
    throw ShapeError(str("symmetric_contraction: features ", a, ", weights ", w, " and species ",
                         problem.shape(kSpecies), " do not fit (needed are [N, ", rows,
                         ", K], [elements, weights, K], [N])."));
  }
  if (args.slot == kG) {
    out.push_back({{a[0], kernels::irreps_rows(static_cast<int>(args.l_out)), a[2]}, dtype});
  } else {
    out.push_back({args.slot == kW ? w : a, dtype});
  }
}

void signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  const auto& args = problem.as<ContractionArgs>();
  const auto add = [&](int driver, int dim) {
    Signature s{.in = {}, .out = {}, .driver = driver, .bounds = {}};
    for (std::size_t i = 0; i < problem.in.size(); ++i) {
      const bool whole = !problem.in[i].defined() || (dim == 0 ? i == kW : i == kSpecies);
      s.in.push_back(whole ? replicate_role() : shard_role(dim));
    }
    s.out.push_back(dim == 0 && args.slot == kW ? partial_role() : shard_role(dim));
    if (s.in[static_cast<std::size_t>(driver)].kind == Role::kShard) legal.push_back(std::move(s));
  };
  for (int driver = 0; driver < static_cast<int>(problem.in.size()); ++driver)
    for (const int dim : {0, 2}) add(driver, dim);
}

void local(const LocalCall& call) {
  const auto& args = call.as<ContractionArgs>();
  kernels::SymmetricContraction c;
  c.lmax = static_cast<int>(args.lmax);
  c.l_out = static_cast<int>(args.l_out);
  c.correlation = static_cast<int>(args.correlation);
  c.basis = static_cast<kernels::CouplingBasis>(args.basis);
  c.g = call.in[kG].view;
  c.w = call.in[kW].view;
  c.a = call.in[kA].view;
  c.species = call.in[kSpecies].view;
  std::vector<View> directions;
  for (std::int64_t d = 0; d < args.directions; ++d)
    directions.push_back(call.in[static_cast<std::size_t>(kFirstDirection + d)].view);
  c.directions = directions;
  kernels::symmetric_contraction(c, static_cast<kernels::ContractionSlot>(args.slot),
                                 call.out[0].view);
}

void vjp(VjpContext& context) {
  const auto& args = context.as<ContractionArgs>();
  const Tensor cotangent = context.grad();
  const Tensor a = context.input(kA);
  const Tensor species = context.input(kSpecies);
  Tensor g = args.slot == kG ? cotangent : context.input(kG);
  Tensor w = args.slot == kW ? cotangent : context.input(kW);
  Directions d;
  for (std::int64_t i = 0; i < args.directions; ++i)
    d.push_back(context.input(static_cast<int>(kFirstDirection + i)));
  // With a as slot the cotangent is one more direction; otherwise it stands for g or w.
  Directions all = d;
  if (args.slot == kA) all.push_back(cotangent);
  for (int i = 0; i < static_cast<int>(kFirstDirection + d.size()); ++i) {
    if (i == args.slot && i != kA) continue;
    if (i == kSpecies || !context.input_layout(i).defined() || !context.needs(i)) continue;
    Tensor result;
    if (i < kSpecies) {
      result = form(args, i, g, w, a, species, all,
                    i == kW ? context.input_layout(kW).dual() : Layout());
    } else {
      Directions others = all;
      others.erase(others.begin() + (i - kFirstDirection));
      result = form(args, kA, g, w, a, species, others, {});
    }
    if (result.defined()) context.set(i, result);
  }
}

const OpDef contraction_op = {.name = "symmetric_contraction",
                              .infer = infer,
                              .signatures = signatures,
                              .takes_scratch = true,
                              .local = local,
                              .vjp = vjp,
                              .saved_inputs = 0b1111111};

}  // namespace

Tensor symmetric_contraction(const Tensor& a,
                             const Tensor& w,
                             const Tensor& species,
                             const ContractionSpec& spec) {
  const std::int64_t weights =
      kernels::contraction_weights(static_cast<int>(spec.lmax), static_cast<int>(spec.l_out),
                                   static_cast<int>(spec.correlation), spec.basis);
  if (w.dims() != 3 || w.shape()[1] != weights) {
    throw ShapeError(str("symmetric_contraction: weights ", w.shape(), " are not [elements, ",
                         weights, ", K] (see contraction_blocks)."));
  }
  const ContractionArgs args{
      kG, 0, spec.lmax, spec.l_out, spec.correlation, static_cast<std::int64_t>(spec.basis)};
  return form(args, kG, {}, w, a, species, {}, {});
}

}  // namespace tessera
