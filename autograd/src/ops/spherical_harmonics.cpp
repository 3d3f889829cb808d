// Spherical harmonics as the form phi(g, v; a_1..a_d) = the d-th derivative of g . Y(v / |v|) along
// a_1..a_d, by edges. Without g the op is d phi / d g (d = 0: Y itself), with g it is d phi / d v;
// derivatives of both are such ops again.

#include <tessera/autograd/op.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/equivariant.hpp>
#include <tessera/kernels/equivariant.hpp>

#include "broadcast.hpp"

namespace tessera {

namespace {

constexpr int kDirections = 3;

struct HarmonicsArgs {
  std::int64_t lmax;
  std::int64_t directions;
};

extern const OpDef harmonics_op;

using Directions = std::vector<Tensor>;

Tensor form(std::int64_t lmax, const Tensor& g, const Tensor& v, const Directions& a) {
  if (a.size() > kDirections) {
    throw NotSupported(
        "spherical_harmonics: derivatives of fourth order along directions are not known. "
        "Differentiate fewer times.");
  }
  const auto at = [&](std::size_t i) { return i < a.size() ? a[i] : Tensor(); };
  return call(harmonics_op, {g, v, at(0), at(1), at(2)},
              HarmonicsArgs{lmax, static_cast<std::int64_t>(a.size())});
}

void infer(const Problem& problem, std::vector<OutputMeta>& out) {
  const auto& args = problem.as<HarmonicsArgs>();
  const DType dtype = common_dtype("spherical_harmonics", problem);
  const Shape& v = problem.shape(1);
  if (v.size() != 2 || v[1] != 3)
    throw ShapeError(str("spherical_harmonics: vectors ", v, " are not [E, 3]."));
  if (dtype != DType::kFloat64 && dtype != DType::kFloat32) {
    throw DTypeError(str("spherical_harmonics: element type ", name(dtype),
                         " is neither f32 nor f64. Cast it first."));
  }
  const std::int64_t rows = kernels::irreps_rows(static_cast<int>(args.lmax));
  out.push_back({problem.in[0].defined() ? v : Shape{v[0], rows}, dtype});
}

void signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  for (int driver = 0; driver < static_cast<int>(problem.in.size()); ++driver) {
    if (!problem.in[static_cast<std::size_t>(driver)].defined()) continue;
    Signature s{.in = {}, .out = {shard_role(0)}, .driver = driver, .bounds = {}};
    for (const Layout& layout : problem.in)
      s.in.push_back(layout.defined() ? shard_role(0) : replicate_role());
    legal.push_back(std::move(s));
  }
}

void local(const LocalCall& call) {
  const auto& args = call.as<HarmonicsArgs>();
  std::vector<View> directions;
  for (std::int64_t d = 0; d < args.directions; ++d)
    directions.push_back(call.in[static_cast<std::size_t>(2 + d)].view);
  kernels::spherical_harmonics(static_cast<int>(args.lmax), call.in[0].view, call.in[1].view,
                               directions, call.out[0].view);
}

void vjp(VjpContext& context) {
  const std::int64_t lmax = context.as<HarmonicsArgs>().lmax;
  const Tensor cotangent = context.grad();
  const Tensor v = context.input(1);
  Directions a;
  for (std::int64_t d = 0; d < context.as<HarmonicsArgs>().directions; ++d)
    a.push_back(context.input(static_cast<int>(2 + d)));
  const bool by_v = context.input_layout(0).defined();
  const Tensor g = by_v ? context.input(0) : cotangent;
  const auto without = [](Directions list, std::size_t d) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(d));
    return list;
  };
  if (!by_v) {
    if (context.needs(1)) context.set(1, form(lmax, g, v, a));
    for (std::size_t d = 0; d < a.size(); ++d)
      if (context.needs(static_cast<int>(2 + d)))
        context.set(static_cast<int>(2 + d), form(lmax, g, v, without(a, d)));
    return;
  }
  Directions more = a;
  more.push_back(cotangent);
  if (context.needs(0)) context.set(0, form(lmax, Tensor(), v, more));
  if (context.needs(1)) context.set(1, form(lmax, g, v, more));
  for (std::size_t d = 0; d < a.size(); ++d) {
    if (!context.needs(static_cast<int>(2 + d))) continue;
    Directions others = without(a, d);
    others.push_back(cotangent);
    context.set(static_cast<int>(2 + d), form(lmax, g, v, others));
  }
}

const OpDef harmonics_op = {.name = "spherical_harmonics",
                            .infer = infer,
                            .signatures = signatures,
                            .local = local,
                            .vjp = vjp,
                            .saved_inputs = 0b11111};

}  // namespace

Tensor spherical_harmonics(const Tensor& v, int lmax) {
  if (lmax < 0 || lmax > 10)
    throw UsageError(str("spherical_harmonics: lmax ", lmax, " is outside 0 to 10."));
  return form(lmax, Tensor(), v, {});
}

}  // namespace tessera
