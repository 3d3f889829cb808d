// ranks: 1 2 3
// label: ci
#include <catch2/catch.hpp>
#include <map>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/conv.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/linear.hpp>
#include <tessera/autograd/ops/reduce.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/core/profile.hpp>
#include <tessera/parallel/communicator.hpp>

namespace tessera::test {
namespace {

Mesh mesh() { return Mesh::world({{"h", process().count}}); }

Tensor values(const Layout& layout, DType dtype = DType::kFloat32) {
  return Tensor::from_function(
      layout, [](const Index& i) { return 0.1 * double(i[0]) - 0.05 * double(i.back()) + 0.3; },
      dtype);
}

Tensor split(const Shape& shape, int dim, DType dtype = DType::kFloat32) {
  return values(Placement(mesh()).shard(dim, {"h"}).resolve(shape), dtype);
}
Tensor whole(const Shape& shape) { return values(Layout::replicated(mesh(), shape)); }

/// Floating-point operations by op, over all ranks.
double flops(const Profile& profile, const std::string& op) {
  double sum = 0.0;
  for (const ProfileEvent& e : profile.events())
    if (e.kind == ProfileKind::kOp && e.name == op) sum += e.flops;
  parallel::all_reduce(parallel::Group::world(), &sum, 1, DType::kFloat64).wait();
  return sum;
}

std::map<std::string, int> count(const Profile& profile, ProfileKind kind) {
  std::map<std::string, int> found;
  for (const ProfileEvent& e : profile.events())
    if (e.kind == kind) ++found[e.name];
  return found;
}

}  // namespace

TEST_CASE("floating-point operations are counted once, whichever rank does them") {
  // y[2, 9, 5, 6] of kernel 3x3, 4 channels in 2 groups; both gradients do the same products.
  const Tensor x = require_grad(split({2, 9, 5, 4}, 1));
  const Tensor w = require_grad(whole({6, 3, 3, 2}));
  Profile p;
  p.start();
  const Tensor y = conv(x, w, {}, {.pad_lo = {1}, .groups = 2});
  backward(sum(y));
  finish_gradients();
  p.stop();
  const double products = 2.0 * (2 * 9 * 5 * 6) * (3 * 3) * 2;
  CHECK(flops(p, "conv") == products);
  CHECK(flops(p, "conv_transpose") == products);
  CHECK(flops(p, "conv_weight_grad") == products);
  CHECK(flops(p, "sum") == 0.0);

  // Strided: as many products as outputs ask for.
  Profile strided;
  strided.start();
  const Tensor z = conv(x, w, {}, {.stride = {2}, .pad_lo = {1}, .groups = 2});
  strided.stop();
  CHECK(flops(strided, "conv") == 2.0 * double(z.numel()) * 9 * 2);
}

TEST_CASE("products of matrices are counted, split or transposed") {
  const Tensor x = require_grad(split({4, 7, 5}, 1));
  const Tensor w = require_grad(whole({3, 5}));
  Profile p;
  p.start();
  backward(sum(linear(x, w)));
  finish_gradients();
  p.stop();
  CHECK(flops(p, "linear") == 2 * 2.0 * (4 * 7) * 5 * 3);  // forward, and the gradient of x
  CHECK(flops(p, "outer_sum") == 2.0 * (4 * 7) * 5 * 3);

  // A split contraction: each rank does its share.
  const int n = 6 * process().count;
  Profile contracted;
  contracted.start();
  const Tensor c = matmul(split({n, 4}, 0), split({n, 5}, 0), true, false);
  contracted.stop();
  CHECK(c.shape() == Shape{4, 5});
  CHECK(flops(contracted, "matmul") == 2.0 * 4 * 5 * n);
}

TEST_CASE("an op says what it read and wrote, of which layouts, and nests what it waited for") {
  const Tensor x = split({1, 8, 6}, 1);
  const Tensor w = whole({2, 3, 6});
  Profile p;
  p.start();
  const Tensor y = conv(x, w, {}, {.pad_lo = {1}});
  const Tensor view = permute(y, {0, 2, 1});
  p.stop();
  const Tensor after = y + y;
  std::vector<ProfileEvent> ops;
  for (const ProfileEvent& e : p.events())
    if (e.kind == ProfileKind::kOp) ops.push_back(e);
  REQUIRE(ops.size() == 2);
  CHECK(ops[0].name == std::string("conv"));
  CHECK(ops[0].bytes == x.local_bytes() + w.local_bytes() + y.local_bytes());
  CHECK(ops[0].live_bytes > 0);
  CHECK(p.text_of(ops[0].detail) ==
        str("f32 ", x.layout(), ", f32 ", w.layout(), ", - -> f32 ", y.layout()));
  CHECK(ops[1].bytes == 0);  // a view moves nothing
  CHECK(ops[1].start >= ops[0].start + ops[0].seconds);

  const bool alone = process().count == 1;
  CHECK(count(p, ProfileKind::kTransfer) ==
        (alone ? std::map<std::string, int>{} : std::map<std::string, int>{{"exchange", 1}}));
  for (const ProfileEvent& e : p.events()) {
    if (e.kind == ProfileKind::kOp) continue;
    CHECK(e.start >= ops[0].start);
    CHECK(e.start + e.seconds <= ops[0].start + ops[0].seconds);
    CHECK(p.text_of(e.detail) == "conv");
    if (e.kind != ProfileKind::kTransfer) continue;
    // A row of 6 floats to each neighbour and from it.
    const int rank = process().rank;
    const int neighbours = (rank > 0) + (rank + 1 < process().count);
    CHECK(e.bytes == neighbours * 24);
    CHECK(e.peer_count == static_cast<std::uint32_t>(2 * neighbours));
    for (std::uint32_t i = 0; i < e.peer_count; ++i) {
      const ProfilePeer& peer = p.peers()[e.first_peer + i];
      CHECK(std::abs(peer.process - rank) == 1);
      CHECK(peer.bytes == 24);
    }
  }
}

TEST_CASE("a profile of communication alone has no ops; only one records at a time") {
  const Tensor x = split({1, 8, 6}, 1);
  Profile p(Profile::Scope::kCommunication);
  p.start();
  {
    const ProfilePhase phase("forward");
    const Tensor y = conv(x, whole({2, 3, 6}), {}, {.pad_lo = {1}});
  }
  Profile other;
  CHECK_THROWS_AS(other.start(), UsageError);
  p.stop();
  other.start();
  other.stop();
  CHECK(count(p, ProfileKind::kOp).empty());
  CHECK(count(p, ProfileKind::kPhase) == std::map<std::string, int>{{"forward", 1}});
  CHECK(count(p, ProfileKind::kTransfer).size() == (process().count > 1 ? 1u : 0u));
  CHECK(p.text("h") == p.text("h"));
  CHECK(p.text("h") != p.text("w"));
  CHECK(p.text("") == 0);
}

}  // namespace tessera::test
