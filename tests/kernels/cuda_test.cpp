// ranks: 1
// label: gpu

#include <catch2/catch.hpp>
#include <cstring>
#include <tessera/core/backend.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/kernels/elementwise.hpp>
#include <tessera/kernels/gemm.hpp>
#include <tessera/kernels/group_norm.hpp>
#include <tessera/kernels/index.hpp>
#include <tessera/kernels/layer_norm.hpp>
#include <tessera/kernels/optim_methods.hpp>
#include <tessera/kernels/random.hpp>
#include <tessera/kernels/reduce.hpp>

#include "kernels/random_view.hpp"

// Kernels on the GPU against the same kernels on the CPU, which have tests of their own.

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr Device kGpu{Device::kCuda, 0};

/// A copy of a CPU view, strides and all, on the GPU.
class Twin {
 public:
  explicit Twin(const OwnedView& of)
      : view(of.view),
        memory_(MemoryPool::of(kGpu).allocate(of.memory.size())),
        offset_(static_cast<const std::byte*>(of.view.data) - of.memory.data()) {
    copy_bytes(memory_->data(), kGpu, of.memory.data(), Device{}, of.memory.size());
    view.data = memory_->data() + offset_;
    view.device = kGpu;
  }
  Twin(const Twin&) = delete;

  /// What it holds now, beside the CPU's `like` it was made from.
  OwnedView back(const OwnedView& like) const {
    OwnedView copy = like;
    copy_bytes(copy.memory.data(), Device{}, memory_->data(), kGpu, copy.memory.size());
    copy.view.data = copy.memory.data() + offset_;
    return copy;
  }

  View view;

 private:
  Ref<Buffer> memory_;
  std::ptrdiff_t offset_;
};

/// The GPU's elements are those of the CPU to `steps` roundings of the largest; one at most in
/// bf16, which is computed in float.
void same(const OwnedView& cpu, const Twin& twin, double steps = 0.0) {
  const OwnedView gpu = twin.back(cpu);
  if (cpu.view.dtype == DType::kBFloat16) steps = std::min(steps, 1.0);
  double largest = 1.0;
  for_each_index(Box::whole(cpu.view.shape), [&](const Index& i) {
    if (std::isfinite(cpu.at(i))) largest = std::max(largest, std::fabs(cpu.at(i)));
  });
  const double bound = steps * epsilon(cpu.view.dtype) * largest;
  for_each_index(Box::whole(cpu.view.shape), [&](const Index& i) {
    const double a = cpu.at(i), b = gpu.at(i);
    if (!(std::fabs(a - b) <= bound || (std::isnan(a) && std::isnan(b)) || a == b))
      FAIL("CPU " << a << ", GPU " << b);
  });
}

Lie any_lie() { return kAllLies[uniform_int(0, 3)]; }
const DType kFloating[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};

}  // namespace

TEST_CASE("functions of one variable and their derivatives") {
  for (int k = 0; k <= static_cast<int>(kernels::UnaryKind::kRound); ++k) {
    const auto kind = static_cast<kernels::UnaryKind>(k);
    for (const DType dtype : kFloating) {
      for (int order = 0; order <= 3; ++order) {
        const OwnedView x = filled_view(
            {3, 50}, dtype, [] { return uniform(0.3, 2); }, any_lie());
        const OwnedView g = filled_view(
            {3, 50}, dtype, [] { return uniform(-1, 1); }, any_lie());
        OwnedView y = make_view({3, 50}, dtype, any_lie());
        const Twin gx(x), gg(g), gy(y);
        INFO(name(kind) << " " << order << " " << name(dtype));
        kernels::unary(kind, order, 1.7, x.view, y.view);
        kernels::unary(kind, order, 1.7, gx.view, gy.view);
        same(y, gy, 30);
        kernels::mul_unary(kind, order, 1.7, g.view, x.view, y.view);
        kernels::mul_unary(kind, order, 1.7, gg.view, gx.view, gy.view);
        same(y, gy, 30);
      }
    }
  }
}

TEST_CASE("functions of two variables, comparisons, where, copies") {
  const DType types[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                         DType::kInt64};
  for (int trial = 0; trial < 15; ++trial) {
    const DType dtype = types[trial % 5];
    const Shape shape = trial < 5 ? Shape{4, 3, 33} : Shape{2, 3, 64};
    const auto value = [&] {
      return is_floating(dtype) ? uniform(0.5, 2) : static_cast<double>(uniform_int(-5, 5));
    };
    const OwnedView a = filled_view(shape, dtype, value, any_lie());
    const OwnedView b = filled_view(trial < 10 ? Shape{3, 1} : Shape{64}, dtype, value, any_lie());
    OwnedView y = make_view(shape, dtype, any_lie());
    OwnedView flags = make_view(shape, DType::kBool, any_lie());
    const Twin ga(a), gb(b), gy(y), gflags(flags);
    const View wide = kernels::broadcast_to(b.view, shape);
    const View gwide = kernels::broadcast_to(gb.view, shape);
    for (int k = 0; k <= static_cast<int>(kernels::BinaryKind::kAtan2); ++k) {
      const auto kind = static_cast<kernels::BinaryKind>(k);
      if (!is_floating(dtype) &&
          (kind == kernels::BinaryKind::kDiv || kind == kernels::BinaryKind::kPow ||
           kind == kernels::BinaryKind::kAtan2))
        continue;
      kernels::binary(kind, a.view, wide, y.view);
      kernels::binary(kind, ga.view, gwide, gy.view);
      same(y, gy, 8);
    }
    for (int k = 0; k < 6; ++k) {
      kernels::compare(static_cast<kernels::CompareKind>(k), a.view, wide, flags.view);
      kernels::compare(static_cast<kernels::CompareKind>(k), ga.view, gwide, gflags.view);
      same(flags, gflags);
      kernels::logical_not(gflags.view, gflags.view);
      kernels::logical(kernels::LogicalKind::kXor, gflags.view, gflags.view, gflags.view);
      kernels::logical(kernels::LogicalKind::kAnd, flags.view, flags.view, flags.view);
      kernels::copy(flags.view, flags.view);
      kernels::compare(static_cast<kernels::CompareKind>(k), ga.view, gwide, gflags.view);
      kernels::where(flags.view, a.view, wide, y.view);
      kernels::where(gflags.view, ga.view, gwide, gy.view);
      same(y, gy);
    }
    kernels::axpby(2, a.view, 3, wide, y.view);
    kernels::axpby(2, ga.view, 3, gwide, gy.view);
    same(y, gy, 4);
    kernels::mul_add(a.view, wide, a.view, y.view);
    kernels::mul_add(ga.view, gwide, ga.view, gy.view);
    same(y, gy, 4);
    kernels::affine(3, a.view, 1, y.view);
    kernels::affine(3, ga.view, 1, gy.view);
    same(y, gy, 4);
    kernels::fill(y.view, 7);
    kernels::fill(gy.view, 7);
    same(y, gy);
    if (is_floating(dtype)) {
      kernels::clamp(a.view, 0.7, 1.5, y.view);
      kernels::clamp(ga.view, 0.7, 1.5, gy.view);
      same(y, gy);
      kernels::clamp_grad(wide, a.view, 0.7, 1.5, y.view);
      kernels::clamp_grad(gwide, ga.view, 0.7, 1.5, gy.view);
      same(y, gy);
    }
    for (const DType to : types) {
      OwnedView z = make_view(shape, to, any_lie());
      const Twin gz(z);
      kernels::copy(a.view, z.view);
      kernels::copy(ga.view, gz.view);
      same(z, gz);
    }
    const OwnedView dense = filled_view(shape, dtype, value);
    OwnedView back = make_view(shape, dtype);
    const Twin gdense(back);
    kernels::copy(dense.view, gdense.view);
    same(dense, gdense);
    kernels::copy(gdense.view, back.view);
    REQUIRE(std::memcmp(back.view.data, dense.view.data,
                        static_cast<std::size_t>(dense.view.size()) * size_of(dtype)) == 0);
  }
}

TEST_CASE("reductions") {
  for (const Shape& shape :
       {Shape{5, 40}, Shape{3, 4, 5, 6}, Shape{2, 30000}, Shape{3000, 7}, Shape{2, 0, 3}}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32}) {
      for (int trial = 0; trial < 9; ++trial) {
        const auto kind = static_cast<kernels::ReduceKind>(trial % 3);
        Shape out = shape;
        for (int d = 0; d < out.size(); ++d)
          if (uniform_int(0, 1) == 1) out[d] = 1;
        const OwnedView x = filled_view(
            shape, dtype,
            [&] {
              return is_floating(dtype) ? uniform(-1, 1) : static_cast<double>(uniform_int(-9, 9));
            },
            any_lie());
        OwnedView y = make_view(out, dtype, any_lie());
        const Twin gx(x), gy(y);
        INFO(shape << " -> " << out);
        kernels::reduce(kind, x.view, y.view);
        kernels::reduce(kind, gx.view, gy.view);
        // Both add in double, in another order.
        same(y, gy, dtype == DType::kFloat64 ? 1e4 : 2);
      }
    }
  }
}

TEST_CASE("random numbers by global index") {
  const kernels::PhiloxKey key{0x123456789abcdefull, 99};
  for (int trial = 0; trial < 20; ++trial) {
    const Shape global{6, 9, trial < 10 ? 5 : 8};
    Box box = Box::whole(global);
    for (int d = 0; d < 3; ++d) {
      const std::int64_t lo = uniform_int(0, global[d] - 1);
      box.set(d, {lo, uniform_int(lo + 1, global[d])});
    }
    OwnedView bits = make_view(box.shape(), DType::kInt64, any_lie());
    const Twin gbits(bits);
    kernels::random_bits(key, {bits.view, box, global});
    kernels::random_bits(key, {gbits.view, box, global});
    same(bits, gbits);
    for (const DType dtype : kFloating) {
      const OwnedView x = filled_view(
          box.shape(), dtype, [] { return uniform(1, 2); }, any_lie());
      OwnedView y = make_view(box.shape(), dtype, any_lie());
      const Twin gx(x), gy(y);
      kernels::random_uniform(key, -1, 2, {y.view, box, global});
      kernels::random_uniform(key, -1, 2, {gy.view, box, global});
      same(y, gy, 2);
      kernels::random_normal(key, 1, 2, {y.view, box, global});
      kernels::random_normal(key, 1, 2, {gy.view, box, global});
      same(y, gy, 4);
      kernels::dropout(key, 0.4, x.view, {y.view, box, global});
      kernels::dropout(key, 0.4, gx.view, {gy.view, box, global});
      same(y, gy, 1);
    }
  }
}

TEST_CASE("matrix products") {
  for (const DType dtype : kFloating) {
    for (int trial = 0; trial < 60; ++trial) {
      const std::int64_t m = uniform_int(1, 40), n = uniform_int(1, 40), k = uniform_int(1, 40);
      Shape batch;
      for (std::int64_t i = uniform_int(0, 2); i > 0; --i) batch.push_back(uniform_int(1, 3));
      const auto with = [&](std::int64_t r, std::int64_t c) {
        Shape s = batch;
        s.push_back(r);
        s.push_back(c);
        return s;
      };
      const auto random = [] { return uniform(-1, 1); };
      const OwnedView a = filled_view(with(m, k), dtype, random, any_lie());
      const OwnedView b = filled_view({k, n}, dtype, random, any_lie());
      OwnedView c = filled_view(with(m, n), dtype, random, any_lie());
      const Twin ga(a), gb(b), gc(c);
      kernels::gemm(1.5, a.view, kernels::broadcast_to(b.view, with(k, n)), 0.5, c.view);
      kernels::gemm(1.5, ga.view, kernels::broadcast_to(gb.view, with(k, n)), 0.5, gc.view);
      same(c, gc, 40);
    }
    const OwnedView a = filled_view(
        {2, 300, 6}, dtype, [] { return uniform(-1, 1); }, Lie::kPadded);
    const OwnedView b = filled_view({2, 300, 4}, dtype, [] { return uniform(-1, 1); });
    OwnedView c = make_view({6, 4}, dtype);
    const Twin ga(a), gb(b), gc(c);
    kernels::outer_sum(1, a.view, b.view, 0, c.view);
    kernels::outer_sum(1, ga.view, gb.view, 0, gc.view);
    same(c, gc, 600);
  }
}

namespace {

void check_group_norm(const Shape& shape, DType dtype, const kernels::GroupNormOptions& options) {
  const std::int64_t samples = shape[0], groups = options.groups, channels = shape.back();
  INFO(shape << " in " << groups << " groups, " << name(dtype) << ", activation "
             << static_cast<int>(options.activation) << ", centred " << options.centred);
  const OwnedView x = filled_view(
      shape, dtype, [] { return uniform(1, 3); }, any_lie());
  const OwnedView dy = filled_view(
      shape, dtype, [] { return uniform(-1, 1); }, any_lie());
  const OwnedView gamma = filled_view({channels}, dtype, [] { return uniform(0.5, 2); });
  const OwnedView beta = filled_view({channels}, dtype, [] { return uniform(-1, 1); });
  OwnedView m = make_view({samples, groups, 3}, DType::kFloat64),
            sums = make_view({samples, groups, 2}, DType::kFloat64);
  OwnedView dg = make_view({channels}, DType::kFloat64),
            db = make_view({channels}, DType::kFloat64);
  OwnedView y = make_view(shape, dtype, any_lie()), dx = make_view(shape, dtype, any_lie());
  const Twin gx(x), gdy(dy), ggamma(gamma), gbeta(beta), gm(m), gsums(sums), gdg(dg), gdb(db),
      gy(y), gdx(dx);
  // Sums of terms that are computed in the type of x, kept in double.
  const double loose = dtype == DType::kFloat64 ? 1e5 : 5e10;
  kernels::group_moments(x.view, options, m.view);
  kernels::group_moments(gx.view, options, gm.view);
  same(m, gm, 1e3);
  kernels::group_norm(x.view, m.view, gamma.view, beta.view, options, y.view);
  kernels::group_norm(gx.view, gm.view, ggamma.view, gbeta.view, options, gy.view);
  same(y, gy, 30);
  kernels::group_norm_sums(x.view, dy.view, m.view, gamma.view, beta.view, options, sums.view,
                           dg.view, db.view);
  kernels::group_norm_sums(gx.view, gdy.view, gm.view, ggamma.view, gbeta.view, options, gsums.view,
                           gdg.view, gdb.view);
  same(sums, gsums, loose);
  same(dg, gdg, loose);
  same(db, gdb, loose);
  kernels::group_norm_input_grad(x.view, dy.view, m.view, gamma.view, beta.view, sums.view, options,
                                 dx.view);
  kernels::group_norm_input_grad(gx.view, gdy.view, gm.view, ggamma.view, gbeta.view, gsums.view,
                                 options, gdx.view);
  same(dx, gdx, 60);
  OwnedView parts =
      filled_view({4, samples, groups, 3}, DType::kFloat64, [] { return uniform(1, 2); });
  const Twin gparts(parts);
  kernels::merge_moments(parts.view, m.view);
  kernels::merge_moments(gparts.view, gm.view);
  same(m, gm, 10);
}

}  // namespace

TEST_CASE("group normalisation") {
  using kernels::NormActivation;
  for (const DType dtype : kFloating) {
    for (const auto activation : {NormActivation::kNone, NormActivation::kRelu,
                                  NormActivation::kSilu, NormActivation::kGelu}) {
      for (const bool centred : {true, false}) {
        // Groups of 2, 4, 8 channels and single ones; many rows, few rows, none; whole and part
        // groups of four.
        const std::pair<Shape, std::int64_t> cases[] = {
            {{2, 33, 11, 6}, 3}, {{2, 9, 8, 16}, 4}, {{1, 300, 64}, 8}, {{3, 5, 8}, 2},
            {{40, 64}, 1},       {{2, 50, 4}, 4},    {{2, 0, 8}, 2},    {{0, 3, 8}, 2}};
        // A slope that jumps may fall on either side in float.
        if (activation == NormActivation::kRelu && dtype != DType::kFloat64) continue;
        for (const auto& [shape, groups] : cases)
          check_group_norm(shape, dtype, {groups, 1e-3, centred, activation});
      }
    }
  }
}

TEST_CASE("layer normalisation") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const bool centred : {true, false}) {
      const Shape shape{3, 50, 300};
      const kernels::LayerNormOptions options{1e-3, centred};
      const OwnedView x = filled_view(
          shape, dtype, [] { return uniform(1, 3); }, any_lie());
      const OwnedView dy = filled_view(
          shape, dtype, [] { return uniform(-1, 1); }, any_lie());
      const OwnedView gamma = filled_view({300}, dtype, [] { return uniform(0.5, 2); });
      OwnedView y = make_view(shape, dtype, any_lie()), dx = make_view(shape, dtype, any_lie());
      OwnedView dg = make_view({300}, DType::kFloat64), db = make_view({300}, DType::kFloat64);
      const Twin gx(x), gdy(dy), ggamma(gamma), gy(y), gdx(dx), gdg(dg), gdb(db);
      kernels::layer_norm(x.view, gamma.view, {}, options, y.view);
      kernels::layer_norm(gx.view, ggamma.view, {}, options, gy.view);
      same(y, gy, 30);
      kernels::layer_norm_grad(x.view, dy.view, gamma.view, options, dx.view, dg.view, db.view);
      kernels::layer_norm_grad(gx.view, gdy.view, ggamma.view, options, gdx.view, gdg.view,
                               gdb.view);
      same(dx, gdx, 60);
      same(dg, gdg, 1e10);
      same(db, gdb, 1e10);
    }
  }
}

TEST_CASE("rows by index and optimiser steps") {
  for (int trial = 0; trial < 6; ++trial) {
    const DType dtype = kFloating[trial % 3];
    const std::int64_t width = trial < 3 ? 5 : 8;
    const OwnedView x = filled_view(
        {9, 2, width}, dtype, [] { return uniform(-1, 1); }, any_lie());
    const OwnedView index =
        filled_view({30}, DType::kInt32, [] { return static_cast<double>(uniform_int(0, 12)); });
    OwnedView rows = make_view({30, 2, width}, dtype, any_lie()),
              sum = make_view({9, 2, width}, dtype, any_lie());
    const Twin gx(x), gindex(index), grows(rows), gsum(sum);
    kernels::take_rows(x.view, index.view, 2, rows.view);
    kernels::take_rows(gx.view, gindex.view, 2, grows.view);
    same(rows, grows);
    for (const bool accumulate : {false, true}) {
      kernels::scatter_add_rows(rows.view, index.view, 2, accumulate, sum.view);
      kernels::scatter_add_rows(grows.view, gindex.view, 2, accumulate, gsum.view);
      same(sum, gsum, 1);
    }
    OwnedView p = filled_view({1000}, dtype, [] { return uniform(-1, 1); });
    const OwnedView g = filled_view({1000}, dtype, [] { return uniform(-1, 1); });
    OwnedView m = filled_view({1000}, dtype, [] { return uniform(-1, 1); });
    OwnedView v = filled_view({1000}, dtype, [] { return uniform(0, 1); });
    const Twin gp(p), gg(g), gm(m), gv(v);
    const kernels::OptimSegment cpu{p.view, g.view, m.view, v.view, 0.1, 0.01};
    const kernels::OptimSegment gpu{gp.view, gg.view, gm.view, gv.view, 0.1, 0.01};
    kernels::adamw_step({&cpu, 1}, {.step = 3});
    kernels::adamw_step({&gpu, 1}, {.step = 3});
    same(p, gp, 20);
    same(v, gv, 4);
    kernels::sgd_step({&cpu, 1}, 0.9, true);
    kernels::sgd_step({&gpu, 1}, 0.9, true);
    same(p, gp, 20);
    kernels::ema_step({&cpu, 1}, 0.9);
    kernels::ema_step({&gpu, 1}, 0.9);
    same(p, gp, 20);
    if (dtype != DType::kBFloat16) {  // whose rounding these would magnify
      // v, not m, holds squares.
      const kernels::OptimSegment cpu_squares{p.view, g.view, v.view, m.view, 0.1, 0.01};
      const kernels::OptimSegment gpu_squares{gp.view, gg.view, gv.view, gm.view, 0.1, 0.01};
      kernels::rmsprop_step({&cpu_squares, 1}, {.eps = 0.1, .momentum = 0.5});
      kernels::rmsprop_step({&gpu_squares, 1}, {.eps = 0.1, .momentum = 0.5});
      same(p, gp, 40);
      kernels::adagrad_step({&cpu_squares, 1}, 0.5, 1e-3);
      kernels::adagrad_step({&gpu_squares, 1}, 0.5, 1e-3);
      same(p, gp, 40);
      kernels::lion_step({&cpu, 1}, 0.7, 0.9);
      kernels::lion_step({&gpu, 1}, 0.7, 0.9);
      same(m, gm, 20);
      OwnedView u = make_view({1000}, dtype);
      const Twin gu(u);
      kernels::OptimSegment cpu_direction = cpu;
      kernels::OptimSegment gpu_direction = gpu;
      cpu_direction.third = u.view;
      gpu_direction.third = gu.view;
      kernels::lamb_direction({&cpu_direction, 1}, {.eps = 0.1, .step = 3});
      kernels::lamb_direction({&gpu_direction, 1}, {.eps = 0.1, .step = 3});
      same(u, gu, 40);
    }
    REQUIRE(kernels::sum_of_squares({&g.view, 1}) ==
            Approx(kernels::sum_of_squares({&gg.view, 1})).epsilon(1e-12));
  }
}

TEST_CASE("memory, streams and copies of any views") {
  const Layout layout = Layout::replicated(Mesh::world({}), {3, 5});
  const std::int64_t before = MemoryPool::of(kGpu).stats().live_bytes;
  {
    const Tensor t = Tensor::empty(layout, DType::kFloat64, kGpu);
    REQUIRE(t.device() == kGpu);
    REQUIRE(MemoryPool::of(kGpu).stats().live_bytes >= before + 15 * 8);
    kernels::fill(t.local(), 2.5);
    REQUIRE(t.at({2, 4}) == 2.5);
  }
  REQUIRE(MemoryPool::of(kGpu).stats().live_bytes == before);
  REQUIRE_THROWS_AS(MemoryPool::of(kGpu).allocate(std::size_t{1} << 45), OutOfMemory);
  Event event;
  event.record(Stream::current(kGpu));
  event.wait();
  REQUIRE(event.ready());
  Stream::current(kGpu).synchronize();

  const DType types[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt32,
                         DType::kInt64,   DType::kUInt8,   DType::kBool};
  for (const DType from : types) {
    for (const DType to : types) {
      for (const Shape& shape : {Shape{}, Shape{4, 3, 17}, Shape{3, 0}, Shape{257}}) {
        const OwnedView x = filled_view(
            shape, from,
            [&] { return static_cast<double>(uniform_int(0, from == DType::kBool ? 1 : 100)); },
            any_lie());
        OwnedView y = make_view(shape, to, any_lie());
        const Twin up(y);
        kernels::copy(x.view, y.view);
        kernels::copy(x.view, up.view);
        same(y, up);
        const Twin source(x);
        const Twin across(y);
        kernels::copy(source.view, across.view);
        same(y, across);
        OwnedView down = make_view(shape, to, any_lie());
        kernels::copy(source.view, down.view);
        bool equal = true;
        for_each_index(Box::whole(shape),
                       [&](const Index& i) { equal = equal && down.at(i) == y.at(i); });
        INFO(name(from) << " to " << name(to) << " " << shape);
        REQUIRE(equal);
      }
    }
  }
}

TEST_CASE("large sums are right and the same on every run") {
  for (const Shape& kept : {Shape{1, 1}, Shape{1, 1000}, Shape{3000, 1}}) {
    const OwnedView x = filled_view({3000, 1000}, DType::kFloat32, [] { return uniform(-1, 1); });
    OwnedView y = make_view(kept, DType::kFloat64);
    const Twin gx(x), first(y), second(y);
    kernels::reduce(kernels::ReduceKind::kSum, x.view, y.view);
    kernels::reduce(kernels::ReduceKind::kSum, gx.view, first.view);
    kernels::reduce(kernels::ReduceKind::kSum, gx.view, second.view);
    same(y, first, 1e4);
    const OwnedView a = first.back(y), b = second.back(y);
    REQUIRE(std::memcmp(a.memory.data(), b.memory.data(), a.memory.size()) == 0);
  }
}
