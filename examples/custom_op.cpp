// ranks: 1 2 3
// An op of one's own, registered from outside the library: a 3-point blur along a split dimension,
// with its gradient. The halos follow from what `windows` says; nothing here communicates.
//
//   mpiexec -n 3 build/examples/custom_op
#include <cmath>
#include <cstdio>
#include <tessera/tessera.hpp>

namespace ts = tessera;

namespace {

/// y[n, i, c] = (x[n, i-1, c] + x[n, i, c] + x[n, i+1, c]) / 3 with zeros outside; x [N, L, C].
void blur_local(const ts::LocalCall& call) {
  const ts::Piece& x = call.in[0];
  const ts::Piece& y = call.out[0];
  const auto at = [](const ts::Piece& piece, std::int64_t n, std::int64_t i, std::int64_t c) {
    const ts::View& v = piece.view;
    return v.as<float>() + (n - piece.box.lo[0]) * v.strides[0] +
           (i - piece.box.lo[1]) * v.strides[1] + (c - piece.box.lo[2]) * v.strides[2];
  };
  ts::for_each_index(y.box, [&](const ts::Index& at_y) {
    float sum = 0.0f;
    for (std::int64_t i = at_y[1] - 1; i <= at_y[1] + 1; ++i)
      if (i >= x.box.lo[1] && i < x.box.hi[1]) sum += *at(x, at_y[0], i, at_y[2]);
    *at(y, at_y[0], at_y[1], at_y[2]) = sum / 3.0f;
  });
}

void blur_infer(const ts::Problem& problem, std::vector<ts::OutputMeta>& out) {
  if (problem.shape(0).size() != 3 || problem.dtypes[0] != ts::DType::kFloat32) {
    throw ts::ShapeError(ts::str("blur: input ", problem.shape(0),
                                 " is not an fp32 [N, L, C]. Reshape or cast it."));
  }
  out.push_back({problem.shape(0), problem.dtypes[0]});
}

/// Which splits are legal. Dimension 1 may be split anywhere, the window reaches across.
void blur_signatures(const ts::Problem&, const ts::AxisGroup&, std::vector<ts::Signature>& legal) {
  legal.push_back({.in = {ts::partial_role()}, .out = {ts::partial_role()}});
  legal.push_back({.in = {ts::shard_role(0)}, .out = {ts::shard_role(0)}});
  legal.push_back({.in = {ts::window_role(1)}, .out = {ts::shard_role(1)}});
  legal.push_back({.in = {ts::shard_role(2)}, .out = {ts::shard_role(2)}});
}

void blur_windows(const ts::Problem&, std::vector<ts::Window>& windows) {
  windows.push_back({.input = 0, .in_dim = 1, .work_dim = 1, .need = [](ts::Interval y) {
                       return ts::Interval{y.lo - 1, y.hi + 1};
                     }});
}

ts::Tensor blur(const ts::Tensor& x);

const ts::OpDef blur_op = {
    .name = "blur",
    .infer = blur_infer,
    .signatures = blur_signatures,
    .windows = blur_windows,
    .local = blur_local,
    // The stencil is symmetric, so it is its own adjoint.
    .vjp = [](ts::VjpContext& context) { context.set(0, blur(context.grad())); }};

ts::Tensor blur(const ts::Tensor& x) { return ts::call<ts::NoArgs>(blur_op, {x}); }

double wave(const ts::Index& i) {
  return static_cast<double>((i[1] * i[1] + 3 * i[2]) % 7) - 0.5 * static_cast<double>(i[0]);
}

/// The loss and its gradient on any mesh: the sum of squares of the blurred field.
std::pair<ts::Tensor, ts::Tensor> loss_and_gradient(const ts::Layout& layout) {
  const ts::Tensor x = ts::require_grad(ts::Tensor::from_function(layout, wave));
  const ts::Tensor loss = ts::reduced(ts::sum(ts::square(blur(x))));
  ts::backward(loss);
  return {loss, ts::gradient(x)};
}

int run(const ts::Runtime& runtime) {
  const ts::Shape shape{2, 50, 3};
  const ts::Mesh mesh = runtime.mesh({{"length", runtime.size()}});
  const ts::Layout split = ts::Placement(mesh).domain(0, "length").resolve(shape);

  const auto [loss, gradient] = loss_and_gradient(split);
  const auto [loss_alone, gradient_alone] =
      loss_and_gradient(ts::Layout::replicated(ts::Mesh::self(), shape));

  bool same = std::abs(loss.item() - loss_alone.item()) < 1e-5 * loss_alone.item();
  ts::for_each_index(gradient.local_box(), [&](const ts::Index& i) {
    same = same && std::abs(gradient.at(i) - gradient_alone.at(i)) < 1e-5;
  });
  if (runtime.rank() == 0) {
    std::printf("blur of %s on %d ranks: loss %.6f, alone %.6f\n", split.str().c_str(),
                runtime.size(), loss.item(), loss_alone.item());
  }
  if (!same) throw ts::Error("blur: the parts do not make the whole.");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const ts::RuntimeOptions options{.threads = 1};
  ts::Runtime runtime(argc, argv, options);
  return runtime.guard([&] { return run(runtime); });
}
