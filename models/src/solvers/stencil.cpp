#include "stencil.hpp"

#include <algorithm>
#include <cmath>
#include <tessera/autograd/autograd.hpp>
#include <tessera/kernels/random.hpp>
#include <tessera/models/solvers.hpp>

namespace tessera::solvers {

void Solver::advance(std::int64_t count) {
  const NoGrad no_grad;
  for (std::int64_t i = 0; i < count; ++i) state_ = stepped(state_);
  steps_ += count;
}

double fitting_step(double interval, double largest) {
  if (!(interval > 0.0)) return largest;
  return interval / std::max(1.0, std::ceil(interval / largest * (1.0 - 1e-12)));
}

void step_signatures(const Problem& problem, const AxisGroup&, std::vector<Signature>& legal) {
  legal.push_back({.in = {shard_role(0)}, .out = {shard_role(0)}});
  for (int d = 1; d + 1 < problem.shape(0).size(); ++d) {
    legal.push_back({.in = {window_role(d)}, .out = {shard_role(d)}});
  }
}

void step_windows(const Problem& problem, std::vector<Window>& windows) {
  for (int d = 1; d + 1 < problem.shape(0).size(); ++d) {
    windows.push_back({.input = 0,
                       .in_dim = d,
                       .work_dim = d,
                       .need =
                           [](Interval y) {
                             return Interval{y.lo - 1, y.hi + 1};
                           },
                       .edge = EdgeRule::kCircular});
  }
}

void step_infer(const Problem& problem, std::vector<OutputMeta>& out) {
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

Tensor fill_points(
    const Layout& layout,
    DType dtype,
    const std::function<
        void(std::int64_t, const std::array<std::int64_t, 3>&, std::vector<double>&)>& f) {
  const Tensor t = Tensor::empty(layout, dtype);
  const View view = t.mutable_local();
  const int domain = layout.dims() - 2;
  std::vector<double> channels(static_cast<std::size_t>(layout.shape().back()));
  std::int64_t next = 0;
  Box points = t.local_box();
  if (points.empty()) return t;
  points.lo.resize(domain + 1);
  points.hi.resize(domain + 1);
  for_each_index(points, [&](const Index& i) {
    std::array<std::int64_t, 3> at{};
    for (int d = 0; d < domain; ++d) at[static_cast<std::size_t>(3 - domain + d)] = i[d + 1];
    f(i[0], at, channels);
    for (const double v : channels) store_double(view.data, dtype, next++, v);
  });
  return t;
}

Layout with_channels(const char* what, const Layout& layout, std::int64_t channels) {
  const int last = layout.dims() - 1;
  if (last < 2 || last > 4 || layout.shape().product() == 0) {
    throw ShapeError(str(what, ": shape ", layout.shape(),
                         " is not [N, domain..., C] with 1 to 3 domain dimensions and at least one "
                         "point. Give another shape."));
  }
  if (layout.is_split(last) || layout.partial_axes() != 0) {
    throw LayoutError(str(what, ": layout ", layout.str(),
                          " splits the channels or is Partial. Split samples and domain only."));
  }
  return layout.with_dim(last, channels, {});
}

std::vector<double> uniform_numbers(std::uint64_t seed, std::int64_t sample, std::int64_t count) {
  constexpr std::uint64_t kKey = 0x736f6c76657273ull;  // "solvers": a stream of its own
  std::vector<double> numbers(static_cast<std::size_t>(count));
  kernels::random_uniform(
      {seed ^ kKey, static_cast<std::uint64_t>(sample)}, 0.0, 1.0,
      {View::dense(numbers.data(), DType::kFloat64, {count}), Box::whole({count}), {count}});
  return numbers;
}

}  // namespace tessera::solvers
