// ranks: 4
// The harness can fail: every fault planted here, through seams that tests have anyway, is found by
// the check that is named with it. The faultless twins pass in window_test.cpp and below.
#include <cmath>
#include <cstring>
#include <deque>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/reduce.hpp>

#include "support/autograd/small_ops.hpp"
#include "support/autograd/stencil.hpp"
#include "support/faulty_transport.hpp"
#include "window_call.hpp"

namespace tessera::test {
namespace {

using Tensors = std::vector<Tensor>;
using Arrays = std::vector<DenseArray>;

/// A copy of a record with a fault; it lives as long as the decisions that may name it.
const OpDef& variant(const OpDef& base, void (*plant)(OpDef&)) {
  static std::deque<OpDef> all;
  all.push_back(base);
  plant(all.back());
  return all.back();
}

void caught(const std::string& failure) {
  INFO("the harness did not notice");
  CHECK_FALSE(failure.empty());
  CHECK_FALSE(any_process(failure.empty()));  // on every process
}
void clean(const std::string& failure) { report(failure); }

constexpr auto kCircular = static_cast<std::int64_t>(EdgeRule::kCircular);

// ---- windows ----

template <int lo, int hi>
void moved_windows(const Problem& problem, std::vector<Window>& windows) {
  stencil_windows(problem, windows);
  for (Window& w : windows) {
    w.need = [need = w.need](Interval y) {
      const Interval x = need(y);
      return Interval{x.lo + lo, x.hi + hi};
    };
  }
}

TEST_CASE("fault: halo too narrow on the low side") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) { d.windows = moved_windows<1, 0>; });
  caught(check_cuts(stencil_case({}, op)));
}

TEST_CASE("fault: halo too narrow on the high side") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) { d.windows = moved_windows<0, -1>; });
  caught(check_cuts(stencil_case({}, op)));
}

TEST_CASE("fault: window anchored one row too far") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) { d.windows = moved_windows<1, 1>; });
  caught(check_cuts(stencil_case({.stride = 2}, op)));
}

TEST_CASE("fault: window that forgets the stride") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.windows = [](const Problem& problem, std::vector<Window>& windows) {
      stencil_windows(problem, windows);
      for (Window& w : windows) w.need = [](Interval y) { return Interval{y.lo - 1, y.hi + 1}; };
    };
  });
  caught(check_cuts(stencil_case({.stride = 2}, op)));
}

TEST_CASE("fault: a dimension without its window") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.windows = [](const Problem& problem, std::vector<Window>& windows) {
      stencil_windows(problem, windows);
      windows.pop_back();
    };
  });
  caught(check_cuts(stencil_case({}, op)));
}

TEST_CASE("fault: edge rule dropped") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.windows = [](const Problem& problem, std::vector<Window>& windows) {
      stencil_windows(problem, windows);
      windows[0].edge = EdgeRule::kZero;
    };
  });
  caught(check_value(stencil_case({.edge = kCircular}, op)));
}

TEST_CASE("fault: boundaries of the result that do not end at its size") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.signatures = [](const Problem& p, const AxisGroup& g, std::vector<Signature>& legal) {
      stencil_signatures(p, g, legal);
      for (Signature& s : legal) s.bounds = nullptr;
      for (Signature& s : legal) s.bounds = [](int, const Bounds& b) { return b; };
    };
  });
  caught(check_cuts(stencil_case({.stride = 2}, op)));
}

TEST_CASE("fault: a windowed dimension declared local") {
  // As if every rank's rows stood alone.
  const OpDef& op = variant(stencil_op, [](OpDef& d) { d.windows = nullptr; });
  caught(check_cuts(stencil_case({}, op)));
}

// ---- gradients of windows ----

template <class Plant>
const OpDef& with_gradient(Plant) {
  static const OpDef& grad_op = variant(stencil_grad_op, Plant());
  static const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.vjp = [](VjpContext& context) { stencil_set_gradient(context, grad_op); };
  });
  return op;
}

TEST_CASE("fault: gradient that reads too few rows") {
  const OpDef& op = with_gradient([](OpDef& d) {
    d.windows = [](const Problem& problem, std::vector<Window>& windows) {
      stencil_grad_windows(problem, windows);
      windows[1].need = [need = windows[1].need](Interval x) {
        return Interval{need(x).lo, need(x).hi - 1};
      };
    };
  });
  caught(check_cuts(stencil_case({}, op)));
}

TEST_CASE("fault: what lies beyond a circular edge is not folded back") {
  const OpDef& op = with_gradient([](OpDef& d) { d.folds = nullptr; });
  caught(check_first_derivatives(stencil_case({.edge = kCircular}, op)));
}

TEST_CASE("fault: folded to the wrong side") {
  const OpDef& op = with_gradient([](OpDef& d) {
    d.folds = [](const Problem& problem, std::vector<Fold>& folds) {
      stencil_grad_folds(problem, folds);
      for (Fold& f : folds) f.edge = EdgeRule::kReplicate;
    };
  });
  caught(check_first_derivatives(stencil_case({.edge = kCircular}, op)));
}

TEST_CASE("fault: folded on the low side only") {
  const OpDef& op = with_gradient([](OpDef& d) {
    d.folds = [](const Problem& problem, std::vector<Fold>& folds) {
      stencil_grad_folds(problem, folds);
      for (Fold& f : folds) f.hi = 0;
    };
  });
  caught(check_first_derivatives(stencil_case({.edge = kCircular}, op)));
}

// ---- the maths of a gradient ----

TEST_CASE("fault: gradient counted twice") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.vjp = [](VjpContext& context) {
      const Tensor g = call(stencil_grad_op, {context.grad()}, context.as<StencilArgs>(), NoArgs{},
                            context.input_layout(0).dual());
      context.set(0, g + g);
    };
  });
  caught(check_first_derivatives(stencil_case({}, op)));
}

TEST_CASE("fault: gradient of the wrong sign") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.vjp = [](VjpContext& c) { c.set(0, square(c.input(0)) * c.grad() * -3.0); };
  });
  caught(check_first_derivatives(cube_case(op)));
}

TEST_CASE("fault: gradient that is right but does not depend on its input") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.vjp = [](VjpContext& c) { c.set(0, square(c.input(0)).detach() * c.grad() * 3.0); };
  });
  clean(check_first_derivatives(cube_case(op)));
  caught(check_second_derivatives(cube_case(op)));
}

TEST_CASE("fault: gradient that does not depend on the cotangent") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.vjp = [](VjpContext& c) { c.set(0, square(c.input(0)) * c.grad().detach() * 3.0); };
  });
  caught(check_second_derivatives(cube_case(op)));
}

TEST_CASE("fault: gradient scaled by the number of ranks") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.vjp = [](VjpContext& c) {
      const double parts = c.input_layout(0).mesh().size();
      c.set(0, square(c.input(0)) * c.grad() * (3.0 / parts));
    };
  });
  clean(check_first_derivatives(cube_case(op)));
  caught(check_cuts(cube_case(op)));
}

// ---- signatures ----

TEST_CASE("fault: a sum that forgets its reduction") {
  const OpDef& op = variant(column_sum_op, [](OpDef& d) {
    d.signatures = [](const Problem& p, const AxisGroup& g, std::vector<Signature>& legal) {
      column_sum_signatures(p, g, legal);
      for (Signature& s : legal) s.out = {s.out[0].kind == Role::kPartial ? Role{} : s.out[0]};
    };
  });
  clean(check_cuts(column_sum_case(column_sum_op)));
  caught(check_cuts(column_sum_case(op)));
}

TEST_CASE("fault: a nonlinear op that lets a pending sum pass") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.signatures = [](const Problem& p, const AxisGroup& g, std::vector<Signature>& legal) {
      cube_signatures(p, g, legal);
      legal.push_back({.in = {partial_role()}, .out = {partial_role()}});
    };
  });
  caught(check_cuts(cube_case(op)));
}

TEST_CASE("fault: a constant added to every piece of a pending sum") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.name = "plus_one";
    d.local = [](const LocalCall& call) { each_element(call, [](double x) { return x + 1.0; }); };
    d.vjp = [](VjpContext& c) { c.set(0, c.grad()); };
    d.saved_inputs = 0;
    d.signatures = [](const Problem& p, const AxisGroup& g, std::vector<Signature>& legal) {
      cube_signatures(p, g, legal);
      legal.push_back({.in = {partial_role()}, .out = {partial_role()}});
    };
  });
  OpCase c = cube_case(op);
  c.reference = nullptr;
  caught(check_cuts(c));
}

TEST_CASE("fault: an op that needs whole rows claims to work on parts") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.name = "reverse";
    d.vjp = nullptr;
    d.local = [](const LocalCall& call) {
      const View in = call.in[0].view;
      const View out = call.out[0].view;
      for_each_index(Box::whole(in.shape), [&](const Index& i) {
        const double v =
            load_as_double(in.data, in.dtype, i[0] * in.strides[0] + i[1] * in.strides[1]);
        store_double(out.data, out.dtype,
                     i[0] * out.strides[0] + (in.shape[1] - 1 - i[1]) * out.strides[1], v);
      });
    };
  });
  OpCase c = cube_case(op);
  c.first = c.second = false;
  caught(check_cuts(c));
}

TEST_CASE("fault: local instead of global indices") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.name = "ramp";
    d.vjp = nullptr;
    d.local = [](const LocalCall& call) {
      const View out = call.out[0].view;
      for_each_index(Box::whole(out.shape), [&](const Index& i) {
        store_double(out.data, out.dtype, i[0] * out.strides[0] + i[1] * out.strides[1],
                     static_cast<double>(i[0] + 10 * i[1]));
      });
    };
  });
  OpCase c = cube_case(op);
  c.first = c.second = false;
  caught(check_cuts(c));
}

TEST_CASE("fault: results that depend on the rank in the last bits") {
  const OpDef& op = variant(cube_op, [](OpDef& d) {
    d.name = "wobble";
    d.vjp = nullptr;
    d.local = [](const LocalCall& call) {
      each_element(call, [](double x) { return x * (1.0 + 3e-16 * process().rank); });
    };
  });
  OpCase c = cube_case(op);
  c.first = c.second = false;
  c.exact = false;
  const std::string failure = check_cuts(c);
  caught(failure);
  CHECK_THAT(failure, Catch::Contains("differ in bits"));
}

TEST_CASE("fault: only one rank throws") {
  OpCase c = cube_case(cube_op);
  c.inputs[0].partial = false;  // the others must not wait for the one that throws
  c.f = [](const Tensors& in) -> Tensors {
    if (process().rank == 2 && in[0].mesh().size() > 1) throw LayoutError("cube: not here");
    return {cube(in[0])};
  };
  c.first = c.second = false;
  c.may_throw = [](const std::vector<Layout>&) { return true; };
  const std::string failure = check_cuts(c);
  caught(failure);
  CHECK_THAT(failure, Catch::Contains("process 2 threw"));
}

TEST_CASE("fault: a split that should be refused is taken") {
  OpCase c = cube_case(cube_op);
  c.unsupported = [](const std::vector<Layout>& in) { return in[0].is_split(1); };
  CHECK_THAT(check_cuts(c), Catch::Contains("should throw LayoutError"));
}

TEST_CASE("fault: what decides the windows is kept out of the key of the cache") {
  const OpDef& op = variant(stencil_op, [](OpDef& d) {
    d.windows = [](const Problem& problem, std::vector<Window>& windows) {
      static std::int64_t sneaked = 0;  // differs between calls with equal arguments
      stencil_windows(problem, windows);
      if (sneaked++ % 2 == 1)
        for (Window& w : windows) w.need = [](Interval y) { return y; };
    };
  });
  caught(check_cuts(stencil_case({}, op)));
}

TEST_CASE("fault: later boxes overwrite instead of adding") {
  const OpDef& op = variant(tap_sums_op, [](OpDef& d) {
    d.local = [](const LocalCall& call) {
      LocalCall first = call;
      first.accumulate = false;
      tap_sums_local(first);
    };
  });
  set_overlap_threshold(0);
  const std::string good = check_cuts(tap_sums_case(tap_sums_op));
  const std::string bad = check_cuts(tap_sums_case(op));
  set_overlap_threshold(kOverlapThreshold);
  clean(good);
  caught(bad);
}

// ---- transport ----

/// One layout, split in both dimensions over the 2 x 2 mesh: every rank has two neighbours and one
/// diagonal one.
std::vector<Layout> quarters() {
  Rng rng(1);
  return {draw_layout(test_meshes()[1], {2, 7, 6}, {1, 2}, 0, rng)};
}

void swap_bytes(const parallel::Recv& a, const parallel::Recv& b) {
  auto* p = static_cast<std::byte*>(a.data);
  std::swap_ranges(p, p + std::min(a.bytes, b.bytes), static_cast<std::byte*>(b.data));
}

TEST_CASE("the transports without a fault pass") {
  const FaultyTransport harmless([](const parallel::Call&, const std::byte*) {});
  clean(check_layouts(stencil_case({}), quarters()));
  clean(check_cuts(mean_square_case()));
}

TEST_CASE("fault: two neighbours swapped") {
  const FaultyTransport swapped([](const parallel::Call& call, const std::byte*) {
    if (call.recvs.size() >= 2) swap_bytes(call.recvs[0], call.recvs[1]);
  });
  caught(check_layouts(stencil_case({}), quarters()));
}

TEST_CASE("fault: a lost corner") {
  const FaultyTransport lost([](const parallel::Call& call, const std::byte*) {
    for (const parallel::Recv& r : call.recvs) {
      if (r.peer == 3 - process().rank) std::memset(r.data, 0, static_cast<std::size_t>(r.bytes));
    }
  });
  caught(check_layouts(stencil_case({}), quarters()));
}

TEST_CASE("fault: a message that arrives once, then is old") {
  std::vector<std::byte> old;
  const FaultyTransport stale([&](const parallel::Call& call, const std::byte*) {
    if (call.recvs.empty()) return;
    const parallel::Recv& r = call.recvs[0];
    auto* data = static_cast<std::byte*>(r.data);
    std::vector<std::byte> now(data, data + r.bytes);
    if (now.size() == old.size()) std::copy(old.begin(), old.end(), data);
    old = now;
  });
  caught(check_layouts(stencil_case({}), quarters()));
}

TEST_CASE("fault: a dropped reduction") {
  const FaultyTransport dropped([](const parallel::Call& call, const std::byte* before) {
    if (call.kind == parallel::CallKind::kAllReduce) {
      std::memcpy(call.out, before,
                  static_cast<std::size_t>(call.in_counts[0]) * size_of(call.dtype));
    }
  });
  caught(check_cuts(mean_square_case()));
}

TEST_CASE("fault: one rank counted twice in a reduction") {
  const FaultyTransport twice([](const parallel::Call& call, const std::byte* before) {
    if (call.kind != parallel::CallKind::kAllReduce || call.dtype != DType::kFloat64) return;
    if (process().rank != 0) return;
    for (std::int64_t i = 0; i < call.in_counts[0]; ++i) {
      double own;
      std::memcpy(&own, before + i * 8, 8);
      static_cast<double*>(call.out)[i] += own;
    }
  });
  caught(check_cuts(mean_square_case()));
}

TEST_CASE("fault: a reduction that differs between ranks in the last bit") {
  const FaultyTransport wobbly([](const parallel::Call& call, const std::byte*) {
    if (call.kind != parallel::CallKind::kAllReduce || call.dtype != DType::kFloat64) return;
    if (process().rank != 1) return;
    for (std::int64_t i = 0; i < call.in_counts[0]; ++i) {
      double& v = static_cast<double*>(call.out)[i];
      v = std::nextafter(v, 1e300);
    }
  });
  const std::string failure = check_cuts(mean_square_case());
  caught(failure);
  CHECK_THAT(failure, Catch::Contains("differ in bits"));
}

TEST_CASE("fault: a gather that nobody asked for") {
  const std::vector<Layout> in = quarters();
  const Tensor x = to_tensor(random_array(in[0].shape(), 1), in[0]);
  const Traffic faces = traffic_of([&] { stencil(x, {}); });
  const Traffic whole = traffic_of([&] { stencil(replicate(x), {}); });
  CHECK(faces.bytes > 0);
  CHECK(whole.bytes > faces.bytes);  // values are equal: only the counters tell
}

}  // namespace
}  // namespace tessera::test
